// A batcher over a device that runs a batch only when the test allows it. A test blocks the device,
// queues the requests that are to form one batch, and then lets the device run.
#ifndef ROPE_TESTS_SUPPORT_HELD_BATCHER_H_
#define ROPE_TESTS_SUPPORT_HELD_BATCHER_H_

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "proto/mutex.h"
#include "server/engine/batcher.h"
#include "tests/support/fake_clock.h"
#include "tests/support/received_request.h"
#include "tests/support/status_matchers.h"

namespace rope::testing {

inline constexpr server::Batcher::Options kHeldOptions = {.direct_bytes_max = 100,
                                                          .bytes_max = 1000,
                                                          .tokens_max = 1000,
                                                          .requests_max = 10,
                                                          .slice_bytes_max = 400,
                                                          .direct_slots = 1};
// Larger than what runs on its caller's thread, smaller than a slice.
inline constexpr int64_t kQueued = 101;

// See above. Each token is one byte unless a test says otherwise.
class HeldBatcher : public ::testing::Test {
 protected:
  struct Answer {
    std::string id;
    absl::Status status;
    std::thread::id thread;
  };

  void Start(const server::Batcher::Options& options = kHeldOptions) {
    batcher_ = std::make_unique<server::Batcher>(
        options, clock_, [this](absl::Span<server::Slice> slices) { RunBatch(slices); },
        [this](const server::BatchReport& report) {
          proto::MutexLock lock(&mutex_);
          reports_.push_back(report);
          reports_.back().device = {};  // a view into the request, which is about to be destroyed
          devices_.emplace_back(report.device);
        });
  }

  // Starts one whose options `change` has changed.
  template <typename Change>
  void StartWith(const Change& change) {
    server::Batcher::Options options = kHeldOptions;
    change(options);
    Start(options);
  }

  void TearDown() override {
    Allow(1 << 20);
    batcher_.reset();
    for (const auto& [id, count] : answer_counts_) EXPECT_EQ(count, 1) << id;
  }

  std::unique_ptr<server::Request> MakeRequest(const std::string& id, int64_t tokens,
                                               uint64_t session = 1) {
    std::unique_ptr<server::Request> request = EmptyRequest(id, session);
    request->plan.tokens = tokens;
    request->plan.bytes_per_token = 1;
    request->arrival.transport = server::Transport::kStream;  // so that it may gather
    request->arrival.cancelled = std::make_shared<std::atomic<bool>>(false);
    request->done = [this](std::unique_ptr<server::Request> finished, const absl::Status& status) {
      proto::MutexLock lock(&mutex_);
      changed_.SignalAll();
      ++answer_counts_[finished->arrival.id];
      answers_.push_back({finished->arrival.id, status, std::this_thread::get_id()});
    };
    return request;
  }

  // From a thread that has more events, so that the request may gather.
  void EnqueueGathering(std::unique_ptr<server::Request> request) {
    request->run.enqueued = clock_.Now();
    EXPECT_THAT(batcher_->Enqueue(request), IsOk());
    EXPECT_EQ(request, nullptr);
  }
  void EnqueueGathering(const std::string& id, int64_t tokens) {
    EnqueueGathering(MakeRequest(id, tokens));
  }

  // From a thread that has no more events.
  void Enqueue(std::unique_ptr<server::Request> request) {
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
  // The reports, in order; the device names are in devices_.
  std::vector<server::BatchReport> Reports() {
    proto::MutexLock lock(&mutex_);
    return reports_;
  }
  std::vector<std::string> DeviceRouter() {
    proto::MutexLock lock(&mutex_);
    return devices_;
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

  void RunBatch(absl::Span<server::Slice> slices) {
    proto::MutexLock lock(&mutex_);
    std::vector<std::string> batch;
    for (server::Slice& slice : slices) {
      slice.request->run.device = "held";
      batch.push_back(absl::StrCat(slice.request->arrival.id, " ", slice.begin, "-", slice.end));
      if (batch.back() == failing_slice_) slice.status = absl::InternalError("device: broken");
      if (const auto end = ends_.extract(batch.back()); !end.empty()) slice.end = end.mapped();
    }
    batches_.push_back(batch);
    changed_.SignalAll();
    while (allowed_ == 0) changed_.Wait(&mutex_);
    --allowed_;
  }

  FakeClock clock_;
  std::string failing_slice_;
  std::map<std::string, int64_t>
      ends_;  // of a slice "id begin-end" that the device ends earlier, once
  proto::Mutex mutex_;
  proto::CondVar changed_;  // signals changes of the members below
  std::vector<std::vector<std::string>> batches_ ABSL_GUARDED_BY(mutex_);
  std::vector<server::BatchReport> reports_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> devices_ ABSL_GUARDED_BY(mutex_);
  std::vector<Answer> answers_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> answer_counts_ ABSL_GUARDED_BY(mutex_);
  int64_t allowed_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<server::Batcher> batcher_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_HELD_BATCHER_H_
