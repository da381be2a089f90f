// futex(2): waiting for and waking waiters of a 32-bit word in memory shared between processes.
//
// Threading:  Functions only; any thread, and any process that maps the word.
#ifndef ROPE_PROTO_IPC_RING_H_
#define ROPE_PROTO_IPC_RING_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
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

// Ring: calls of Rotate without an RPC, in memory that a client shares with its server.
//
// The client creates a memfd of sizeof(Ring) bytes, all zeros and sealed like a region, and passes
// it with its hello (hello.h). The answer brings the doorbell, an eventfd.
//
//   client: writes a RotateRequest into a free slot, sets its state to kSubmitted or kQueued, puts
//           its index into queue[submitted % kRingSlots] and adds 1 to `submitted`. If `asleep` was
//           1, it sets it to 0 and adds 1 to the doorbell.
//   server: writes a RotateResponse into the same slot and sets its state to kDone. A `code` other
//           than 0 says that the response holds nothing but its `error`.
//   client: kSubmitted: one thread polls the slot's state, or sets it from kSubmitted to kAwaited
//           and sleeps on it (futex).
//           kQueued: one thread reads the completions of all such slots. The server puts the slot's
//           index into completions[completed % kRingSlots] and adds 1 to `completed`. If
//           `reader_asleep` was not 0, it sets it to 0 and wakes the thread that sleeps on it
//           (futex), at once or after the next few completions.
//
// A client that gives up a request sets its timeout to 0, so that the server does not run it if it
// has not read it yet. The slot is free again once it is answered.
//
// The client may ring the doorbell before it writes its request, so that the server wakes up
// meanwhile; after the submission it must look at `asleep` again in any case.
//
// Replies come in any order. The server reads each field of a slot once, after the submission, and
// validates it. If a client breaks the rules (an index past the end or of a slot that is not
// answered, a length past the end), or when the server ends, the server sets `closed` to 1. It
// then reads and answers nothing more. A ring lasts as long as its connection. A sleeping thread
// checks `closed` and the connection from time to time, because a wake-up just before it sleeps
// is lost.
//
// Integers are in the machine's byte order: both sides run on it.
//
// Threading:  Fields are atomic; the text above says which side writes which.

inline constexpr uint32_t kRingSlots = 256;
inline constexpr size_t kRingMessageBytes = 4096 - 64;
// Half a message: a reply repeats its request's description of the tensors, and adds a little.
inline constexpr size_t kRingRequestBytes = kRingMessageBytes / 2;

enum class RingState : uint32_t {
  kFree = 0,
  kSubmitted = 1,
  kAwaited = 2,
  kDone = 3,
  kQueued = 4,
};

constexpr uint32_t ValueOf(RingState state) {
  return static_cast<uint32_t>(state);
}

struct RingSlot {
  alignas(64) std::atomic<uint32_t> state;  // RingState
  std::atomic<uint32_t> code;               // google.rpc.Code of the answer
  std::atomic<uint32_t> message_bytes;      // of the request, then of the answer
  std::atomic<int64_t> timeout_us;          // from the server's read; a day at most; 0: do not run
  alignas(64) std::array<char, kRingMessageBytes> message;
};

struct Ring {
  alignas(64) std::atomic<uint32_t> submitted;      // requests so far; by the client
  alignas(64) std::atomic<uint32_t> asleep;         // whether to ring the doorbell; 1 by the server
  std::atomic<uint32_t> closed;                     // by the server
  alignas(64) std::atomic<uint32_t> completed;      // completions so far; by the server
  alignas(64) std::atomic<uint32_t> reader_asleep;  // whether to wake it; not 0 by the client
  alignas(64) std::array<std::atomic<uint32_t>, kRingSlots> queue;        // indices; by the client
  alignas(64) std::array<std::atomic<uint32_t>, kRingSlots> completions;  // indices; by the server
  alignas(4096) std::array<RingSlot, kRingSlots> slots;
};

static_assert(sizeof(RingSlot) == 4096 && sizeof(Ring) == (1 + kRingSlots) * 4096 &&
              std::atomic<int64_t>::is_always_lock_free);

}  // namespace rope::proto

#endif  // ROPE_PROTO_IPC_RING_H_
