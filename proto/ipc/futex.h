// futex(2): waiting for and waking waiters of a 32-bit word in memory shared between processes.
//
// Threading:  Functions only; any thread, and any process that maps the word.
#ifndef ROPE_PROTO_IPC_FUTEX_H_
#define ROPE_PROTO_IPC_FUTEX_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace rope::proto {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

// Sleeps while `word` equals `value`, until FutexWakeAll or the timeout. May return spuriously.
inline void FutexWait(std::atomic<uint32_t>& word, uint32_t value,
                      std::chrono::microseconds timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  timespec left{};
  left.tv_sec = static_cast<time_t>(seconds.count());
  left.tv_nsec = static_cast<long>(std::chrono::nanoseconds(timeout - seconds).count());
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &left, nullptr, 0);
}

// Wakes all threads that sleep on `word`, in every process.
inline void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace rope::proto

#endif  // ROPE_PROTO_IPC_FUTEX_H_
