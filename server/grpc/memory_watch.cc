#include "server/grpc/memory_watch.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/error.h"
#include "server/limits.h"

namespace rope::server {
namespace {

// A message that is not complete after this time is late. A message that arrives without a pause
// takes less.
constexpr absl::Duration kLate = absl::Milliseconds(10);
// Period while messages are being read. A loopback transfers some 100 MB in it.
constexpr absl::Duration kBusyPeriod = absl::Milliseconds(20);
// Period while streams are open. Their clients may begin a message at any time, and a poll thread
// that is busy reading it does not wake the housekeeper.
constexpr absl::Duration kStreamPeriod = absl::Milliseconds(50);
constexpr absl::Duration kPressurePeriod = absl::Milliseconds(5);
constexpr absl::Duration kIdlePeriod = absl::Seconds(1);
// A call that was ended is aborted if its client has not taken the end after this time.
constexpr absl::Duration kEndGrace = absl::Seconds(1);
constexpr absl::Duration kTrimPeriod = absl::Milliseconds(25);
// Free memory that the allocator may keep for any time.
constexpr int64_t kFreeFloorBytes = 8 * limits::kMiB;
constexpr size_t kSamples = MemoryWatch::kUnusedMs / 1000;

}  // namespace

MemoryWatch::MemoryWatch(const Options& options, System system, MessageReads& reads,
                         BufferPool& pool, const Clock& clock)
    : options_(options), system_(std::move(system)), reads_(reads), pool_(pool), clock_(clock) {}

// One look:
//   1. End late reads.
//   2. Compute the unaccounted bytes. If they exceed half the budget, trim the pool and malloc (at
//      most every kTrimPeriod, or far above the budget at once) and compute them again: freed
//      memory must not end a read.
//   3. After a trim, end reads that are too many.
//   4. Give unused memory back.
absl::Duration MemoryWatch::Look() {
  const absl::Time now = clock_.Now();
  EndLateReads(now);
  int64_t unaccounted_bytes = UnaccountedBytes();
  const bool in_use = unaccounted_bytes > options_.receive_bytes / 2;
  const bool trims = IsFarAbove(unaccounted_bytes) || (in_use && now - trimmed_ >= kTrimPeriod);
  if (trims) {
    trimmed_ = now;
    pool_.Trim();
    system_.trim();
    unaccounted_bytes = UnaccountedBytes();
  }
  receiving_bytes_.store(std::max<int64_t>(0, unaccounted_bytes), std::memory_order_relaxed);
  if (trims) EndReads(unaccounted_bytes, now);
  GiveBack(now);
  if (in_use) return kPressurePeriod;
  if (reads_.count() > 0) return kBusyPeriod;
  return reads_.CountAll() > 0 ? kStreamPeriod : kIdlePeriod;
}

int64_t MemoryWatch::UnaccountedBytes() const {
  return system_.anonymous_bytes() - system_.accounted_bytes() - own_bytes_;
}

// A read ends in up to two steps. First its call gets a status. If the client has not taken it
// after kEndGrace, the call is cancelled at a later look.
void MemoryWatch::EndLateReads(absl::Time now) {
  reads_.CancelEnded(now - kEndGrace);
  const absl::Time late = now - options_.receive_timeout;
  late_.fetch_add(reads_.EndSince(
      late,
      MakeError(Reason::kDeadline, "request", "part of a message",
                absl::StrCat("all of it within ", absl::FormatDuration(options_.receive_timeout),
                             " (--receive_timeout)"))));
}

// Calls end with a retry delay.
void MemoryWatch::EndReads(int64_t unaccounted_bytes, absl::Time now) {
  if (unaccounted_bytes <= options_.receive_bytes) return;
  // The number of reads to end so that half of the budget is left, if all hold equally much.
  const int64_t spare = unaccounted_bytes - options_.receive_bytes / 2;
  const int64_t wanted = std::max<int64_t>(1, reads_.CountAll() * spare / unaccounted_bytes);
  const bool of_anybody = IsFarAbove(unaccounted_bytes);
  pressure_.fetch_add(reads_.EndOfGreediest(
      of_anybody ? now : now - kLate, wanted, of_anybody,
      RetryLater(Reason::kBudgetFull, "request",
                 "part of a message while the server has no memory for the rest",
                 "a retry later (--memory_bytes)")));
}

// The pool trims buffers that were unused since its last Trim, so calling it every kUnusedMs is
// enough. malloc has no such record: free_samples_ keeps one sample of its free bytes per second,
// and it is trimmed when even the smallest sample of the last kUnusedMs is above the floor.
void MemoryWatch::GiveBack(absl::Time now) {
  constexpr absl::Duration kUnused = absl::Milliseconds(kUnusedMs);
  if (now - pool_trimmed_ >= kUnused) {
    pool_trimmed_ = now;
    pool_.Trim();
  }
  if (now - sampled_ < kIdlePeriod) return;
  sampled_ = now;
  free_samples_.push_back(system_.free_bytes());
  if (free_samples_.size() <= kSamples) return;
  free_samples_.pop_front();
  if (*std::ranges::min_element(free_samples_) <= kFreeFloorBytes) return;
  system_.trim();
  free_samples_.clear();
}

MemoryWatch::System ProcessMemory(std::function<int64_t()> accounted_bytes) {
  MemoryWatch::System system;
  system.accounted_bytes = std::move(accounted_bytes);
  system.anonymous_bytes = []() -> int64_t {
    // Resident pages minus pages of files and shared memory.
    long long resident = 0;
    long long shared = 0;
    std::FILE* const file = std::fopen("/proc/self/statm", "re");
    if (file == nullptr) return 0;
    const int read = std::fscanf(file, "%*s %lld %lld", &resident, &shared);
    std::fclose(file);
    return read == 2 ? (resident - shared) * sysconf(_SC_PAGESIZE) : 0;
  };
  system.free_bytes = []() -> int64_t { return static_cast<int64_t>(mallinfo2().fordblks); };
  system.trim = [] { malloc_trim(0); };
  return system;
}

}  // namespace rope::server
