// Calls between gRPC and the engine, and the memory of their messages.
#include <fcntl.h>
#include <grpcpp/alarm.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/mutex.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "server/clock.h"
#include "server/grpc/memory_watch.h"
#include "server/grpc/poll_loop.h"
#include "server/grpc/queue_call.h"
#include "server/grpc/rope_codec.h"
#include "server/limits.h"
#include "server/request/request.h"
#include "server/telemetry/counts.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_clients.h"

namespace rope::server {
namespace {

using ::rope::testing::FakeClock;

// A poll loop with one queue, in a server without services, and a log of its thread's actions.
class PollLoopTest : public ::testing::TestWithParam<absl::Duration> {
 protected:
  ~PollLoopTest() override {
    server_->Shutdown();
    loop_->Shutdown();
  }

  void Build(PollLoop::OnIdle on_idle) {
    grpc::ServerBuilder builder;
    loop_ = std::make_unique<PollLoop>(builder, 1, GetParam(), std::move(on_idle));
    server_ = builder.BuildAndStart();
  }

  // Queues an event that appends `text` to the log. It is in the queue when this returns.
  void Post(const std::string& text) {
    Posted& posted = posted_.emplace_back(*this, text);
    posted.alarm.Set(&queue().completion_queue(), gpr_inf_past(GPR_CLOCK_MONOTONIC), &posted);
  }

  void Note(const std::string& text) {
    if (ended_.HasBeenNotified()) return;  // the log is read
    log_.push_back(text);
    if (text == "last") ended_.Notify();
    if (text != "event") return;
    if (defers_ && queue().must_look()) {
      queue().Defer(posted_.emplace_back(*this, "last"));
    } else if (endless_) {
      Post("event");
    }
  }

  CallQueue& queue() { return *loop_->queues().front(); }

  std::vector<std::string> Log() {
    loop_->Start();
    ended_.WaitForNotification();
    return log_;
  }

  // Written by the loop's thread until `ended_`.
  std::vector<std::string> log_;
  int idle_ = 0;
  bool endless_ = false;
  bool defers_ = false;

 private:
  struct Posted : Event {
    Posted(PollLoopTest& the_test, std::string the_text)
        : test(the_test), text(std::move(the_text)) {}
    void Run(bool) override { test.Note(text); }
    PollLoopTest& test;
    const std::string text;
    grpc::Alarm alarm;
  };

  proto::Notification ended_;
  std::list<Posted> posted_;
  std::unique_ptr<PollLoop> loop_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_P(PollLoopTest, ThreadIsIdleWhenNoEventIsLeft) {
  Build([this] {
    if (log_.size() == 2) Note("last");
    return false;
  });
  Post("a");
  Post("b");
  EXPECT_THAT(Log(), ElementsAre("a", "b", "last"));
}

TEST_P(PollLoopTest, ThreadLooksForEventsAgainAfterWhatItDidWhenIdle) {
  Build([this] {
    if (++idle_ > 2) return false;
    Note("idle");
    Post(idle_ == 2 ? "last" : "made when idle");
    return true;
  });
  EXPECT_THAT(Log(), ElementsAre("idle", "made when idle", "idle", "last"));
}

// An event that queues the next one before it ends, so that the queue is never empty.
TEST_P(PollLoopTest, ThreadThatAlwaysHasEventsDoesTheRestToo) {
  Build([this] {
    if (idle_++ == 0) Note("last");
    return false;
  });
  endless_ = true;
  Post("event");
  EXPECT_EQ(Log().back(), "last");
}

TEST_P(PollLoopTest, WhatIsDeferredRunsOnceTheQueueIsEmpty) {
  Build([] { return false; });
  endless_ = true;
  defers_ = true;
  Post("event");
  EXPECT_THAT(Log(), SizeIs(CallQueue::kEventsMax + 1));
}

INSTANTIATE_TEST_SUITE_P(Spin, PollLoopTest,
                         ::testing::Values(absl::ZeroDuration(), absl::Microseconds(200)),
                         [](const auto& param) {
                           return param.param == absl::ZeroDuration() ? "none" : "bounded";
                         });

// A server with one method, whose calls the test answers, and a connection to it.
class UnaryCallTest : public ::testing::Test {
 protected:
  UnaryCallTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    loop_ = std::make_unique<PollLoop>(builder, 1, absl::ZeroDuration(), [] { return false; });
    server_ = builder.BuildAndStart();
    CallArming::Start<UnaryCall>(*loop_->queues().front(), method_.request, method_);
    loop_->Start();
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    descriptor_ = ends[0];
    grpc::AddInsecureChannelFromFd(server_.get(), ends[0]);
    channel_ = grpc::CreateInsecureChannelFromFd("test", ends[1]);
    stub_ = v1::RopeService::NewStub(channel_);
  }
  ~UnaryCallTest() override {
    server_->Shutdown();
    in_flight_.AwaitNoneOpen();
    loop_->Shutdown();
  }

