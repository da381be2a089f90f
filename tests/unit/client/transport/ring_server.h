// RingServer: the other side of a client's ring, in the same process, whose answers a test chooses.
#ifndef ROPE_TESTS_UNIT_CLIENT_TRANSPORT_RING_SERVER_H_
#define ROPE_TESTS_UNIT_CLIENT_TRANSPORT_RING_SERVER_H_

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>

#include "client/transport/ring.h"
#include "proto/ipc/file_descriptor.h"
#include "proto/ipc/ring.h"
#include "rope/v1/rotate.pb.h"

namespace rope::client {

inline std::string ReplyTo(const std::string& id) {
  v1::RotateResponse response;
  response.set_request_id(id);
  return response.SerializeAsString();
}

// The other side of a ring, in this process: its ends of the doorbell and of the connection. It
// uses the client's mapping of the memory, so that ThreadSanitizer sees what the two synchronize.
class RingServer {
 public:
  explicit RingServer(Ring& ring)
      : shared_(*reinterpret_cast<proto::Ring*>(ring.memory().data())),
        doorbell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    socket_ = proto::FileDescriptor(ends[0]);
    ring.Open(proto::FileDescriptor(dup(doorbell_.get())), proto::FileDescriptor(ends[1]));
  }

  proto::Ring& shared() const { return shared_; }
  proto::RingSlot& slot(uint32_t index) const { return shared_.slots[index]; }
  void CloseConnection() { socket_ = proto::FileDescriptor(); }
  // How often the doorbell was rung since it was asked last.
  uint64_t Rings() const {
    uint64_t count = 0;
    return read(doorbell_.get(), &count, sizeof(count)) == sizeof(count) ? count : 0;
  }

  bool HasNext() const { return shared_.submitted.load() != taken_; }
  // Waits for the next request; the index of its slot.
  uint32_t Next() {
    while (!HasNext()) std::this_thread::yield();
    return shared_.queue[taken_++ % proto::kRingSlots].load();
  }
  std::string RequestIn(uint32_t index) const {
    return {slot(index).message.data(), slot(index).message_bytes.load()};
  }
  // Waits until the caller sleeps.
  void AwaitSleeper(uint32_t index) const {
    while (slot(index).state.load() != ValueOf(proto::RingState::kAwaited)) {
      std::this_thread::yield();
    }
  }
  // Writes an answer and wakes nobody; the state before it. Beside code 0 the answer is that of
  // ReplyTo.
  proto::RingState Write(uint32_t index, uint32_t code, const std::string& answer) const {
    return WriteRaw(index, code, code == 0 ? ReplyTo(answer) : answer);
  }
  proto::RingState WriteRaw(uint32_t index, uint32_t code, const std::string& message) const {
    std::memcpy(slot(index).message.data(), message.data(), message.size());
    slot(index).message_bytes.store(static_cast<uint32_t>(message.size()));
    slot(index).code.store(code);
    return static_cast<proto::RingState>(
        slot(index).state.exchange(ValueOf(proto::RingState::kDone)));
  }
  void Respond(uint32_t index, uint32_t code, const std::string& message) const {
    if (Write(index, code, message) == proto::RingState::kAwaited)
      proto::FutexWakeAll(slot(index).state);
  }
  void RespondRaw(uint32_t index, uint32_t code, const std::string& message) const {
    if (WriteRaw(index, code, message) == proto::RingState::kAwaited) {
      proto::FutexWakeAll(slot(index).state);
    }
  }
  // Waits until the client's reader of completions sleeps.
  void AwaitReaderAsleep() const {
    while (shared_.reader_asleep.load() == 0) std::this_thread::yield();
  }
  // Answers a request whose reply goes to the completion queue, and wakes the reader.
  void RespondQueued(uint32_t index, const std::string& answer) const {
    EXPECT_EQ(Write(index, 0, answer), proto::RingState::kQueued);
    WriteQueued(index);
  }
  // Puts an index into the completion queue, and wakes the reader.
  void WriteQueued(uint32_t index) const {
    const uint32_t completed = shared_.completed.load();
    shared_.completions[completed % proto::kRingSlots].store(index);
    shared_.completed.store(completed + 1);
    WakeReader();
  }
  void WakeReader() const {
    if (shared_.reader_asleep.exchange(0) != 0) proto::FutexWakeAll(shared_.reader_asleep);
  }

 private:
  proto::Ring& shared_;
  const proto::FileDescriptor doorbell_;
  proto::FileDescriptor socket_;
  uint32_t taken_ = 0;
};

}  // namespace rope::client

#endif  // ROPE_TESTS_UNIT_CLIENT_TRANSPORT_RING_SERVER_H_
