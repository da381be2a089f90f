// Which entry is next, and which of them run together.
#include "server/engine/batcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "proto/mutex.h"
#include "server/clock.h"
#include "server/engine/session_queue.h"
#include "server/error.h"
#include "tests/support/fake_clock.h"
#include "tests/support/received_request.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::EmptyRequest;
using ::rope::testing::FakeClock;

// How a wait for the end of queues ends. That sessions take turns is proved by
// engine_simulation_test.cc.

class DrainStateTest : public ::testing::Test {
 protected:
  // Counts how often it is asked: by Await before each wait.
  class CountingClock final : public Clock {
   public:
    absl::Time Now() const override {
      ++asked;
      return absl::UnixEpoch();
    }
    mutable std::atomic<int> asked = 0;
  };

  void Await(absl::Duration timeout) {
    proto::MutexLock lock(&mutex_);
    drain_.Await(&mutex_, clock_, absl::UnixEpoch() + timeout);
  }

  CountingClock clock_;
  proto::Mutex mutex_;
  DrainState drain_;
};

TEST_F(DrainStateTest, OnlyAReasonEndsAWait) {
  for (const absl::Duration timeout : {absl::Hours(1), absl::InfiniteDuration()}) {
    clock_.asked = 0;
    drain_.ended = false;
    std::atomic<bool> returned = false;
    std::thread waiter([&] {
      Await(timeout);
      returned = true;
    });
    while (clock_.asked < 3 && !returned) drain_.changed.SignalAll();
    {
      proto::MutexLock lock(&mutex_);
      EXPECT_FALSE(drain_.abandoned);
      drain_.End();
    }
    waiter.join();
    EXPECT_GE(clock_.asked, 3);
    EXPECT_FALSE(drain_.abandoned);
  }
  drain_.ended = false;
  Await(absl::ZeroDuration());
  EXPECT_TRUE(drain_.abandoned) << "the time is up";
  Await(absl::InfiniteDuration());  // nothing is awaited of queues that are abandoned
  EXPECT_FALSE(drain_.ended);
}

// Which requests run on which thread, and what threads see of each other. What holds in every
// history (answers, turns, order, caps, reports) is proved by engine_simulation_test.cc.

constexpr Batcher::Options kHeldOptions = {.direct_bytes_max = 100,
                                           .bytes_max = 1000,
                                           .tokens_max = 1000,
                                           .requests_max = 10,
                                           .slice_bytes_max = 400,
                                           .direct_slots = 1};
// Larger than what runs on its caller's thread, smaller than a slice.
constexpr int64_t kQueued = 101;

// A batcher over a device that runs a batch only when the test allows it. A test blocks the device,
// queues the requests that are to form one batch, and then lets the device run. Each token is one
// byte.
class BatcherTest : public ::testing::Test {
 protected:
  struct Answer {
    std::string id;
    absl::Status status;
    std::thread::id thread;
  };

  void Start(const Batcher::Options& options = kHeldOptions) {
    batcher_ = std::make_unique<Batcher>(options, clock_,
                                         [this](absl::Span<Slice> slices) { RunBatch(slices); });
  }

  // Starts one whose options `change` has changed.
  template <typename Change>
  void StartWith(const Change& change) {
    Batcher::Options options = kHeldOptions;
    change(options);
    Start(options);
  }

  void TearDown() override {
    Allow(1 << 20);
    batcher_.reset();
    for (const auto& [id, count] : answer_counts_) EXPECT_EQ(count, 1) << id;
  }

  std::unique_ptr<Request> MakeRequest(const std::string& id, int64_t tokens,
                                       uint64_t session = 1) {
    std::unique_ptr<Request> request = EmptyRequest(id, session);
    request->plan.tokens = tokens;
    request->plan.bytes_per_token = 1;
    request->arrival.transport = Transport::kStream;  // so that it may gather
    request->arrival.cancelled = std::make_shared<std::atomic<bool>>(false);
    request->done = [this](std::unique_ptr<Request> finished, const absl::Status& status) {
      proto::MutexLock lock(&mutex_);
      changed_.SignalAll();
      ++answer_counts_[finished->arrival.id];
      answers_.push_back({finished->arrival.id, status, std::this_thread::get_id()});
    };
    return request;
  }

  // From a thread that has more events, so that the request may gather.
  void EnqueueGathering(std::unique_ptr<Request> request) {
    request->run.enqueued = clock_.Now();
    EXPECT_THAT(batcher_->Enqueue(request), IsOk());
    EXPECT_EQ(request, nullptr);
  }
  void EnqueueGathering(const std::string& id, int64_t tokens) {
    EnqueueGathering(MakeRequest(id, tokens));
  }

  // From a thread that has no more events.
  void Enqueue(std::unique_ptr<Request> request) {
    EnqueueGathering(std::move(request));
    while (batcher_->RunGathered()) continue;
  }
  void Enqueue(const std::string& id, int64_t tokens, uint64_t session = 1) {
    Enqueue(MakeRequest(id, tokens, session));
  }

  // Occupies the device with a request "blocker" until the next Allow.
  void Block() {
    Enqueue("blocker", kQueued, 99);
    AwaitBatches(1);
  }

