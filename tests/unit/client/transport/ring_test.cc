#include "client/transport/ring.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/error.h"
#include "proto/ipc/file_descriptor.h"
#include "proto/ipc/ring.h"
#include "proto/wire/error_details.h"
#include "rope/v1/rotate.pb.h"
#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

using proto::RingState;
using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;

std::string ReplyTo(const std::string& id) {
  v1::RotateResponse response;
  response.set_request_id(id);
  return response.SerializeAsString();
}

// The other side of a ring, in this process: its ends of the doorbell and of the connection. It
// uses the client's mapping of the memory, so that ThreadSanitizer sees what the two synchronize.
class RingServer {
 public:
  explicit RingServer(Ring& ring)
      : shared_(*reinterpret_cast<proto::Ring*>(ring.memory().data())),
        doorbell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    socket_ = proto::FileDescriptor(ends[0]);
    ring.Open(proto::FileDescriptor(dup(doorbell_.get())), proto::FileDescriptor(ends[1]));
  }

  proto::Ring& shared() const { return shared_; }
  proto::RingSlot& slot(uint32_t index) const { return shared_.slots[index]; }
  void CloseConnection() { socket_ = proto::FileDescriptor(); }
  // How often the doorbell was rung since it was asked last.
  uint64_t Rings() const {
    uint64_t count = 0;
    return read(doorbell_.get(), &count, sizeof(count)) == sizeof(count) ? count : 0;
  }

  bool HasNext() const { return shared_.submitted.load() != taken_; }
  // Waits for the next request; the index of its slot.
  uint32_t Next() {
    while (!HasNext()) std::this_thread::yield();
    return shared_.queue[taken_++ % proto::kRingSlots].load();
  }
  std::string RequestIn(uint32_t index) const {
    return {slot(index).message.data(), slot(index).message_bytes.load()};
  }
  // Waits until the caller sleeps.
  void AwaitSleeper(uint32_t index) const {
    while (slot(index).state.load() != ValueOf(proto::RingState::kAwaited)) {
      std::this_thread::yield();
    }
  }
  // Writes an answer and wakes nobody; the state before it. Beside code 0 the answer is that of
  // ReplyTo.
  proto::RingState Write(uint32_t index, uint32_t code, const std::string& answer) const {
    return WriteRaw(index, code, code == 0 ? ReplyTo(answer) : answer);
  }
  proto::RingState WriteRaw(uint32_t index, uint32_t code, const std::string& message) const {
    std::memcpy(slot(index).message.data(), message.data(), message.size());
    slot(index).message_bytes.store(static_cast<uint32_t>(message.size()));
    slot(index).code.store(code);
    return static_cast<proto::RingState>(
        slot(index).state.exchange(ValueOf(proto::RingState::kDone)));
  }
  void Respond(uint32_t index, uint32_t code, const std::string& message) const {
    RespondRaw(index, code, code == 0 ? ReplyTo(message) : message);
  }
  void RespondRaw(uint32_t index, uint32_t code, const std::string& message) const {
    if (WriteRaw(index, code, message) == proto::RingState::kAwaited) {
      proto::FutexWakeAll(slot(index).state);
    }
  }
  // Waits until the client's reader of completions sleeps.
  void AwaitReaderAsleep() const {
    while (shared_.reader_asleep.load() == 0) std::this_thread::yield();
  }
  // Answers a request whose reply goes to the completion queue, and wakes the reader.
  void RespondQueued(uint32_t index, const std::string& answer) const {
    EXPECT_EQ(Write(index, 0, answer), proto::RingState::kQueued);
    WriteQueued(index);
  }
  // Puts an index into the completion queue, and wakes the reader.
  void WriteQueued(uint32_t index) const {
    const uint32_t completed = shared_.completed.load();
    shared_.completions[completed % proto::kRingSlots].store(index);
    shared_.completed.store(completed + 1);
    WakeReader();
  }
  void WakeReader() const {
    if (shared_.reader_asleep.exchange(0) != 0) proto::FutexWakeAll(shared_.reader_asleep);
  }

 private:
  proto::Ring& shared_;
  const proto::FileDescriptor doorbell_;
  proto::FileDescriptor socket_;
  uint32_t taken_ = 0;
};

using Answer = std::optional<Result<ReceivedReply>>;

