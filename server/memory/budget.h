// Budget: so much of something may be held at a time. Takes no lock: every request does.
//
// Threading:  Thread-safe. What is refused was too much at that moment.
#ifndef ROPE_SERVER_MEMORY_BUDGET_H_
#define ROPE_SERVER_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>

namespace rope::server {

class Budget {
 public:
  explicit Budget(uint64_t max) : max_(max) {}

  // False: not so much is left.
  bool TryAcquire(uint64_t amount) {
    uint64_t held = held_.load();
    do {
      if (amount > max_ - held) return false;
    } while (!held_.compare_exchange_weak(held, held + amount));
    return true;
  }
  // REQUIRES: it was taken.
  void Give(uint64_t amount) { held_.fetch_sub(amount); }

  uint64_t held() const { return held_.load(); }
  uint64_t max() const { return max_; }

 private:
  const uint64_t max_;
  std::atomic<uint64_t> held_ = 0;  // at most max_
};

}  // namespace rope::server

#endif  // ROPE_SERVER_MEMORY_BUDGET_H_
