#include "server/engine/batcher.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/error.h"

namespace rope::server {
namespace {

constexpr Batcher::Options kDefaults;
static_assert(kDefaults.gathered_bytes_max < kDefaults.slice_bytes_max &&
              kDefaults.slice_bytes_max < kDefaults.bytes_max);

// Calls `done`. A request in place that has begun to run may have changed its input, so its error
// is marked as executed.
void Complete(std::unique_ptr<Request> request, const absl::Status& status) {
  const Request::Done done = std::move(request->done);
  const bool changed = !status.ok() && request->run.began && request->plan.IsInPlace();
  done(std::move(request), changed ? MarkMayHaveExecuted(status) : status);
}

// Whether the client has given up: cancelled, or past its deadline.
bool HasEnded(const Request& request, absl::Time now) {
  return request.arrival.IsCancelled() || request.arrival.deadline <= now;
}

}  // namespace

Batcher::Batcher(const Options& options, const Clock& clock, RunBatch run_batch, OnBatch on_batch)
    : options_(options),
      clock_(clock),
      run_batch_(std::move(run_batch)),
      on_batch_(std::move(on_batch)),
      thread_([this] { BatchLoop(); }) {}

Batcher::~Batcher() {
  Drain();
}

// Decides under mutex_ where the request runs; a direct batch runs after the lock is released.
// Two counters cover a direct batch. direct_running_ makes the device busy, and falls as soon as
// the rotation is done. direct_unfinished_ counts requests from here until their answer is sent,
// and keeps Drain waiting.
absl::Status Batcher::Enqueue(std::unique_ptr<Request>& request) {
  const bool is_large = request->plan.bytes() > options_.gathered_bytes_max;
  if (is_large) RunGathered();  // so that gathered small requests do not wait for this one
  Batch batch;
  {
    proto::MutexLock lock(&mutex_);
    if (drain_.draining) return Draining();
    const bool direct = request->plan.bytes() <= options_.direct_bytes_max;
    // A large request queues while another has slices left. If it ran here, the thread would run a
    // slice of each before it looks at its events.
    const bool is_burst = is_large && !gathered_.empty();
    if (!IsFree() || !direct || is_burst) {
      PushGathered();  // first, to keep the order of arrival
      Push(std::move(request));
      return absl::OkStatus();
    }
    // Others would pay for a look at the queue of their thread, 0.6 of the 20 microseconds of a
    // lone client.
    const bool gathers = request->arrival.transport == Transport::kStream || !gathered_.empty();
    ++direct_unfinished_;
    gathered_.push_back(std::move(request));
    if (!is_large && gathers && !HasGatheredEnough()) return absl::OkStatus();
    batch = StartGathered();
  }
  RunDirect(batch);
  return absl::OkStatus();
}

absl::Status Batcher::Queue(std::unique_ptr<Request>& request) {
  proto::MutexLock lock(&mutex_);
  if (drain_.draining) return Draining();
  Push(std::move(request));
  return absl::OkStatus();
}

bool Batcher::RunGathered() {
  Batch batch;
  {
    proto::MutexLock lock(&mutex_);
    if (gathered_.empty()) return false;
    if (!IsFree()) {
      PushGathered();
      return false;
    }
    batch = StartGathered();
  }
  RunDirect(batch);
  return true;
}

Batcher::Batch Batcher::StartGathered() {
  Batch batch;
  batch.started = clock_.Now();
  const int64_t requests_max = std::min(options_.gathered_requests_max, options_.requests_max);
  while (!gathered_.empty() && batch.bytes < options_.gathered_bytes_max &&
         std::ssize(batch.slices) < requests_max && ReachedCap(batch) == ClosedBy::kDrained) {
    const bool is_large = gathered_.front()->plan.bytes() > options_.gathered_bytes_max;
    if (is_large && !batch.slices.empty()) break;
    std::unique_ptr<Request> request = std::move(gathered_.front());
    gathered_.pop_front();
    if (HasEnded(*request, batch.started)) {
      batch.expired.push_back(std::move(request));
    } else if (!AddSlice(std::move(request), /*whole=*/!options_.slices_direct, batch)) {
      break;
    }
  }
  direct_running_.fetch_add(1);
  return batch;
}

void Batcher::PushGathered() {
  direct_unfinished_ -= static_cast<int>(gathered_.size());
  for (std::unique_ptr<Request>& request : gathered_) Push(std::move(request));
  gathered_.clear();
}

bool Batcher::IsFree() const {
  return !batch_running_ && queue_.empty() && direct_running_.load() < options_.direct_slots;
}

void Batcher::Push(std::unique_ptr<Request> request) {
  const uint64_t session = request->arrival.session;
  queue_.Push(session, std::move(request));
  work_.Signal();
}

bool Batcher::HasGatheredEnough() const {
  int64_t requests = 0;
  int64_t bytes = 0;
  for (const std::unique_ptr<Request>& request : gathered_) {
    if (request->plan.bytes() > options_.gathered_bytes_max) continue;  // the rest of a large one
    ++requests;
    bytes += request->plan.bytes();
  }
  return requests >= std::min(options_.gathered_requests_max, options_.requests_max) ||
         bytes >= options_.gathered_bytes_max;
}

void Batcher::RunDirect(Batch& batch) {
  auto ended = static_cast<int>(batch.requests.size() + batch.expired.size());
  Run(batch);
  RequestList unfinished = TakeUnfinished(batch);
  // Before the answers, so that a client's next request finds the device free again.
  direct_running_.fetch_sub(1);
  Finish(batch);
  // After the answers. Draining may end, and the batcher be destroyed, once this reaches 0.
  proto::MutexLock lock(&mutex_);
  for (std::unique_ptr<Request>& request : unfinished) {
    if (drain_.draining) {
      Push(std::move(request));  // the batch thread runs the rest
    } else {
      gathered_.push_back(std::move(request));
      --ended;
    }
  }
  direct_unfinished_ -= ended;
  if (drain_.draining) work_.Signal();
}

void Batcher::Run(Batch& batch) {
  AnswerExpired(batch);
  if (batch.slices.empty()) return;
  run_batch_(absl::MakeSpan(batch.slices));
  const absl::Time finished = clock_.Now();
  BatchReport report = {.closed_by = batch.closed_by,
                        .device = batch.slices.front().request->run.device,
                        .started = batch.started,
                        .finished = finished};
  for (const Slice& slice : batch.slices) {
    if (slice.WasLeftOut()) {
      if (report.closed_by != ClosedBy::kDirect) report.closed_by = ClosedBy::kRows;
      continue;
    }
    Request& request = *slice.request;
    request.run.tokens_taken = slice.end;
    if (slice.begin == 0) {
      request.stages.queue = Microseconds(batch.started - request.run.enqueued);
    }
    request.stages.execute += Microseconds(finished - batch.started);
    ++report.requests;
    report.bytes += (slice.end - slice.begin) * request.plan.bytes_per_token;
  }
  if (on_batch_) on_batch_(report);
}

// batch_running_ makes the device busy while a batch runs, so that no direct batch starts.
void Batcher::BatchLoop() {
  while (true) {
    Batch batch;
    {
      proto::MutexLock lock(&mutex_);
      while (queue_.empty()) {
        if (drain_.draining && direct_unfinished_ == 0) return drain_.End();
        work_.Wait(&mutex_);
      }
      batch = PopBatch();
      batch_running_ = true;
    }
    Run(batch);
    RequestList unfinished = TakeUnfinished(batch);
    {
      proto::MutexLock lock(&mutex_);
      batch_running_ = false;
      for (std::unique_ptr<Request>& request : unfinished) Push(std::move(request));
    }
    Finish(batch);
  }
}

// The batch owns its requests while it runs, so that no request has two slices in it.
Batcher::Batch Batcher::PopBatch() {
  Batch batch;
  batch.started = clock_.Now();
  while (!queue_.empty() && ReachedCap(batch) == ClosedBy::kDrained) {
    std::unique_ptr<Request> request = queue_.Pop();
    if (drain_.abandoned || HasEnded(*request, batch.started)) {
      batch.expired.push_back(std::move(request));
    } else {
      AddSlice(std::move(request), /*whole=*/false, batch);
    }
  }
  batch.closed_by = ReachedCap(batch);
  return batch;
}

bool Batcher::AddSlice(std::unique_ptr<Request> request, bool whole, Batch& batch) const {
  const Plan& plan = request->plan;
  const int64_t begin = request->run.tokens_taken;
  const int64_t end = begin + SliceTokens(*request, whole, batch);
  batch.slices.push_back({request.get(), begin, end, absl::OkStatus()});
  batch.requests.push_back(std::move(request));
  batch.tokens += end - begin;
  batch.bytes += (end - begin) * plan.bytes_per_token;
  batch.jobs += plan.jobs.Of(end - begin);
  return end == plan.tokens;
}

ClosedBy Batcher::ReachedCap(const Batch& batch) const {
  if (batch.bytes >= options_.bytes_max) return ClosedBy::kBytes;
  if (batch.tokens >= options_.tokens_max) return ClosedBy::kTokens;
  if (static_cast<int64_t>(batch.slices.size()) >= options_.requests_max) {
    return ClosedBy::kRequests;
  }
  if (batch.jobs >= options_.jobs_max) return ClosedBy::kJobs;
  return ClosedBy::kDrained;
}

// Tokens of the next slice: what is left, what fits a slice and the batch's caps, and at least one,
// so that a token larger than a cap still runs.
int64_t Batcher::SliceTokens(const Request& request, bool whole, const Batch& batch) const {
  const int64_t left = request.plan.tokens - request.run.tokens_taken;
  // Channels that are not adjacent are copied, and admission counts one slice of them.
  whole = whole && std::ranges::none_of(request.plan.tensors, &TensorPlan::IsGathered);
  const int64_t bytes = whole
                            ? options_.direct_bytes_max
                            : std::min(options_.slice_bytes_max, options_.bytes_max - batch.bytes);
  const int64_t by_bytes = bytes / std::max<int64_t>(request.plan.bytes_per_token, 1);
  const int64_t by_tokens = options_.tokens_max - batch.tokens;
  const int64_t by_jobs = request.plan.jobs.TokensWithin(options_.jobs_max - batch.jobs, left);
  return std::min(left, std::max<int64_t>(1, std::min({by_bytes, by_tokens, by_jobs})));
}

void Batcher::AnswerExpired(Batch& batch) {
  for (std::unique_ptr<Request>& request : batch.expired) {
    const absl::Status status =
        request->arrival.IsCancelled()
            ? MakeError({.reason = Reason::kCancelled}, "request: cancelled while it waited")
        : request->arrival.deadline <= batch.started
            ? MakeError({.reason = Reason::kDeadline},
                        "request: its deadline passed while it waited")
            : Draining();
    Complete(std::move(request), status);
  }
}

Batcher::RequestList Batcher::TakeUnfinished(Batch& batch) {
  RequestList taken;
  for (const bool has_run : {false, true}) {
    for (size_t i = 0; i < batch.slices.size(); ++i) {
      const Slice& slice = batch.slices[i];
      if (batch.requests[i] == nullptr || !slice.status.ok() || slice.IsLast()) continue;
      if (slice.WasLeftOut() != has_run) taken.push_back(std::move(batch.requests[i]));
    }
  }
  return taken;
}

void Batcher::Finish(Batch& batch) {
  for (size_t i = 0; i < batch.slices.size(); ++i) {
    if (batch.requests[i] == nullptr) continue;
    Complete(std::move(batch.requests[i]), batch.slices[i].status);
  }
}

// The batch thread visits every request of abandoned queues too, but PopBatch answers it instead of
// running it.
void Batcher::Drain(absl::Duration timeout) {
  if (!thread_.joinable()) return;
  const absl::Time end = clock_.Now() + timeout;
  {
    proto::MutexLock lock(&mutex_);
    drain_.draining = true;
    PushGathered();
    work_.Signal();
    drain_.Await(&mutex_, clock_, end);
  }
  thread_.join();
}

void Batcher::StopWaiting() {
  proto::MutexLock lock(&mutex_);
  drain_.Abandon();
}

}  // namespace rope::server