constexpr int64_t kLargeTensor = int64_t{64} << 20;

class RingTest : public ::testing::Test {
 protected:
  explicit RingTest(microseconds spin = microseconds(0)) : ring_(Ring::Create(spin).value()) {}

  Answer Call(const std::string& request, microseconds timeout = hours(1),
              int64_t tensor_bytes = 1) {
    return ring_->Call(request, tensor_bytes, timeout);
  }
  std::future<Answer> CallLater(const std::string& request, int64_t tensor_bytes = 1) {
    return std::async(std::launch::async,
                      [=, this] { return Call(request, hours(1), tensor_bytes); });
  }
  // A call that nobody answers; the index of its slot.
  uint32_t GiveUpOne() {
    const Answer answer = Call("given up", microseconds(1));
    EXPECT_TRUE(answer.has_value());
    if (!answer.has_value()) return proto::kRingSlots;
    EXPECT_EQ(answer->status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(answer->status().detail().may_have_executed);
    return server_.Next();
  }
  // The id in a reply, or why there is none.
  static std::string TextOf(const Answer& answer) {
    if (!answer.has_value()) return "nullopt";
    return answer->ok() ? (*answer)->request_id() : answer->status().ToString();
  }

  const std::unique_ptr<Ring> ring_;
  RingServer server_{*ring_};
};

class PollingRingTest : public RingTest {
 protected:
  PollingRingTest() : RingTest(hours(1)) {}
};

TEST_F(RingTest, ErrorComesBackWithItsDetail) {
  std::future<Answer> called = CallLater("request");
  v1::RotateResponse response;
  *response.mutable_error() =
      proto::ErrorMessageOf(proto::MakeError({.field = "tokens",
                                              .got = "7",
                                              .want = "6",
                                              .retry_delay_ms = 5,
                                              .may_have_executed = true,
                                              .reason = proto::Reason::kQueueFull}));
  server_.Respond(server_.Next(), 8, response.SerializeAsString());
  const Answer answer = called.get();
  ASSERT_TRUE(answer.has_value());
  const Status& status = answer->status();
  EXPECT_THAT(status, StatusIs(StatusCode::kResourceExhausted, "tokens: got 7, want 6"));
  EXPECT_EQ(status.detail().field, "tokens");
  EXPECT_EQ(status.detail().got, "7");
  EXPECT_EQ(status.detail().want, "6");
  EXPECT_EQ(status.detail().reason, Reason::kQueueFull);
  EXPECT_EQ(status.detail().retry_delay_ms, 5);
  EXPECT_TRUE(status.detail().may_have_executed);
}

TEST_F(RingTest, AnswersThatMakeNoSenseAreErrors) {
  std::future<Answer> answer = CallLater("request");
  server_.Respond(server_.Next(), 3, ReplyTo("no error"));
  EXPECT_THAT(TextOf(answer.get()), HasSubstr("INTERNAL: reply: got a code without its error"));
  answer = CallLater("request");
  server_.Respond(server_.Next(), 3, "\xff\xff\xff");
  EXPECT_THAT(TextOf(answer.get()), HasSubstr("INTERNAL: "));
  // A length past the end of the slot reads no further than that.
  answer = CallLater("request");
  const uint32_t slot = server_.Next();
  server_.AwaitSleeper(slot);
  server_.slot(slot).message_bytes.store(1 << 30);
  const std::string longest = ReplyTo(std::string(proto::kRingMessageBytes - 3, 'y'));
  std::memcpy(server_.slot(slot).message.data(), longest.data(), longest.size());
  server_.slot(slot).code.store(0);
  server_.slot(slot).state.store(ValueOf(RingState::kDone));
  proto::FutexWakeAll(server_.slot(slot).state);
  EXPECT_EQ(TextOf(answer.get()).size(), proto::kRingMessageBytes - 3);
  // There is nothing that bytes of a tensor in a ring would be the index of.
  answer = CallLater("request");
  v1::RotateResponse with_bytes;
  with_bytes.add_tensors()->mutable_array()->set_raw("1");
  server_.RespondRaw(server_.Next(), 0, with_bytes.SerializeAsString());
  EXPECT_THAT(TextOf(answer.get()), HasSubstr("INTERNAL: reply: got bytes of a tensor"));
}

TEST_F(RingTest, WithoutSpinTheCallerSleepsOnTheSlotAndIsWoken) {
  std::future<Answer> answer = CallLater("request");
  const uint32_t slot = server_.Next();
  server_.AwaitSleeper(slot);
  std::atomic<uint32_t>& state = server_.slot(slot).state;
  // The system says how many were woken. Woken for nothing, the caller sleeps again.
  while (syscall(SYS_futex, &state, FUTEX_WAKE, 1, nullptr, nullptr, 0) != 1) {
    std::this_thread::yield();
  }
  EXPECT_EQ(state.load(), ValueOf(RingState::kAwaited));
  server_.Respond(slot, 0, "answer");
  EXPECT_EQ(TextOf(answer.get()), "answer");
}

TEST_F(PollingRingTest, CallerPollsForSmallTensorsAndSleepsForLargeOnes) {
  std::future<Answer> answer = CallLater("small", 4096);
  EXPECT_EQ(server_.Write(server_.Next(), 0, "answer"), RingState::kSubmitted);
  EXPECT_EQ(TextOf(answer.get()), "answer");
  answer = CallLater("large", kLargeTensor);
  const uint32_t slot = server_.Next();
  server_.AwaitSleeper(slot);  // an hour before the spin time is over
  server_.Respond(slot, 0, "answer");
  EXPECT_EQ(TextOf(answer.get()), "answer");
}

TEST_F(PollingRingTest, CallerThatPollsEndsAtItsDeadline) {
  EXPECT_THAT(TextOf(Call("request", milliseconds(1))), HasSubstr("DEADLINE_EXCEEDED: ring: "));
}

TEST_F(RingTest, ThousandsOfCallsFromManyThreadsGetTheirOwnAnswers) {
  constexpr int kThreads = 8;
  constexpr int kCalls = 1500;  // of each
  constexpr uint32_t kRequests = kThreads * kCalls;
  std::thread serving([this] {
    std::vector<std::pair<uint32_t, std::string>> waiting;
    const auto answer_one = [&] {  // the latest first: in another order than they came
      server_.Respond(waiting.back().first, 0, "to " + waiting.back().second);
      waiting.pop_back();
    };
    for (uint32_t taken = 0; taken < kRequests;) {
      if (server_.HasNext()) {
        const uint32_t slot = server_.Next();
        waiting.emplace_back(slot, server_.RequestIn(slot));
        ++taken;
        if (waiting.size() >= kThreads / 2) answer_one();
      } else if (!waiting.empty()) {
        answer_one();
      } else {
        std::this_thread::yield();
      }
    }
    while (!waiting.empty()) answer_one();
  });
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  for (int thread = 0; thread < kThreads; ++thread) {
    callers.emplace_back([&, thread] {
      for (int call = 0; call < kCalls; ++call) {
        std::string request = std::to_string(thread) + " " + std::to_string(call) + " ";
        request.resize(static_cast<size_t>(16 + (thread * kCalls + call) % 1900), 'x');
        if (TextOf(Call(request)) != "to " + request) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  serving.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(RingTest, CallThatIsGivenUpKeepsItsSlotUntilItIsAnswered) {
  std::map<uint32_t, int> uses;
  std::vector<uint32_t> slots;
  for (uint32_t i = 0; i < proto::kRingSlots; ++i) {
    slots.push_back(GiveUpOne());
    ++uses[slots.back()];
  }
  EXPECT_EQ(uses.size(), proto::kRingSlots) << "each has a slot of its own";
  EXPECT_EQ(server_.slot(slots[17]).timeout_us.load(), 0) << "it need not run any more";
  EXPECT_EQ(TextOf(Call("one too many", microseconds(0))), "nullopt");
  EXPECT_FALSE(server_.HasNext());

  server_.Respond(slots[17], 0, "too late");
  EXPECT_EQ(GiveUpOne(), slots[17]);
  EXPECT_EQ(server_.RequestIn(slots[17]), "given up");
  EXPECT_EQ(TextOf(Call("one too many", microseconds(0))), "nullopt");

  for (const uint32_t slot : slots) server_.Respond(slot, 0, "too late");
  std::future<Answer> answer = CallLater("request");
  server_.Respond(server_.Next(), 0, "in time");
  EXPECT_EQ(TextOf(answer.get()), "in time") << "and not what came for the call before";
}

TEST_F(RingTest, LargestMessagesFit) {
  constexpr size_t kIdBytes = proto::kRingMessageBytes - 3;  // tag and length
  std::future<Answer> answer = CallLater(std::string(proto::kRingRequestBytes, 'x'));
  server_.Respond(server_.Next(), 0, std::string(kIdBytes, 'y'));
  EXPECT_EQ(TextOf(answer.get()), std::string(kIdBytes, 'y'));
}

TEST_F(RingTest, ClosedRingTakesNothing) {
  server_.shared().closed.store(1);
  EXPECT_EQ(TextOf(Call("request")), "nullopt");
  EXPECT_FALSE(server_.HasNext());
}

// One that is asleep, and not answered yet, when its server goes.
class RingLostTest : public RingTest {
 protected:
  RingLostTest() {
    slot_ = server_.Next();
    server_.AwaitSleeper(slot_);
  }

  void ExpectLost() {
    const Answer answer = called_.get();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->status().code(), StatusCode::kUnavailable);
    EXPECT_TRUE(answer->status().detail().may_have_executed);
  }

  std::future<Answer> called_ = CallLater("request");
  uint32_t slot_ = 0;
};

TEST_F(RingLostTest, ConnectionThatClosesEndsTheCall) {
  server_.CloseConnection();
  ExpectLost();
}

TEST_F(RingLostTest, ServerThatClosesTheRingEndsTheCall) {
  server_.shared().closed.store(1);
  proto::FutexWakeAll(server_.slot(slot_).state);
  ExpectLost();
}

TEST_F(RingLostTest, AnswerThatCameBeforeTheEndCounts) {
  server_.Write(slot_, 0, "answer");
  server_.shared().closed.store(1);
  server_.CloseConnection();
  EXPECT_EQ(TextOf(called_.get()), "answer");
}

TEST_F(RingTest, DoorbellIsRungOnceWhereTheServerSleeps) {
  GiveUpOne();
  EXPECT_EQ(server_.Rings(), 0u);
  server_.shared().asleep.store(1);
  GiveUpOne();
  EXPECT_EQ(server_.shared().asleep.load(), 0u);
  GiveUpOne();
  EXPECT_EQ(server_.Rings(), 1u);
  server_.shared().asleep.store(1);
  GiveUpOne();
  EXPECT_EQ(server_.Rings(), 1u);
}

class RingCompletionsTest : public ::testing::Test {
 protected:
  using Outcomes = std::vector<std::pair<int, std::string>>;  // the request, and its reply or error

  // Submits the request with this name; the index of its slot.
  uint32_t Submit(int name, microseconds timeout = hours(1)) {
    const auto ticket = completions_->Reserve();
    EXPECT_TRUE(ticket.has_value());
    if (!ticket.has_value()) return proto::kRingSlots;
    last_ = *ticket;
    completions_->Submit(*ticket, "request", timeout, OnReply(name));
    return server_.Next();
  }
  RingCompletions::OnReply OnReply(int name) {
    return [this, name](const Result<ReceivedReply>& reply) {
      EXPECT_TRUE(IsCallbackThreadOf(*owner_));
      const std::lock_guard<std::mutex> lock(mu_);
      outcomes_.emplace_back(name, reply.ok() ? reply->request_id() : reply.status().ToString());
      changed_.notify_all();
    };
  }
  Outcomes Await(size_t count) {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [&] { return outcomes_.size() >= count; });
    return outcomes_;
  }

  const std::shared_ptr<Ring> ring_ = Ring::Create(microseconds(0)).value();
  RingServer server_{*ring_};
  const std::shared_ptr<const CallbackOwner> owner_ = std::make_shared<CallbackOwner>();
  std::mutex mu_;
  std::condition_variable changed_;
  Outcomes outcomes_;  // guarded by mu_
  RingCompletions::Ticket last_;
  // Last: its thread uses all of the above.
  std::unique_ptr<RingCompletions> completions_ = std::make_unique<RingCompletions>(ring_, owner_);
};

TEST_F(RingCompletionsTest, RequestsCompleteInTheOrderInWhichTheyAreAnswered) {
  const uint32_t first = Submit(7);
  const uint32_t second = Submit(8);
  EXPECT_EQ(server_.slot(first).timeout_us.load(), microseconds(hours(1)).count());
  server_.RespondQueued(second, "second");
  server_.RespondQueued(first, "first");
  EXPECT_THAT(Await(2), ElementsAre(std::pair(8, "second"), std::pair(7, "first")));
}

TEST_F(RingCompletionsTest, SleepingThreadIsWokenByEachReply) {
  for (int i = 0; i < 2000; ++i) {
    const uint32_t slot = Submit(i);
    if (i % 2 == 0) server_.AwaitReaderAsleep();
    server_.RespondQueued(slot, "reply");
    EXPECT_EQ(Await(static_cast<size_t>(i) + 1).back().first, i);
  }
}

TEST_F(RingCompletionsTest, AQuarterOfTheSlotsStaysFree) {
  std::vector<uint32_t> slots;
  for (int i = 0; i < RingCompletions::kRequestsMax; ++i) slots.push_back(Submit(i));
  EXPECT_FALSE(completions_->Reserve().has_value());
  EXPECT_TRUE(ring_->Reserve().has_value());
  server_.RespondQueued(slots[5], "reply");
  Await(1);
  EXPECT_EQ(Submit(5), slots[5]);
  for (const uint32_t slot : slots) server_.RespondQueued(slot, "reply");
  Await(slots.size() + 1);
}

TEST_F(RingCompletionsTest, CancelledRequestEndsAtOnceAndNeedNotRun) {
  const uint32_t kept = Submit(1);
  const uint32_t cancelled = Submit(2);
  completions_->Cancel(last_);
  completions_->Cancel(last_);
  EXPECT_THAT(Await(1), ElementsAre(std::pair(2, "CANCELLED: cancelled by the caller")));
  EXPECT_EQ(server_.slot(cancelled).timeout_us.load(), 0);
  EXPECT_NE(server_.slot(kept).timeout_us.load(), 0);
  // Its slot serves others once the server has answered it.
  server_.RespondQueued(cancelled, "too late");
  server_.RespondQueued(kept, "reply");
  EXPECT_THAT(Await(2).back(), std::pair(1, "reply"));
  completions_->Cancel(last_);
  EXPECT_EQ(Submit(3), kept);
  EXPECT_EQ(Submit(4), cancelled);
  server_.RespondQueued(kept, "reply");
  server_.RespondQueued(cancelled, "reply");
  EXPECT_THAT(Await(4), SizeIs(4));
}

TEST_F(RingCompletionsTest, RequestThatIsCancelledBeforeItIsSubmittedEndsToo) {
  const auto ticket = completions_->Reserve();
  ASSERT_TRUE(ticket.has_value());
  completions_->Cancel(*ticket);
  completions_->Submit(*ticket, "request", hours(1), OnReply(1));
  EXPECT_THAT(Await(1), ElementsAre(std::pair(1, "CANCELLED: cancelled by the caller")));
}

TEST_F(RingCompletionsTest, DeadlineEndsARequestThatIsNotAnswered) {
  Submit(1);
  server_.AwaitReaderAsleep();
  Submit(2, milliseconds(20));
  EXPECT_THAT(Await(1), ElementsAre(std::pair(2, "DEADLINE_EXCEEDED: ring: no answer in time")));
}

// Whenever the thread looks, another request is answered: each completion submits one and answers
// it.
class BusyRingCompletionsTest : public RingCompletionsTest {
 protected:
  ~BusyRingCompletionsTest() override {
    ends_ = Clock::now();
    idle_.get_future().wait();
    completions_.reset();  // its thread may still use idle_
  }

  void StartPipeline() { SubmitAnswered(); }
  bool is_busy() const { return Clock::now() < ends_.load(); }

 private:
  using Clock = std::chrono::steady_clock;

  void SubmitAnswered() {
    const auto ticket = completions_->Reserve();
    ASSERT_TRUE(ticket.has_value());
    completions_->Submit(*ticket, "request", hours(1), [this](const Result<ReceivedReply>&) {
      if (is_busy()) return SubmitAnswered();
      idle_.set_value();
    });
    server_.RespondQueued(server_.Next(), "reply");
  }

  std::atomic<Clock::time_point> ends_ = Clock::now() + std::chrono::seconds(10);
  std::promise<void> idle_;
};

TEST_F(BusyRingCompletionsTest, DeadlineEndsARequestWhileOthersAreAnswered) {
  Submit(1, milliseconds(20));
  StartPipeline();
  EXPECT_THAT(Await(1), ElementsAre(std::pair(1, "DEADLINE_EXCEEDED: ring: no answer in time")));
  EXPECT_TRUE(is_busy());
}

TEST_F(BusyRingCompletionsTest, CancelEndsARequestWhileOthersAreAnswered) {
  Submit(1);
  StartPipeline();
  completions_->Cancel(last_);
  EXPECT_THAT(Await(1), ElementsAre(std::pair(1, "CANCELLED: cancelled by the caller")));
  EXPECT_TRUE(is_busy());
}

TEST_F(RingCompletionsTest, RequestIsCopiedBeforeItCompletes) {
  std::atomic<bool> is_over = false;
  std::thread waker([&] {
    while (!is_over) server_.WakeReader();
  });
  const std::string sent(proto::kRingRequestBytes, 'x');
  std::string request;
  std::binary_semaphore completed(0);
  for (int i = 0; i < 10000; ++i) {
    request = sent;
    const auto ticket = completions_->Reserve();
    EXPECT_TRUE(ticket.has_value());
    if (!ticket.has_value()) break;
    completions_->Submit(*ticket, request, microseconds(0), [&](const Result<ReceivedReply>&) {
      request.assign(proto::kRingRequestBytes, 'y');  // as the next attempt does
      completed.release();
    });
    completed.acquire();
    const uint32_t slot = server_.Next();
    EXPECT_EQ(server_.RequestIn(slot), sent);
    server_.RespondQueued(slot, "too late");
  }
  is_over = true;
  waker.join();
}

TEST_F(RingCompletionsTest, FirstRequestAfterIdlenessFindsALostConnectionSoon) {
  server_.RespondQueued(Submit(1), "reply");
  Await(1);
  server_.AwaitReaderAsleep();
  server_.WakeReader();  // it finds no request, so it sleeps longer
  server_.AwaitReaderAsleep();
  server_.CloseConnection();
  const auto begin = std::chrono::steady_clock::now();
  Submit(2);
  EXPECT_THAT(Await(2).back().second, HasSubstr("UNAVAILABLE"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(500));
}

TEST_F(RingCompletionsTest, LostRingEndsEachRequestThatIsNotAnswered) {
  const uint32_t answered = Submit(1);
  Submit(2);
  Submit(3);
  server_.RespondQueued(answered, "reply");
  Await(1);
  server_.shared().closed.store(1);
  server_.WakeReader();
  Outcomes outcomes = Await(3);
  EXPECT_EQ(outcomes[0], std::pair(1, std::string("reply")));
  EXPECT_EQ(outcomes[1].second, "UNAVAILABLE: ring: the connection was lost");
  EXPECT_EQ(outcomes[2].second, outcomes[1].second);
  EXPECT_FALSE(completions_->Reserve().has_value());
}

TEST_F(RingCompletionsTest, ConnectionThatClosesWithoutAWordIsNoticed) {
  Submit(1);
  server_.AwaitReaderAsleep();
  server_.CloseConnection();
  EXPECT_THAT(Await(1).back().second, HasSubstr("UNAVAILABLE"));
}

TEST_F(RingCompletionsTest, CompletionsOfOtherSlotsChangeNothing) {
  const uint32_t slot = Submit(1);
  server_.WriteQueued((slot + 1) % proto::kRingSlots);
  server_.WriteQueued(slot + proto::kRingSlots + 1);
  server_.RespondQueued(slot, "reply");
  EXPECT_THAT(Await(1), ElementsAre(std::pair(1, "reply")));
  EXPECT_EQ(Submit(2), slot);
  server_.RespondQueued(slot, "reply");
  Await(2);
}

TEST_F(RingCompletionsTest, MayBeDestroyedByACompletion) {
  std::promise<void> destroyed;
  const auto ticket = completions_->Reserve();
  ASSERT_TRUE(ticket.has_value());
  completions_->Submit(*ticket, "request", hours(1), [&](const Result<ReceivedReply>&) {
    completions_.reset();
    destroyed.set_value();
  });
  server_.RespondQueued(server_.Next(), "reply");
  destroyed.get_future().wait();
}

}  // namespace
}  // namespace rope::client
