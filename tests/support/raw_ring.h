// The client's half of a ring (proto/ipc/ring.h) as its protocol says, without the client library.
// It keeps to the rules; tests break them through shared().
//
// Threading:  One thread submits; each slot is awaited by one thread.
#ifndef ROPE_TESTS_SUPPORT_RAW_RING_H_
#define ROPE_TESTS_SUPPORT_RAW_RING_H_

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "proto/ipc/file_descriptor.h"
#include "proto/ipc/ring.h"
#include "tests/support/shared_memory.h"

namespace rope::testing {

class RawRing {
 public:
  // So long that a test which misses a wake-up runs into its time limit.
  static constexpr std::chrono::hours kForEver{1};

  // Who sleeps looks again after `look_again` whether it missed something.
  explicit RawRing(std::chrono::microseconds look_again = std::chrono::milliseconds(50))
      : look_again_(look_again) {}

  const SharedMemory& memory() const { return memory_; }
  proto::Ring& shared() const { return *memory_.As<proto::Ring>(); }
  proto::RingSlot& slot(uint32_t index) const { return shared().slots[index]; }
  void set_doorbell(proto::FileDescriptor doorbell) { doorbell_ = std::move(doorbell); }

  // REQUIRES: the message fits.
  void Write(uint32_t index, std::string_view message, int64_t timeout_us = 60'000'000) const {
    proto::RingSlot& out = slot(index);
    std::memcpy(out.message.data(), message.data(), message.size());
    out.message_bytes.store(static_cast<uint32_t>(message.size()));
    out.timeout_us.store(timeout_us);
    out.state.store(ValueOf(proto::RingState::kSubmitted));
  }
  void Submit(uint32_t index) const {
    const uint32_t submitted = shared().submitted.load();
    shared().queue[submitted % proto::kRingSlots].store(index);
    shared().submitted.store(submitted + 1);
    if (shared().asleep.exchange(0) == 1) RingDoorbell();
  }
  void Send(uint32_t index, std::string_view message) const {
    Write(index, message);
    Submit(index);
  }
  void RingDoorbell() const {
    const uint64_t one = 1;
    EXPECT_EQ(write(doorbell_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }

  bool IsDone(uint32_t index) const {
    return slot(index).state.load() == ValueOf(proto::RingState::kDone);
  }
  bool IsClosed() const { return shared().closed.load() != 0; }
  // Sleeps until there is an answer; false: the ring closed without one, or there was none within
  // `bound`.
  bool Await(uint32_t index, std::chrono::microseconds bound = kForEver) const {
    const auto deadline = std::chrono::steady_clock::now() + bound;
    std::atomic<uint32_t>& state = slot(index).state;
    uint32_t expected = ValueOf(proto::RingState::kSubmitted);
    state.compare_exchange_strong(expected, ValueOf(proto::RingState::kAwaited));
    while (true) {
      const bool closed = IsClosed();  // before the last look
      if (IsDone(index)) return true;
      if (closed || std::chrono::steady_clock::now() > deadline) return false;
      proto::FutexWait(state, ValueOf(proto::RingState::kAwaited), look_again_);
    }
  }
  void AwaitClosed() const {
    while (!IsClosed()) std::this_thread::yield();
  }

  uint32_t CodeIn(uint32_t index) const { return slot(index).code.load(); }
  std::string MessageIn(uint32_t index) const {
    return {slot(index).message.data(), slot(index).message_bytes.load()};
  }

 private:
  const std::chrono::microseconds look_again_;
  const SharedMemory memory_ = SharedMemory::Memfd(sizeof(proto::Ring));
  proto::FileDescriptor doorbell_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_RAW_RING_H_
