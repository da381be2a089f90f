// RegionIds: the id under which the requests of a connection name its region.
//
// One id is current at any time. A fence (fence.h) replaces it and waits for the requests that hold
// the old one; when all leases of the old id are gone, every request that named it has ended.
//
//   request: Acquire -> encode, send -> call ends, answered or not -> lease destroyed
//   fence:   TakeTurn -> Replace -> AwaitGivenBack -> unregister each replaced id -> Forget
//
// Threading:  Thread-safe. Functions that require a turn: on the thread that has it.
// Ownership:  Leases may outlive the RegionIds.
#ifndef ROPE_CLIENT_MEMORY_REGION_H_
#define ROPE_CLIENT_MEMORY_REGION_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/memory/arena_memory.h"
#include "client/memory/output_pool.h"
#include "proto/mutex.h"

namespace rope::client {

class RegionIds {
 public:
  using Clock = std::chrono::steady_clock;
  // A reference to an id. A request holds it until its call has ended.
  using Lease = std::shared_ptr<const uint64_t>;

  explicit RegionIds(uint64_t id) : current_(MakeLease(id)) {}

  Lease Acquire() const;

  struct EndTurn {
    void operator()(RegionIds* ids) const;
  };
  // The right of one fence to replace ids; other fences wait until it is destroyed.
  using Turn = std::unique_ptr<RegionIds, EndTurn>;
  // Null: another fence held the turn until the deadline.
  Turn TakeTurn(Clock::time_point deadline);

  // REQUIRES for the rest: the caller holds a Turn.
  // Makes `id` the current id, which Acquire returns from now on.
  void Replace(uint64_t id);
  // Waits until no lease of a replaced id is left. False: some are left at the deadline.
  bool AwaitGivenBack(Clock::time_point deadline);
  // Ids that were replaced and not forgotten yet, oldest first.
  std::vector<uint64_t> replaced() const;
  void Forget(uint64_t id);

 private:
  struct Signal {
    proto::Mutex mu;
    proto::CondVar changed;  // the last lease of an id, or the turn, was released
  };
  struct Replaced {
    uint64_t id = 0;
    std::weak_ptr<const uint64_t> leases;
  };

  // The lease's deleter signals `changed` when the last copy is destroyed.
  Lease MakeLease(uint64_t id) const;
  // Waits for `changed`. False: the deadline has passed.
  bool AwaitChange(Clock::time_point deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(signal_->mu);

  const std::shared_ptr<Signal> signal_ = std::make_shared<Signal>();
  Lease current_ ABSL_GUARDED_BY(signal_->mu);
  std::vector<Replaced> replaced_ ABSL_GUARDED_BY(signal_->mu);
  bool is_taken_ ABSL_GUARDED_BY(signal_->mu) = false;  // a Turn exists
};

// Region: the memory that a connection shares with its server, and its id in requests.
//
// A region is the program's arena, whose slots requests name directly, or staging memory of the
// connection, to which other tensors are copied (arena_memory.h), or all memory of the process, if
// the server is in it.
//
// Threading:  A value.
// Ownership:  Shares the memory and the ids.

struct Region {
  std::shared_ptr<ArenaMemory> memory = nullptr;
  std::shared_ptr<RegionIds> ids = nullptr;  // null: no region is registered with the server
  bool is_staging = false;
  bool is_device = false;  // all memory of the process's GPUs
  // Set if the region is all memory of the process; `memory` is null then. Results without an
  // output get memory from here.
  std::shared_ptr<OutputPool> process_outputs = nullptr;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_MEMORY_REGION_H_