  // Lets `count` more batches end.
  void Allow(int64_t count) {
    proto::MutexLock lock(&mutex_);
    allowed_ += count;
    changed_.SignalAll();
  }

  void AwaitBatches(size_t count) {
    proto::MutexLock lock(&mutex_);
    while (batches_.size() < count) changed_.Wait(&mutex_);
  }

  void AwaitAnswers(size_t count) {
    proto::MutexLock lock(&mutex_);
    while (answers_.size() < count) changed_.Wait(&mutex_);
  }

  // "id begin-end" of each slice of a batch.
  std::vector<std::string> BatchAt(size_t index) {
    proto::MutexLock lock(&mutex_);
    return index < batches_.size() ? batches_[index] : std::vector<std::string>();
  }
  size_t BatchCount() {
    proto::MutexLock lock(&mutex_);
    return batches_.size();
  }
  Answer AnswerOf(const std::string& id) {
    proto::MutexLock lock(&mutex_);
    for (const Answer& answer : answers_) {
      if (answer.id == id) return answer;
    }
    return {"none", absl::UnknownError("not answered"), {}};
  }
  std::vector<std::string> AnsweredIds() {
    proto::MutexLock lock(&mutex_);
    std::vector<std::string> ids;
    for (const Answer& answer : answers_) ids.push_back(answer.id);
    return ids;
  }

  void RunBatch(absl::Span<Slice> slices) {
    proto::MutexLock lock(&mutex_);
    std::vector<std::string> batch;
    for (const Slice& slice : slices) {
      batch.push_back(absl::StrCat(slice.request->arrival.id, " ", slice.begin, "-", slice.end));
    }
    batches_.push_back(batch);
    changed_.SignalAll();
    while (allowed_ == 0) changed_.Wait(&mutex_);
    --allowed_;
  }

  FakeClock clock_;
  proto::Mutex mutex_;
  proto::CondVar changed_;  // signals changes of the members below
  std::vector<std::vector<std::string>> batches_ ABSL_GUARDED_BY(mutex_);
  std::vector<Answer> answers_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> answer_counts_ ABSL_GUARDED_BY(mutex_);
  int64_t allowed_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<Batcher> batcher_;
};

// Requests of more than 100 bytes run directly, in slices of 400.
constexpr Batcher::Options kSlicedOptions = [] {
  Batcher::Options options = kHeldOptions;
  options.direct_bytes_max = 10000;
  options.gathered_bytes_max = 100;
  return options;
}();

TEST_F(BatcherTest, SmallRequestOnAnIdleDeviceRunsOnItsCallersThreadAndNoOtherDoes) {
  Start();
  Allow(3);
  Enqueue("small", 100);
  EXPECT_EQ(AnswerOf("small").thread, std::this_thread::get_id());
  EXPECT_THAT(BatchAt(0), ElementsAre("small 0-100"));
  Enqueue("large", kQueued);
  auto planned = MakeRequest("planned", 5);  // by another thread
  planned->run.enqueued = clock_.Now();
  EXPECT_THAT(batcher_->Queue(planned), IsOk());
  AwaitAnswers(3);
  StartWith([](auto& options) { options.direct_slots = 0; });
  Allow(1);
  Enqueue("no slot", 1);
  AwaitAnswers(4);
  for (const char* id : {"large", "planned", "no slot"}) {
    EXPECT_NE(AnswerOf(id).thread, std::this_thread::get_id()) << id;
  }
}

TEST_F(BatcherTest, LargeDirectRequestRunsOneSliceAtATime) {
  Start(kSlicedOptions);
  Allow(5);
  EnqueueGathering("large", 900);
  EXPECT_THAT(BatchAt(0), ElementsAre("large 0-400"));
  EXPECT_EQ(BatchCount(), 1U) << "the thread looks at its events";
  EnqueueGathering("small", 5);
  EXPECT_TRUE(batcher_->RunGathered());
  EXPECT_THAT(BatchAt(1), ElementsAre("large 400-800"));
  EXPECT_TRUE(batcher_->RunGathered());
  EXPECT_THAT(BatchAt(2), ElementsAre("small 0-5"));
  EXPECT_THAT(AnsweredIds(), ElementsAre("small"));
  EXPECT_TRUE(batcher_->RunGathered());
  EXPECT_THAT(BatchAt(3), ElementsAre("large 800-900"));
  EXPECT_FALSE(batcher_->RunGathered());
  EXPECT_THAT(AnswerOf("large").status, IsOk());
  EXPECT_EQ(AnswerOf("large").thread, std::this_thread::get_id());
  // A burst takes one slice a call, and queues.
  Start(kSlicedOptions);
  Allow(10);
  EnqueueGathering("a", 900);
  EnqueueGathering("b", 900);
  EXPECT_THAT(BatchAt(4), ElementsAre("a 0-400"));
  EXPECT_THAT(BatchAt(5), ElementsAre("a 400-800"));
  AwaitAnswers(4);
  for (const char* id : {"a", "b"}) {
    EXPECT_THAT(AnswerOf(id).status, IsOk());
    EXPECT_NE(AnswerOf(id).thread, std::this_thread::get_id());
  }
}

