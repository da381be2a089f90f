// Ring: the server's side of one ring (proto/ipc/ring.h). RingCall: a call that came through it.
// Knows no gRPC.
//
// Threading:  Serve, HasWork and SetAsleep on one thread; Close, and Answer of a call, on any.
// Ownership:  A ring owns its calls and holds its memory; calls under way hold their ring.
// Errors:     MapMemory: INVALID_ARGUMENT: another size than a ring's. As Region::MapMemfd.
// Limits:     kRingSlots calls under way; requests and replies of kRingMessageBytes.
#ifndef ROPE_SERVER_IPC_RING_H_
#define ROPE_SERVER_IPC_RING_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/ipc/file_descriptor.h"
#include "proto/ipc/ring.h"
#include "proto/mutex.h"
#include "server/memory/regions.h"
#include "server/request/request.h"

namespace rope::server {

class Ring;

class RingCall final : public LocalCall {
 public:
  static constexpr int64_t kReplyBytesMax = proto::kRingMessageBytes;

  uint64_t session() const override;
  absl::Duration time_left() const override { return time_left_; }
  const std::shared_ptr<std::atomic<bool>>& cancelled() const override;
  int64_t message_bytes() const override { return message_bytes_; }
  std::string CopyMessage() const override;
  int64_t reply_bytes_max() const override { return kReplyBytesMax; }
  void Answer(absl::StatusCode code, std::string_view reply) override;

 private:
  friend class Ring;

  Ring* ring_ = nullptr;
  uint32_t index_ = 0;
  proto::RingSlot* slot_ = nullptr;
  std::atomic<bool> under_way_ = false;
  // All below: of the call that is under way.
  std::shared_ptr<Ring> held_;
  absl::Duration time_left_;
  uint32_t message_bytes_ = 0;
};

class Ring : public std::enable_shared_from_this<Ring> {
 public:
  // Must lead to one Answer, now or later, on any thread.
  using Handler = std::function<void(RingCall&)>;

  // Maps the memory of a ring, a sealed memfd.
  static absl::StatusOr<std::unique_ptr<Region>> MapMemory(proto::FileDescriptor memfd,
                                                           uint64_t bytes);

  // REQUIRES: MapMemory made `memory`.
  Ring(uint64_t session, std::unique_ptr<Region> memory);

  enum class ServeResult {
    kNothing,  // nothing was submitted
    kSome,
    kBroken,  // the client broke the protocol: do not read the ring again
  };
  // At most this many requests of one ring before the next ring's turn.
  static constexpr uint32_t kServedAtOnce = 64;
  // Hands what was submitted to `handler`, at most kServedAtOnce requests.
  ServeResult Serve(const Handler& handler);
  bool HasWork() const;
  // Whether the client has to ring the doorbell.
  void SetAsleep(bool asleep);
  // Tells the client that nothing more is read, and cancels what is under way. Calls may still be
  // answered.
  void Close();

 private:
  friend class RingCall;

  // Puts the slot into the completion queue.
  void Complete(uint32_t index);
  // Wakes the client's reader if Serve's thread has completed calls since its last wake.
  void WakeForCompletions();
  void WakeReader();
  // Reads the request in a slot and hands it to `handler`. False: it broke the rules.
  bool Take(uint32_t index, const Handler& handler);

  const uint64_t session_;
  const std::unique_ptr<Region> memory_;
  proto::Ring& shared_;
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
  uint32_t taken_ = 0;              // of what was submitted
  int64_t untold_ = 0;              // completions by Serve's thread since it last woke the reader
  proto::Mutex completions_mutex_;  // writers of `completed` and `completions` in the memory
  std::array<RingCall, proto::kRingSlots> calls_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_IPC_RING_H_
