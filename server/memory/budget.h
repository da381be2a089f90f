// Budget: a counter with an upper bound. Every request passes through it, so it takes no lock.
//
// Threading:  Thread-safe. A refusal is exact: at that moment the amount did not fit.
#ifndef ROPE_SERVER_MEMORY_BUDGET_H_
#define ROPE_SERVER_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>

namespace rope::server {

class Budget {
 public:
  explicit Budget(uint64_t max) : max_(max) {}

  // False: less than `amount` is left; nothing is acquired.
  bool TryAcquire(uint64_t amount) {
    uint64_t held = held_.load();
    do {
      if (amount > max_ - held) return false;
    } while (!held_.compare_exchange_weak(held, held + amount));
    return true;
  }
  // REQUIRES: `amount` was acquired.
  void Give(uint64_t amount) { held_.fetch_sub(amount); }

  uint64_t held() const { return held_.load(); }
  uint64_t max() const { return max_; }

 private:
  const uint64_t max_;
  std::atomic<uint64_t> held_ = 0;  // at most max_
};

}  // namespace rope::server

#endif  // ROPE_SERVER_MEMORY_BUDGET_H_
