#include "client/memory/region.h"

#include <algorithm>
#include <utility>

namespace rope::client {

RegionIds::Lease RegionIds::MakeLease(uint64_t id) const {
  auto lease = std::make_unique<const uint64_t>(id);
  return {lease.release(), [signal = signal_](const uint64_t* last) {  // owned by the result
            const std::unique_ptr<const uint64_t> owned(last);
            // Signalled under the lock: a thread that has just found leases is waiting by now.
            const proto::MutexLock lock(&signal->mu);
            signal->changed.SignalAll();
          }};
}

RegionIds::Lease RegionIds::Acquire() const {
  const proto::MutexLock lock(&signal_->mu);
  return current_;
}

void RegionIds::EndTurn::operator()(RegionIds* ids) const {
  const proto::MutexLock lock(&ids->signal_->mu);
  ids->is_taken_ = false;
  ids->signal_->changed.SignalAll();
}

RegionIds::Turn RegionIds::TakeTurn(Clock::time_point deadline) {
  const proto::MutexLock lock(&signal_->mu);
  while (is_taken_) {
    if (!AwaitChange(deadline)) return nullptr;
  }
  is_taken_ = true;
  return Turn(this);
}

void RegionIds::Replace(uint64_t id) {
  // After the swap this is the previous lease. It is destroyed after the unlock, because its
  // deleter takes signal_->mu.
  Lease next = MakeLease(id);
  const proto::MutexLock lock(&signal_->mu);
  std::swap(current_, next);
  replaced_.push_back({*next, next});
}

bool RegionIds::AwaitGivenBack(Clock::time_point deadline) {
  const proto::MutexLock lock(&signal_->mu);
  const auto has_leases = [](const Replaced& replaced) { return !replaced.leases.expired(); };
  while (std::ranges::any_of(replaced_, has_leases)) {
    if (!AwaitChange(deadline)) return false;
  }
  return true;
}

std::vector<uint64_t> RegionIds::replaced() const {
  const proto::MutexLock lock(&signal_->mu);
  std::vector<uint64_t> ids;
  for (const Replaced& replaced : replaced_) ids.push_back(replaced.id);
  return ids;
}

void RegionIds::Forget(uint64_t id) {
  const proto::MutexLock lock(&signal_->mu);
  std::erase_if(replaced_, [id](const Replaced& replaced) { return replaced.id == id; });
}

bool RegionIds::AwaitChange(Clock::time_point deadline) {
  const auto left = deadline - Clock::now();
  if (left.count() <= 0) return false;
  signal_->changed.WaitFor(&signal_->mu, left);
  return true;
}

}  // namespace rope::client
