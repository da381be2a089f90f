#include "server/grpc/poll_loop.h"

#include <sched.h>

#include <algorithm>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "kernels/check.h"

namespace rope::server {
namespace {

// How long ends of reads count for their owner.
constexpr absl::Duration kEndsKept = absl::Seconds(1);

}  // namespace

// The reads form a doubly linked list through their calls, ordered by the time at which they began:
// Enter appends to the newest end, so a walk from oldest_ can stop at the first that began too
// late. Enter and Leave are O(1) and allocate nothing, because every message pays for them.

void MessageReads::Enter(Entry& entry, absl::string_view owner, bool is_open_stream) {
  entry.owner_ = owner;
  entry.is_open_stream_ = is_open_stream;
  entry.began_ = clock_.Now();
  entry.ended_at_ = absl::InfiniteFuture();
  proto::MutexLock lock(&mutex_);
  ROPE_CHECK(!entry.entered_);
  entry.entered_ = true;
  entry.older_ = newest_;
  entry.newer_ = nullptr;
  (newest_ == nullptr ? oldest_ : newest_->newer_) = &entry;
  newest_ = &entry;
  all_.fetch_add(1, std::memory_order_relaxed);
  if (!is_open_stream) count_.fetch_add(1, std::memory_order_relaxed);
  has_new_.store(true, std::memory_order_relaxed);
}

void MessageReads::Leave(Entry& entry) {
  proto::MutexLock lock(&mutex_);
  ROPE_CHECK(entry.entered_);
  entry.entered_ = false;
  (entry.older_ == nullptr ? oldest_ : entry.older_->newer_) = entry.newer_;
  (entry.newer_ == nullptr ? newest_ : entry.newer_->older_) = entry.older_;
  all_.fetch_sub(1, std::memory_order_relaxed);
  if (!entry.is_open_stream_) count_.fetch_sub(1, std::memory_order_relaxed);
}

int64_t MessageReads::EndSince(absl::Time before, const absl::Status& status) {
  int64_t ended = 0;
  proto::MutexLock lock(&mutex_);
  for (Entry* entry = oldest_; entry != nullptr && entry->began_ < before; entry = entry->newer_) {
    if (entry->is_open_stream_ || entry->read_ended()) continue;
    End(*entry, status);
    if (++ended == kEndedAtOnce) break;
  }
  return ended;
}

void MessageReads::CancelEnded(absl::Time ended_before) {
  proto::MutexLock lock(&mutex_);
  for (Entry* entry = oldest_; entry != nullptr; entry = entry->newer_) {
    if (entry->ended_at_ >= ended_before) continue;
    entry->ended_at_ = clock_.Now();
    entry->CancelRead();
  }
}

int64_t MessageReads::EndOfGreediest(absl::Time before, int64_t wanted, bool of_anybody,
                                     const absl::Status& status) {
  proto::MutexLock lock(&mutex_);
  std::erase_if(ends_, [forgotten = clock_.Now() - kEndsKept](const auto& ends) {
    return ends.second.last < forgotten;
  });
  const int64_t ended = EndOfGreediest(before, wanted, of_anybody, /*streams=*/false, status);
  if (ended > 0 || !of_anybody) return ended;
  return EndOfGreediest(before, wanted, of_anybody, /*streams=*/true, status);
}

int64_t MessageReads::EndOfGreediest(absl::Time before, int64_t wanted, bool of_anybody,
                                     bool streams, const absl::Status& status) {
  struct Owner {
    absl::Duration took;
    std::vector<Entry*> reads = {};
  };
  const absl::Time now = clock_.Now();
  absl::flat_hash_map<absl::string_view, Owner> owners;  // names of calls and of ends_
  for (const auto& [owner, ends] : ends_) owners[owner].took = ends.took;
  for (Entry* entry = oldest_; entry != nullptr && entry->began_ < before; entry = entry->newer_) {
    if (entry->is_open_stream_ != streams || entry->read_ended()) continue;
    Owner& owner = owners[entry->owner_];
    owner.took += now - entry->began_;
    owner.reads.push_back(entry);
  }
  const auto greediest = std::ranges::max_element(owners, {}, [of_anybody](const auto& owner) {
    return std::pair(!of_anybody || !owner.second.reads.empty(), owner.second.took);
  });
  if (greediest == owners.end() || greediest->second.reads.empty()) return 0;
  std::vector<Entry*>& reads = greediest->second.reads;  // the oldest first
  reads.resize(static_cast<size_t>(std::min({std::ssize(reads), wanted, kEndedAtOnce})));
  Ends& ends = ends_[std::string(greediest->first)];
  ends.last = now;
  for (Entry* const read : reads) {
    ends.took += now - read->began_;
    End(*read, status);
  }
  return std::ssize(reads);
}

void MessageReads::End(Entry& entry, const absl::Status& status) {
  entry.ended_at_ = clock_.Now();
  entry.EndRead(status);
}

PollLoop::PollLoop(grpc::ServerBuilder& builder, int threads, absl::Duration spin, OnIdle on_idle)
    : spin_(spin), on_idle_(std::move(on_idle)) {
  for (int i = 0; i < threads; ++i) {
    queues_.push_back(std::make_unique<CallQueue>(builder.AddCompletionQueue()));
  }
}

PollLoop::~PollLoop() {
  ROPE_CHECK(threads_.empty());
}

void PollLoop::Start() {
  for (const auto& queue : queues_) {
    threads_.emplace_back([this, &queue] { Run(*queue); });
  }
}

void PollLoop::Shutdown() {
  for (const auto& queue : queues_) queue->completion_queue().Shutdown();
  for (std::thread& thread : threads_) thread.join();
  if (threads_.empty()) {  // never started: this thread must empty the queues
    for (const auto& queue : queues_) Run(*queue);
  }
  threads_.clear();
}

// The first time that the queue is empty, gRPC may have looked at no socket: an event that was
// queued while no thread waited makes its next look return at once. The second time it has.
bool CallQueue::OnEmpty() {
  if (deferred_.empty()) {
    events_ = 0;
    return false;
  }
  if (++empty_ < 2) return true;
  events_ = empty_ = 0;
  for (Event* const event : std::exchange(deferred_, {})) event->Run(true);
  return true;
}

void PollLoop::Run(CallQueue& queue) const {
  void* tag = nullptr;
  bool ok = false;
  for (int events = 1; NextEvent(queue, &tag, &ok); ++events) {
    ++queue.events_;
    queue.empty_ = 0;
    static_cast<Event*>(tag)->Run(ok);
    if (events < CallQueue::kEventsMax) continue;
    events = 0;
    on_idle_();
  }
}

// Polls the queue. While events come, each AsyncNext returns one and no clock is read. The first
// time that the queue is empty and on_idle_ has nothing to do, the spin time begins; after it the
// thread sleeps in Next.
bool PollLoop::NextEvent(CallQueue& queue, void** tag, bool* ok) const {
  grpc::ServerCompletionQueue& completions = queue.completion_queue();
  // End of the spin time; empty until it begins.
  std::optional<std::chrono::steady_clock::time_point> end;
  while (true) {
    switch (completions.AsyncNext(tag, ok, gpr_time_0(GPR_CLOCK_MONOTONIC))) {
      case grpc::CompletionQueue::GOT_EVENT:
        return true;
      case grpc::CompletionQueue::SHUTDOWN:
        return false;
      case grpc::CompletionQueue::TIMEOUT:
        break;
    }
    if (queue.OnEmpty()) continue;
    if (!end.has_value() && on_idle_()) continue;  // its work may have made events
    const auto now = std::chrono::steady_clock::now();
    if (!end.has_value()) end = now + absl::ToChronoNanoseconds(spin_);
    if (now >= *end) return completions.Next(tag, ok);
    sched_yield();  // let other threads use this core
  }
}

}  // namespace rope::server