TEST_F(BatcherTest, OnlyRequestsOfStreamsBeginToGather) {
  Start();
  Allow(1 << 20);
  auto alone = MakeRequest("at once", 5);
  alone->arrival.transport = Transport::kInline;
  EnqueueGathering(std::move(alone));
  EXPECT_EQ(BatchCount(), 1U);
  EnqueueGathering("streamed", 5);
  auto joins = MakeRequest("joins", 5);
  joins->arrival.transport = Transport::kInline;
  EnqueueGathering(std::move(joins));
  EXPECT_EQ(BatchCount(), 1U);
  EXPECT_TRUE(batcher_->RunGathered());
  EXPECT_THAT(BatchAt(1), ElementsAre("streamed 0-5", "joins 0-5"));
}

TEST_F(BatcherTest, GatheredRequestsRunWhenTheyAreEnough) {
  Batcher::Options options = kHeldOptions;
  options.gathered_requests_max = 3;
  options.gathered_bytes_max = 100;
  Start(options);
  Allow(5);
  for (const char* id : {"a", "b", "c", "d", "e"}) EnqueueGathering(id, 5);
  EXPECT_THAT(BatchAt(0), ElementsAre("a 0-5", "b 0-5", "c 0-5"));
  EXPECT_EQ(BatchCount(), 1U);
  EnqueueGathering("wide", 90);
  EXPECT_THAT(BatchAt(1), ElementsAre("d 0-5", "e 0-5", "wide 0-90"));
  options.gathered_bytes_max = 50;
  Start(options);
  EnqueueGathering("small", 5);
  EnqueueGathering("large", 51);  // no small one waits for it
  EXPECT_THAT(BatchAt(2), ElementsAre("small 0-5"));
  EXPECT_THAT(BatchAt(3), ElementsAre("large 0-51"));
  options.requests_max = 1;
  Start(options);
  EnqueueGathering("alone", 5);
  EXPECT_THAT(BatchAt(4), ElementsAre("alone 0-5"));
}

TEST_F(BatcherTest, FailureOfACallThatRanInPlaceSaysSo) {
  for (const bool in_place : {false, true}) {
    for (const bool ran : {false, true}) {
      Start();
      Block();
      auto large = MakeRequest(absl::StrCat("large", in_place, ran), 900);
      large->plan.tensors.resize(2);
      TensorPlan& tensor = large->plan.tensors.back();
      if (in_place) tensor.place = tensor.source = {Region::OfProcess(), 1, 0, 8};
      large->run.began = ran;
      const std::string id = large->arrival.id;
      const auto flag = large->arrival.cancelled;
      Enqueue(std::move(large));
      flag->store(true);
      Allow(1);
      batcher_->Drain();
      EXPECT_THAT(AnswerOf(id).status, Fails(absl::StatusCode::kCancelled, "while it waited"));
      EXPECT_EQ(proto::PartsOf(AnswerOf(id).status).may_have_executed, in_place && ran);
      EXPECT_FALSE(proto::PartsOf(AnswerOf("blocker").status).may_have_executed);
      answer_counts_.clear();
      batches_.clear();
    }
  }
}

TEST_F(BatcherTest, DrainWaitsForTheAnswerOfADirectRequest) {
  Start();
  Allow(1);
  proto::Notification answering;
  proto::Notification answered;
  std::atomic<bool> answer_ended = false;
  auto request = MakeRequest("direct", 5);
  request->done = [&](std::unique_ptr<Request>, const absl::Status&) {
    answering.Notify();
    answered.WaitForNotification();
    answer_ended = true;
  };
  std::thread caller([&] { Enqueue(std::move(request)); });
  answering.WaitForNotification();
  proto::Notification drained;
  std::thread drainer([&] {
    batcher_->Drain();
    EXPECT_TRUE(answer_ended);
    drained.Notify();
  });
  EXPECT_FALSE(drained.WaitForNotificationWithTimeout(std::chrono::milliseconds(20)));
  answered.Notify();
  caller.join();
  drainer.join();
}

TEST_F(BatcherTest, DeviceIsFreeAgainWhenTheAnswerIsRead) {
  Start();
  Allow(2);
  auto first = MakeRequest("first", 5);
  first->done = [this](std::unique_ptr<Request>, const absl::Status&) { Enqueue("second", 5); };
  Enqueue(std::move(first));
  EXPECT_EQ(AnswerOf("second").thread, std::this_thread::get_id());
}

TEST_F(BatcherTest, ManyCallersAreAllAnsweredOnce) {
  Start();
  Allow(1 << 20);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([this, caller] {
      for (int i = 0; i < 200; ++i) {
        auto request =
            MakeRequest(absl::StrCat(caller, "/", i), i * 7, static_cast<uint64_t>(caller));
        i % 2 == 0 ? EnqueueGathering(std::move(request)) : Enqueue(std::move(request));
        if (i % 5 == 0) batcher_->RunGathered();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  batcher_->Drain();
  EXPECT_THAT(AnsweredIds(), SizeIs(800));
}

}  // namespace
}  // namespace rope::server
