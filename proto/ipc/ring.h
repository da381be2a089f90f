// Ring: calls of Rotate without an RPC, in memory that a client shares with its server.
//
// The client makes a memfd of sizeof(Ring) bytes, all zeros and sealed as a region is, and brings
// it with its hello (hello.h). The answer brings the doorbell, an eventfd.
//
//   client: writes a RotateRequest into a slot that it has not in use, sets its state to
//           kSubmitted, puts its index into queue[submitted % kRingSlots] and adds 1 to
//           `submitted`; where `asleep` was 1, sets it to 0 and adds 1 to the doorbell.
//   server: writes a RotateResponse into the same slot and sets its state to kDone. A `code` other
//           than 0 says that the response holds nothing but its `error`.
//   client: polls the slot's state, or sets it from kSubmitted to kAwaited and sleeps on it
//           (futex). Where it gives up, it sets the timeout to 0, so that a request that was not
//           read yet does not run, and uses the slot again once it is answered.
//
// The client may do what `asleep` asks for before it writes its request too, so that the server
// wakes up meanwhile; whether it sleeps again is to be asked after the submission in any case.
//
// Many answers can be waited for in one place: where a slot was submitted as kWatched, the server
// also puts its index into answers[answered % kRingSlots] and adds 1 to `answered`; where
// `watcher_asleep` is not 0, it sets it to 0 and wakes who sleeps on it (futex), at once or after
// the next few answers.
//
// Answers come in any order. The server reads a slot once, after it was submitted, and trusts
// nothing that it reads there. Whoever breaks the rules (an index past the end, or of a slot that
// is not answered, a length past the end) finds `closed` set to 1, as does everybody when the
// server ends: nothing more is read or answered then. A ring lasts as long as its connection.
// Whoever sleeps looks from time to time whether either is over: nobody can wake a thread that is
// just about to sleep then.
//
// Integers are in the order of the machine's bytes: both sides are on it.
//
// Threading:  Fields are atomic; who may write which is said above.
#ifndef ROPE_PROTO_IPC_RING_H_
#define ROPE_PROTO_IPC_RING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rope::proto {

inline constexpr uint32_t kRingSlots = 256;
inline constexpr size_t kRingMessageBytes = 4096 - 64;
// A reply says of tensors what their request says of them, and a little more.
inline constexpr size_t kRingRequestBytes = kRingMessageBytes / 2;

enum class RingState : uint32_t {
  kFree = 0,
  kSubmitted = 1,
  kAwaited = 2,
  kDone = 3,
  kWatched = 4,
};

constexpr uint32_t ValueOf(RingState state) {
  return static_cast<uint32_t>(state);
}

struct RingSlot {
  alignas(64) std::atomic<uint32_t> state;  // RingState
  std::atomic<uint32_t> code;               // google.rpc.Code of the answer
  std::atomic<uint32_t> message_bytes;      // of the request, then of the answer
  std::atomic<int64_t> timeout_us;          // for the request, from when the server reads it
  alignas(64) std::array<char, kRingMessageBytes> message;
};

struct Ring {
  alignas(64) std::atomic<uint32_t> submitted;  // requests so far; by the client
  alignas(64) std::atomic<uint32_t> asleep;     // whether to ring the doorbell; 1 by the server
  std::atomic<uint32_t> closed;                 // by the server
  alignas(64) std::atomic<uint32_t> answered;   // answers to watched requests so far; by the server
  alignas(64) std::atomic<uint32_t> watcher_asleep;  // whether to wake it; not 0 by the client
  alignas(64) std::array<std::atomic<uint32_t>, kRingSlots> queue;    // indices; by the client
  alignas(64) std::array<std::atomic<uint32_t>, kRingSlots> answers;  // indices; by the server
  alignas(4096) std::array<RingSlot, kRingSlots> slots;
};

static_assert(sizeof(RingSlot) == 4096 && sizeof(Ring) == (1 + kRingSlots) * 4096 &&
              std::atomic<int64_t>::is_always_lock_free);

}  // namespace rope::proto

#endif  // ROPE_PROTO_IPC_RING_H_