  // The code of a call that ends before its message has come. `act` runs once the server waits for
  // the message.
  grpc::StatusCode CodeOfCallWithoutMessage(
      const std::function<void(grpc::GenericClientAsyncReaderWriter&)>& act) {
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    const auto call = grpc::GenericStub(channel_).PrepareCall(
        &context, "/rope.v1.RopeService/ListModels", &queue);
    void* tag = nullptr;
    bool ok = false;
    call->StartCall(nullptr);
    EXPECT_TRUE(queue.Next(&tag, &ok));
    while (reads_.count() == 0) std::this_thread::yield();
    act(*call);
    grpc::Status status;
    call->Finish(&status, &status);
    while (queue.Next(&tag, &ok) && tag != &status) continue;
    return status.error_code();
  }

  // The descriptor of the server's end; 0: closed.
  ino_t Inode() const {
    struct stat state = {};
    return fstat(descriptor_, &state) == 0 ? state.st_ino : 0;
  }

  const SteadyClock clock_;
  MessageReads reads_{clock_};
  testing::TestClients clients_;
  CallsInFlight in_flight_;
  RawService<v1::RopeService> service_;
  CallCounts counts_;
  UnaryCall* call_ = nullptr;  // set before `received_`
  proto::Notification received_;
  const UnaryCall::Method method_ = {
      {service_.RequestOf("ListModels"), {&in_flight_, &clients_.connections, &reads_}, &counts_},
      [this](ServiceCall& call) {
        call_ = &static_cast<UnaryCall&>(call);
        received_.Notify();
      }};
  std::unique_ptr<PollLoop> loop_;
  std::unique_ptr<grpc::Server> server_;
  int descriptor_ = -1;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::RopeService::Stub> stub_;
};

// Owners and sessions rely on this: no connection gets a descriptor while a call of it lives.
TEST_F(UnaryCallTest, DescriptorOfAConnectionStaysOpenUntilItsLastCallIsAnswered) {
  const ino_t inode = Inode();
  auto context = std::make_unique<grpc::ClientContext>();
  std::thread client([&] {
    v1::ListModelsResponse response;
    EXPECT_EQ(stub_->ListModels(context.get(), {}, &response).error_code(),
              grpc::StatusCode::CANCELLED);
  });
  received_.WaitForNotification();
  context->TryCancel();
  client.join();
  context.reset();
  stub_.reset();
  channel_.reset();  // closes the client's end
  while (!call_->cancelled()->load()) std::this_thread::yield();
  EXPECT_EQ(Inode(), inode);
  call_->Finish(absl::OkStatus(), grpc::ByteBuffer());
  while (Inode() == inode) std::this_thread::yield();
  EXPECT_EQ(counts_.started(), 1);
  EXPECT_EQ(counts_.counts()[0].duration.count(), 0) << "the handler ends what it gets";
}

TEST_F(UnaryCallTest, CallWhoseMessageDoesNotComeInTimeBeginsAndEnds) {
  const absl::Status late = absl::DeadlineExceededError("late");
  EXPECT_EQ(CodeOfCallWithoutMessage([&](auto&) { reads_.EndSince(absl::InfiniteFuture(), late); }),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(counts_.started(), 1);
  EXPECT_EQ(counts_.counts()[IndexOf(late.code())].duration.count(), 1);
}

TEST_F(UnaryCallTest, CallWithoutAMessageBeginsAndEnds) {
  EXPECT_EQ(CodeOfCallWithoutMessage([](auto& call) { call.WritesDone(nullptr); }),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(counts_.started(), 1);
  EXPECT_EQ(counts_.counts()[IndexOf(absl::StatusCode::kInvalidArgument)].duration.count(), 1);
}

// Received messages that are freed while gRPC's memory quota is full.

constexpr size_t kCalls = 8;

class ReceivedSlicesTest : public ::testing::Test {
 protected:
  ReceivedSlicesTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    builder.SetResourceQuota(quota_);
    loop_ = std::make_unique<PollLoop>(builder, 1, absl::ZeroDuration(), [] { return false; });
    server_ = builder.BuildAndStart();
    CallArming::Start<UnaryCall>(*loop_->queues().front(), method_.request, method_, kCalls);
    loop_->Start();
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    grpc::AddInsecureChannelFromFd(server_.get(), ends[0]);
    stub_ = v1::RopeService::NewStub(grpc::CreateInsecureChannelFromFd("test", ends[1]));
  }
  ~ReceivedSlicesTest() override {
    server_->Shutdown();
    in_flight_.AwaitNoneOpen();
    loop_->Shutdown();
    client_queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (client_queue_.Next(&tag, &ok)) continue;
  }

  // A call of the client, which the quota may end.
  struct Sent {
    grpc::ClientContext context;
    v1::RotateResponse response;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::RotateResponse>> reader;
  };
  void Send(const v1::RotateRequest& request) {
    Sent& sent = sent_.emplace_back();
    sent.reader = stub_->AsyncRotate(&sent.context, request, &client_queue_);
    sent.reader->Finish(&sent.response, &sent.status, nullptr);
  }
  // Waits for the handler.
  std::vector<ServiceCall*> Received(size_t count) {
    proto::MutexLock lock(&mutex_);
    while (calls_.size() < count) arrived_.Wait(&mutex_);
    return calls_;
  }

  grpc::ResourceQuota quota_{"test"};
  const SteadyClock clock_;
  MessageReads reads_{clock_};
  testing::TestClients clients_;
  CallsInFlight in_flight_;
  RawService<v1::RopeService> service_;
  proto::Mutex mutex_;
  proto::CondVar arrived_;
  std::vector<ServiceCall*> calls_ ABSL_GUARDED_BY(mutex_);
  const UnaryCall::Method method_ = {
      {service_.RequestOf("Rotate"), {&in_flight_, &clients_.connections, &reads_}},
      [this](ServiceCall& call) {
        proto::MutexLock lock(&mutex_);
        calls_.push_back(&call);
        arrived_.Signal();
      }};
  std::unique_ptr<PollLoop> loop_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::RopeService::Stub> stub_;
  grpc::CompletionQueue client_queue_;
  std::deque<Sent> sent_;
};

// gRPC ends the process if their last owner is a grpc::Slice.
TEST_F(ReceivedSlicesTest, MessagesAreFreedOnAThreadOfOursWhileTheQuotaIsFull) {
  v1::RotateRequest request;
  request.add_tensors()->mutable_array()->set_raw(std::string(limits::kMiB, 'x'));
  for (size_t i = 0; i < kCalls; ++i) Send(request);
  const std::vector<ServiceCall*> calls = Received(kCalls);
  quota_.Resize(limits::kMiB);
  for (ServiceCall* call : calls) {
    {
      ReceivedSlices message;
      ASSERT_THAT(message.Take(call->request()), IsOk());
    }
    call->Finish(absl::OkStatus(), grpc::ByteBuffer());
  }
}

constexpr int64_t kReceiveBytes = 100 * limits::kMiB;
constexpr char kOne[] = "uid:1";
constexpr char kTwo[] = "uid:2";

// A message that is being read; records how the read ended.
class FakeRead final : public MessageReads::Entry {
 public:
  FakeRead(MessageReads& reads, absl::string_view owner, bool is_open_stream = false)
      : reads_(reads) {
    reads_.Enter(*this, owner, is_open_stream);
  }
  ~FakeRead() override { reads_.Leave(*this); }

  std::vector<absl::Status> ends;
  int cancels = 0;

 private:
  void EndRead(const absl::Status& status) override { ends.push_back(status); }
  void CancelRead() override { ++cancels; }

  MessageReads& reads_;
};

class MemoryWatchTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  MessageReads reads_{clock_};
  BufferPool pool_{int64_t{1} << 40};
  int64_t anonymous_bytes_ = 0;
  int64_t accounted_bytes_ = 0;
  int64_t free_bytes_ = 0;
  int64_t freed_bytes_ = 0;  // what a trim gives back
  int trims_ = 0;
  MemoryWatch watch_{{kReceiveBytes, absl::Seconds(60)},
                     {[this] { return anonymous_bytes_; }, [this] { return accounted_bytes_; },
                      [this] { return free_bytes_; },
                      [this] {
                        ++trims_;
                        anonymous_bytes_ -= freed_bytes_;
                      }},
                     reads_,
                     pool_,
                     clock_};
};

TEST_F(MemoryWatchTest, ReadThatIsNotThereInTimeEndsOnce) {
  FakeRead read(reads_, kOne);
  clock_.Advance(absl::Seconds(60));
  watch_.Look();
  EXPECT_THAT(read.ends, IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  watch_.Look();
  watch_.Look();
  ASSERT_THAT(read.ends, SizeIs(1));
  EXPECT_THAT(read.ends[0], Fails(absl::StatusCode::kDeadlineExceeded, "--receive_timeout"));
  EXPECT_EQ(watch_.late_calls(), 1);
}

TEST_F(MemoryWatchTest, SilentStreamHasNoTimeToKeep) {
  FakeRead stream(reads_, kOne, /*is_open_stream=*/true);
  clock_.Advance(absl::Hours(1));
  watch_.Look();
  EXPECT_THAT(stream.ends, IsEmpty());
}

TEST_F(MemoryWatchTest, ClientThatDoesNotTakeTheEndIsCutOff) {
  FakeRead read(reads_, kOne);
  clock_.Advance(absl::Seconds(61));
  watch_.Look();
  clock_.Advance(absl::Seconds(1));
  watch_.Look();
  EXPECT_EQ(read.cancels, 0);
  clock_.Advance(absl::Milliseconds(1));
  watch_.Look();
  EXPECT_EQ(read.cancels, 1);
}

TEST_F(MemoryWatchTest, WhatTheProcessHoldsAtTheStartEndsNothing) {
  const FakeRead read(reads_, kOne);
  clock_.Advance(absl::Milliseconds(11));
  MemoryWatch watch({kReceiveBytes, absl::Seconds(60)},
                    {[] { return 2 * kReceiveBytes; }, [] { return int64_t{0}; },
                     [] { return int64_t{0}; }, [] {}},
                    reads_, pool_, clock_);
  watch.Start();
  watch.Look();
  EXPECT_THAT(read.ends, IsEmpty());
}

TEST_F(MemoryWatchTest, TheOldestOfTheGreediestOwnerEndFirstAndNoMoreThanNeedBe) {
  const FakeRead first(reads_, kTwo);
  clock_.Advance(absl::Milliseconds(50));
  const FakeRead one[] = {{reads_, kOne}, {reads_, kOne}};
  const FakeRead second(reads_, kTwo);
  const FakeRead third(reads_, kTwo);
  clock_.Advance(absl::Milliseconds(11));
  anonymous_bytes_ = kReceiveBytes + 1;
  watch_.Look();
  ASSERT_THAT(first.ends, SizeIs(1));
  EXPECT_THAT(first.ends[0], IsExhausted("memory"));
  EXPECT_THAT(second.ends, SizeIs(1));
  EXPECT_THAT(third.ends, IsEmpty());
  for (const FakeRead& read : one) EXPECT_THAT(read.ends, IsEmpty());
  EXPECT_EQ(watch_.ended_calls(), 2);
}

// Its calls are never old, and another owner's are.
TEST_F(MemoryWatchTest, OwnerThatBeginsAgainAtOnceStaysTheGreediest) {
  {
    const FakeRead reads[] = {{reads_, kTwo}, {reads_, kTwo}, {reads_, kTwo}, {reads_, kTwo}};
    clock_.Advance(absl::Milliseconds(26));
    anonymous_bytes_ = kReceiveBytes + 1;
    watch_.Look();
    EXPECT_EQ(watch_.ended_calls(), 2);
  }
  const FakeRead honest(reads_, kOne);
  clock_.Advance(absl::Milliseconds(26));
  const FakeRead again(reads_, kTwo);
  clock_.Advance(absl::Milliseconds(1));
  watch_.Look();
  EXPECT_THAT(again.ends, IsEmpty()) << "it has just begun";
  anonymous_bytes_ = kReceiveBytes * 3 / 2 + 1;
  watch_.Look();
  EXPECT_THAT(again.ends, SizeIs(1));
  EXPECT_THAT(honest.ends, IsEmpty());
  watch_.Look();
  EXPECT_THAT(honest.ends, SizeIs(1)) << "the memory is needed";
}

TEST_F(MemoryWatchTest, OwnerIsTheGreediestForASecond) {
  {
    const FakeRead read(reads_, kTwo);
    clock_.Advance(absl::Milliseconds(26));
    anonymous_bytes_ = kReceiveBytes + 1;
    watch_.Look();
  }
  const FakeRead other(reads_, kOne);
  clock_.Advance(absl::Milliseconds(1001));
  watch_.Look();
  EXPECT_THAT(other.ends, SizeIs(1));
}

TEST_F(MemoryWatchTest, FreedMemoryEndsNoRead) {
  const FakeRead read(reads_, kOne);
  clock_.Advance(absl::Milliseconds(26));
  anonymous_bytes_ = kReceiveBytes;
  watch_.Look();
  EXPECT_EQ(trims_, 1);
  clock_.Advance(absl::Milliseconds(5));
  anonymous_bytes_ = kReceiveBytes + 1;
  watch_.Look();
  EXPECT_THAT(read.ends, IsEmpty()) << "the rest may be freed memory";
  clock_.Advance(absl::Milliseconds(20));
  watch_.Look();
  EXPECT_EQ(trims_, 2);
  EXPECT_THAT(read.ends, SizeIs(1));
}

TEST_F(MemoryWatchTest, FreedMemoryFarAboveTheBudgetEndsNoRead) {
  const FakeRead read(reads_, kOne);
  clock_.Advance(absl::Milliseconds(26));
  freed_bytes_ = kReceiveBytes;
  for (int i = 0; i < 2; ++i) {  // the second time soon after a trim
    anonymous_bytes_ = 2 * kReceiveBytes;
    watch_.Look();
    EXPECT_EQ(trims_, i + 1);
  }
  EXPECT_THAT(read.ends, IsEmpty());
}

TEST_F(MemoryWatchTest, StreamsEndFarAboveTheBudgetIfNoOtherMessageIsUnderWay) {
  const FakeRead stream(reads_, kOne, /*is_open_stream=*/true);
  clock_.Advance(absl::Milliseconds(26));
  anonymous_bytes_ = kReceiveBytes * 3 / 2;
  watch_.Look();
  EXPECT_THAT(stream.ends, IsEmpty()) << "it may be idle";
  ++anonymous_bytes_;
  {
    const FakeRead read(reads_, kTwo);
    clock_.Advance(absl::Milliseconds(11));
    watch_.Look();
    EXPECT_THAT(read.ends, SizeIs(1));
    EXPECT_THAT(stream.ends, IsEmpty());
  }
  watch_.Look();
  EXPECT_THAT(stream.ends, SizeIs(1));
}

TEST_F(MemoryWatchTest, WhatBudgetsHaveCountedEndsNothing) {
  const FakeRead read(reads_, kOne);
  clock_.Advance(absl::Seconds(1));
  accounted_bytes_ = kReceiveBytes;
  anonymous_bytes_ = 2 * kReceiveBytes;
  watch_.Look();
  EXPECT_THAT(read.ends, IsEmpty());
}

TEST_F(MemoryWatchTest, FreedMemoryThatLiesUnusedForSecondsGoesBack) {
  free_bytes_ = 100 * limits::kMiB;
  for (int second = 0; second < 4; ++second) {
    watch_.Look();
    clock_.Advance(absl::Seconds(1));
    EXPECT_EQ(trims_, 0);
  }
  watch_.Look();
  EXPECT_EQ(trims_, 1);
}

TEST_F(MemoryWatchTest, FreedMemoryThatIsUsedAgainStays) {
  for (int second = 0; second < 20; ++second) {
    free_bytes_ = second % 3 == 0 ? 0 : 100 * limits::kMiB;
    watch_.Look();
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(trims_, 0);
}

TEST_F(MemoryWatchTest, BuffersThatLieUnusedGoBackButForAFloor) {
  { const PooledBuffer burst = pool_.Allocate(64 * limits::kMiB); }
  { const PooledBuffer small = pool_.Allocate(8 * limits::kMiB); }
  watch_.Look();
  clock_.Advance(absl::Milliseconds(MemoryWatch::kUnusedMs));
  watch_.Look();
  EXPECT_EQ(pool_.kept_bytes(), 8 * limits::kMiB);
}

TEST_F(MemoryWatchTest, RestsLongOnlyWhereNoMessageMayCome) {
  EXPECT_GE(watch_.Look(), absl::Seconds(1));
  const FakeRead stream(reads_, kTwo, /*is_open_stream=*/true);
  EXPECT_LE(watch_.Look(), absl::Milliseconds(50));
  const FakeRead read(reads_, kOne);
  EXPECT_LE(watch_.Look(), absl::Milliseconds(20));
}

}  // namespace
}  // namespace rope::server
