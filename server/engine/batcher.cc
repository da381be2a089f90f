#include "server/engine/batcher.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "server/error.h"

namespace rope::server {
namespace {

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

bool AreOfOneSession(const Slice& a, const Slice& b) {
  return a.request->arrival.session == b.request->arrival.session;
}

// Bytes of table rows that a slice of the plan builds, on average.
int64_t SliceBuildBytes(const Plan& plan) {
  const auto& ends = plan.building.slice_ends;
  return ends == nullptr ? plan.building.bytes : plan.building.bytes / (std::ssize(*ends) + 1);
}

// The latest end of the request's next slice.
int64_t SliceStop(const Request& request) {
  const auto& ends = request.plan.building.slice_ends;
  if (ends == nullptr) return request.plan.tokens;
  const auto next = std::upper_bound(ends->begin(), ends->end(), request.run.tokens_taken);
  return next == ends->end() ? request.plan.tokens : *next;
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
    const bool direct = request->plan.bytes() <= options_.direct_bytes_max &&
                        !(is_large && request->plan.StoresObject());
    // A large request queues while another has slices left. If it ran here, the thread would run a
    // slice of each before it looks at its events.
    const bool is_burst = is_large && !gathered_.empty();
    if (!IsFree() || !direct || is_burst) {
      PushGathered();  // first, to keep the order of arrival
      Push(std::move(request));
      return absl::OkStatus();
    }
    ++direct_unfinished_;
    gathered_.push_back(std::move(request));
    if (!is_large && Gathers() && !HasGatheredEnough()) return absl::OkStatus();
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

// If the device has become busy since the requests gathered, they move to the queues instead of
// running beside the batch thread.
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

// A request with slices left runs by itself, so that small ones behind it wait for one slice.
Batcher::Batch Batcher::StartGathered() {
  Batch batch;
  batch.started = clock_.Now();
  const int64_t requests_max = std::min(options_.gathered_requests_max, options_.requests_max);
  while (!gathered_.empty() && batch.bytes < options_.gathered_bytes_max &&
         std::ssize(batch.slices) < requests_max && ReachedCap(batch) == ClosedBy::kDrained) {
    Request& next = *gathered_.front();
    const bool is_large = next.plan.bytes() > options_.gathered_bytes_max;
    if (is_large && !batch.slices.empty()) break;
    std::unique_ptr<Request> request = std::move(gathered_.front());
    gathered_.pop_front();
    if (HasEnded(next, batch.started)) {
      batch.expired.push_back(std::move(request));
    } else if (AddSlice(next, batch)) {
      batch.finishing.push_back(std::move(request));
    } else {
      batch.unfinished = std::move(request);
      break;
    }
  }
  const bool is_lone = absl::c_adjacent_find(batch.slices, AreOfOneSession) == batch.slices.end();
  lone_batches_ = is_lone ? lone_batches_ + 1 : 0;
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
  int64_t tokens = 0;
  int64_t build_bytes = 0;
  for (const std::unique_ptr<Request>& request : gathered_) {
    if (request->plan.bytes() > options_.gathered_bytes_max) continue;  // the rest of a large one
    ++requests;
    bytes += request->plan.bytes();
    tokens += request->plan.tokens;
    build_bytes += SliceBuildBytes(request->plan);
  }
  return requests >= std::min(options_.gathered_requests_max, options_.requests_max) ||
         bytes >= options_.gathered_bytes_max || tokens >= options_.tokens_max ||
         build_bytes >= options_.build_bytes_max;
}

void Batcher::RunDirect(Batch& batch) {
  const auto requests = static_cast<int>(batch.finishing.size() + batch.expired.size());
  const bool has_more = batch.unfinished != nullptr;
  Run(batch);
  // Before the answers, so that a client's next request finds the device free again.
  direct_running_.fetch_sub(1);
  Finish(batch);
  // After the answers. Draining may end, and the batcher be destroyed, once this reaches 0.
  proto::MutexLock lock(&mutex_);
  direct_unfinished_ -= requests;
  if (batch.unfinished != nullptr && !drain_.draining) {
    gathered_.push_back(std::move(batch.unfinished));
  } else if (has_more) {
    --direct_unfinished_;  // it has failed, or the batch thread runs the rest
    if (batch.unfinished != nullptr) Push(std::move(batch.unfinished));
  }
  if (drain_.draining) work_.Signal();
}

void Batcher::Run(Batch& batch) {
  AnswerExpired(batch);
  if (batch.slices.empty()) return;
  run_batch_(absl::MakeSpan(batch.slices));
  batch.finished = clock_.Now();
  Report(batch);
}

// The batch thread. mutex_ is held to wait and to pop a batch, and released while the batch runs
// and completes. batch_running_ makes the device busy meanwhile, so that no direct batch starts.
// The loop ends when draining, with empty queues and no direct request unanswered.
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
    {
      proto::MutexLock lock(&mutex_);
      batch_running_ = false;
    }
    Finish(batch);
  }
}

// One round-robin over the sessions, with mutex_ held. Each visit takes one slice and ends the
// session's turn. The loop stops at a cap, or when it has visited every remaining session in a row
// without taking anything: each of them has given its slice to this batch.
Batcher::Batch Batcher::PopBatch() {
  Batch batch;
  batch.started = clock_.Now();
  ++batch_number_;
  size_t idle_turns = 0;  // visits in a row that took nothing
  while (!queue_.empty() && idle_turns < queue_.sessions() &&
         ReachedCap(batch) == ClosedBy::kDrained) {
    idle_turns = PopInto(batch) ? 0 : idle_turns + 1;
  }
  batch.closed_by = ReachedCap(batch);
  return batch;
}

// A request that is taken completely moves to `batch.finishing`. A larger one gives one slice and
// goes to the back of its session's queue. Its `last_batch` then keeps this function from taking a
// second slice into the same batch. The slice has a plain pointer to the request, which stays valid
// because only the batch thread removes requests from the queues.
bool Batcher::PopInto(Batch& batch) {
  if (queue_.front()->run.last_batch == batch_number_) {  // has given its slice already
    queue_.Skip();
    return false;
  }
  std::unique_ptr<Request> request = queue_.Pop();
  if (drain_.abandoned || HasEnded(*request, batch.started)) {
    batch.expired.push_back(std::move(request));
    return true;
  }
  request->run.last_batch = batch_number_;
  if (AddSlice(*request, batch)) {
    batch.finishing.push_back(std::move(request));
  } else {
    const uint64_t session = request->arrival.session;
    queue_.Push(session, std::move(request));
  }
  return true;
}

bool Batcher::AddSlice(Request& request, Batch& batch) const {
  const int64_t begin = request.run.tokens_taken;
  const int64_t end = begin + SliceTokens(request, batch);
  request.run.tokens_taken = end;
  batch.slices.push_back({&request, begin, end, absl::OkStatus()});
  batch.tokens += end - begin;
  batch.bytes += (end - begin) * request.plan.bytes_per_token;
  batch.build_bytes += SliceBuildBytes(request.plan);
  batch.jobs += request.plan.jobs.Of(end - begin);
  return end == request.plan.tokens;
}

ClosedBy Batcher::ReachedCap(const Batch& batch) const {
  if (batch.bytes >= options_.bytes_max) return ClosedBy::kBytes;
  if (batch.tokens >= options_.tokens_max) return ClosedBy::kTokens;
  if (static_cast<int64_t>(batch.slices.size()) >= options_.requests_max) {
    return ClosedBy::kRequests;
  }
  if (batch.build_bytes >= options_.build_bytes_max) return ClosedBy::kRows;
  if (batch.jobs >= options_.jobs_max) return ClosedBy::kJobs;
  return ClosedBy::kDrained;
}

// Tokens of the next slice: what is left before SliceStop, what fits a slice and the batch's caps,
// and at least one, so that a token larger than a cap still runs.
int64_t Batcher::SliceTokens(const Request& request, const Batch& batch) const {
  const int64_t left = SliceStop(request) - request.run.tokens_taken;
  const int64_t bytes = std::min(options_.slice_bytes_max, options_.bytes_max - batch.bytes);
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

void Batcher::Report(const Batch& batch) const {
  if (!on_batch_) return;
  on_batch_({.closed_by = batch.closed_by,
             .device = batch.slices.front().request->run.device,
             .requests = static_cast<int64_t>(batch.slices.size()),
             .tokens = batch.tokens,
             .bytes = batch.bytes,
             .started = batch.started,
             .finished = batch.finished});
}

// Called without a lock, after the batch has run. `finishing` holds the owners of the slices that
// were their request's last, in the order of the slices; one walk over both matches them. A slice
// that failed early ends its request: Extract takes the request out of the batch, or out of the
// queues, where its rest waits.
void Batcher::Finish(Batch& batch) {
  auto finishing = batch.finishing.begin();  // in the order of batch.slices
  for (Slice& slice : batch.slices) {
    Request& request = *slice.request;
    if (slice.begin == 0) {
      request.stages.queue = Microseconds(batch.started - request.run.enqueued);
    }
    request.stages.execute += Microseconds(batch.finished - batch.started);
    if (finishing != batch.finishing.end() && finishing->get() == &request) {
      Complete(std::move(*finishing++), slice.status);
    } else if (!slice.status.ok()) {
      Complete(Extract(&request, batch), slice.status);
    }
  }
}

std::unique_ptr<Request> Batcher::Extract(const Request* request, Batch& batch) {
  if (batch.unfinished.get() == request) return std::move(batch.unfinished);
  proto::MutexLock lock(&mutex_);
  return queue_.Extract(
      request->arrival.session,
      [request](const std::unique_ptr<Request>& queued) { return queued.get() == request; });
}

// Makes Enqueue refuse, runs what has gathered, waits until the batch thread has ended or the time
// is up, then joins it. The batch thread visits every request of abandoned queues too, but PopInto
// answers it instead of running it.
void Batcher::Drain(absl::Duration timeout) {
  const absl::Time end = clock_.Now() + timeout;
  {
    proto::MutexLock lock(&mutex_);
    drain_.draining = true;
    work_.Signal();
  }
  while (RunGathered()) continue;
  if (!thread_.joinable()) return;
  {
    proto::MutexLock lock(&mutex_);
    drain_.Await(&mutex_, clock_, end);
  }
  thread_.join();
}

void Batcher::StopWaiting() {
  proto::MutexLock lock(&mutex_);
  drain_.Abandon();
}

}  // namespace rope::server
