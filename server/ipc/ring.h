// Calls through rings: the server's end of one ring, and the thread that polls all of them.
#ifndef ROPE_SERVER_IPC_RING_H_
#define ROPE_SERVER_IPC_RING_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/ipc/file_descriptor.h"
#include "proto/ipc/ring.h"
#include "proto/mutex.h"
#include "server/clients/connections.h"
#include "server/request/request.h"

namespace rope::server {

// Ring: the server's side of one ring (proto/ipc/ring.h). RingCall: a call that came through it.
// Knows no gRPC.
//
// Threading:  Serve, HasWork and SetAsleep on one thread; Close, and Answer of a call, on any.
// Ownership:  A ring owns its calls and holds its memory; calls under way hold their ring.
// Errors:     MapMemory: INVALID_ARGUMENT: another size than a ring's. As Region::MapMemfd.
// Limits:     kRingSlots calls under way; requests and replies of kRingMessageBytes.

class Ring;

class RingCall final : public LocalCall {
 public:
  Connection& connection() const override;
  absl::Duration time_left() const override { return time_left_; }
  const std::shared_ptr<std::atomic<bool>>& cancelled() const override;
  int64_t message_bytes() const override { return message_bytes_; }
  std::string CopyMessage() const override { return {slot_->message.data(), message_bytes_}; }
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

  // `connection`: that brought `memory`. REQUIRES: MapMemory made `memory`.
  Ring(std::shared_ptr<Connection> connection, std::unique_ptr<Region> memory);

  enum class ServeResult {
    kNothing,  // nothing was submitted
    kSome,
    kBroken,  // the client broke the protocol: do not read the ring again
  };
  // At most this many requests of one ring before the next ring's turn.
  static constexpr uint32_t kServedAtOnce = 64;
  // Hands what was submitted to `handler`, at most kServedAtOnce requests.
  ServeResult Serve(const Handler& handler);
  bool HasWork() const { return shared_.submitted.load() != taken_; }
  // Whether the client has to ring the doorbell.
  void SetAsleep(bool asleep) { shared_.asleep.store(asleep ? 1 : 0); }
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

  const std::shared_ptr<Connection> connection_;
  const std::unique_ptr<Region> memory_;
  proto::Ring& shared_;
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
  uint32_t taken_ = 0;                  // of what was submitted
  int64_t completions_since_wake_ = 0;  // by Serve's thread
  proto::Mutex completions_mutex_;      // writers of `completed` and `completions` in the memory
  std::array<RingCall, proto::kRingSlots> calls_;
};

// Wakes the loop that watches this eventfd.
void WakeLoop(const proto::FileDescriptor& doorbell);

// RingLoop: the thread that serves the rings of all connections, one after another. After the last
// request or doorbell it polls for a bounded time before it sleeps; clients wake it with their
// doorbells.
//
// Threading:  Open, Close, count and Serves on any thread. Calls are handed on on the loop's
//             thread.
// Ownership:  Owns rings until they close; calls under way hold theirs.
// Errors:     Open: as Ring::MapMemory. RESOURCE_EXHAUSTED: no more files may be opened.
//             UNAVAILABLE: the loop has ended.

class RingLoop {
 public:
  // Called on the loop's thread when no ring has a request. Returns whether it did any work.
  using OnIdle = std::function<bool()>;

  static absl::StatusOr<std::unique_ptr<RingLoop>> Create(absl::Duration spin,
                                                          Ring::Handler handler, OnIdle on_idle);
  ~RingLoop() { Stop(); }
  RingLoop(const RingLoop&) = delete;
  RingLoop& operator=(const RingLoop&) = delete;

  // Serves the ring in `memfd` of a connection. Returns the doorbell, for the client.
  absl::StatusOr<proto::FileDescriptor> Open(std::shared_ptr<Connection> connection,
                                             proto::FileDescriptor memfd, uint64_t bytes);
  // Closes the ring of the connection with this id. Does nothing if it has none.
  void Close(uint64_t id);
  // Hands on what has been submitted, and closes all rings.
  void Stop();

  int64_t count() const;
  // Whether the connection with this id has a ring.
  bool Serves(uint64_t id) const;

 private:
  struct ServedRing {
    std::shared_ptr<Ring> ring;
    proto::FileDescriptor doorbell;
  };
  using Rings = std::vector<std::pair<uint64_t, std::shared_ptr<Ring>>>;  // with ids of connections

  RingLoop(absl::Duration spin, Ring::Handler handler, OnIdle on_idle, proto::FileDescriptor wake,
           proto::FileDescriptor events);

  void Run();
  // Copies the rings that are open now, and their version.
  void Refresh(Rings& rings, int64_t& version) const;
  // Whether any had work.
  bool ServeAll(const Rings& rings);
  // Until a doorbell rings, or the rings are others.
  void Sleep(const Rings& rings, int64_t version) const;
  bool Watch(int fd) const;

  const absl::Duration spin_;
  const Ring::Handler handler_;
  const OnIdle on_idle_;
  const proto::FileDescriptor wake_;    // eventfd: the loop's own doorbell
  const proto::FileDescriptor events_;  // epoll, of all doorbells

  mutable proto::Mutex mutex_;
  std::map<uint64_t, ServedRing> served_ ABSL_GUARDED_BY(mutex_);  // by connection
  std::atomic<bool> stopped_ = false;                              // written under mutex_ alone
  std::atomic<int64_t> version_ = 0;  // of served_ and stopped_; grows under mutex_ alone
  std::thread thread_;                // last: starts when everything else stands
};

}  // namespace rope::server

#endif  // ROPE_SERVER_IPC_RING_H_
