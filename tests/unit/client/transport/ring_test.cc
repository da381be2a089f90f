#include "client/transport/ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/error.h"
#include "proto/ipc/ring.h"
#include "proto/wire/error_details.h"
#include "rope/v1/rotate.pb.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/transport/ring_server.h"

namespace rope::client {
namespace {

using proto::RingState;
using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;

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
      proto::ErrorMessageOf(proto::MakeError({.reason = proto::Reason::kQueueFull,
                                              .field = "tokens",
                                              .got = "7",
                                              .want = "6",
                                              .retry_delay_ms = 5,
                                              .may_have_executed = true}));
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

}  // namespace
}  // namespace rope::client
