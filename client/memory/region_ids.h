// RegionIds: the ids by which the requests of one connection name the memory that it shares with
// its server. There is one at a time; a fence (fence.h) puts the next in its place, and what a
// request named before is then known to be over.
//
//   request: Take -> encoded, sent -> its call ends, by the server's word or without -> given back
//   fence:   turn -> Replace -> AwaitGivenBack -> those that were replaced are unregistered: Forget
//
// Threading:  Thread-safe; what a turn is required for, on the thread that has it.
// Ownership:  Leases may outlive it.
#ifndef ROPE_CLIENT_MEMORY_REGION_IDS_H_
#define ROPE_CLIENT_MEMORY_REGION_IDS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "proto/mutex.h"

namespace rope::client {

class RegionIds {
 public:
  using Clock = std::chrono::steady_clock;
  // An id that a request names; held until the call of the request has ended.
  using Lease = std::shared_ptr<const uint64_t>;

  explicit RegionIds(uint64_t id) : current_(MakeLease(id)) {}

  Lease Acquire() const;

  // Of a fence: others wait until it goes.
  class Turn {
   public:
    explicit Turn(RegionIds& ids) : ids_(&ids) {}
    Turn(Turn&& other) noexcept : ids_(other.ids_) { other.ids_ = nullptr; }
    Turn& operator=(Turn&&) = delete;
    ~Turn();

   private:
    RegionIds* ids_;
  };
  // nullopt: another fence had its turn until the deadline.
  std::optional<Turn> TakeTurn(Clock::time_point deadline);

  // REQUIRES of all below: the caller has its turn.
  // Takes give `id` from now on.
  void Replace(uint64_t id);
  // Returns once no request has an id that was replaced; false: some have at the deadline.
  bool AwaitGivenBack(Clock::time_point deadline);
  // Those that were replaced and not forgotten since, the oldest first.
  std::vector<uint64_t> replaced() const;
  void Forget(uint64_t id);

 private:
  struct Signal {
    proto::Mutex mu;
    proto::CondVar changed;  // a lease has gone, or a turn
  };
  struct Replaced {
    uint64_t id = 0;
    std::weak_ptr<const uint64_t> leases;
  };

  // Wakes who waits when the last copy goes.
  Lease MakeLease(uint64_t id) const;
  // Waits for a change; false: the deadline is over.
  bool AwaitChange(Clock::time_point deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(signal_->mu);
  bool HasLeases() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(signal_->mu);  // of ids that were replaced

  const std::shared_ptr<Signal> signal_ = std::make_shared<Signal>();
  Lease current_ ABSL_GUARDED_BY(signal_->mu);
  std::vector<Replaced> replaced_ ABSL_GUARDED_BY(signal_->mu);
  bool is_taken_ ABSL_GUARDED_BY(signal_->mu) = false;  // the turn
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_MEMORY_REGION_IDS_H_
