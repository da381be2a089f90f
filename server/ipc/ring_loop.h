// RingLoop: the thread that serves the rings of all connections, one after another. After the last
// request or doorbell it polls for a bounded time before it sleeps; clients wake it with their
// doorbells.
//
// Threading:  Open, Close and count on any thread. Calls are handed on on the loop's thread.
// Ownership:  Owns rings until they close; calls under way hold theirs. `clock` must outlive it.
// Errors:     Open: as Ring::MapMemory. RESOURCE_EXHAUSTED: no more files may be opened.
//             UNAVAILABLE: the loop has ended.
#ifndef ROPE_SERVER_IPC_RING_LOOP_H_
#define ROPE_SERVER_IPC_RING_LOOP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/ipc/file_descriptor.h"
#include "proto/mutex.h"
#include "server/clock.h"
#include "server/ipc/ring.h"

namespace rope::server {

class RingLoop {
 public:
  // Called on the loop's thread when no ring has a request. Returns whether it did any work.
  using OnIdle = std::function<bool()>;

  static absl::StatusOr<std::unique_ptr<RingLoop>> Create(const Clock& clock, absl::Duration spin,
                                                          Ring::Handler handler, OnIdle on_idle);
  // Stops.
  ~RingLoop();
  RingLoop(const RingLoop&) = delete;
  RingLoop& operator=(const RingLoop&) = delete;

  // Serves the ring of a session, which has a token that no other session has
  // (RegionTable::OpenSession). Returns the doorbell, for the client.
  absl::StatusOr<proto::FileDescriptor> Open(uint64_t token, uint64_t session,
                                             std::unique_ptr<Region> memory);
  // Closes the ring of a session that has closed. Does nothing if it has none.
  void Close(uint64_t token);
  // Hands on what has been submitted, and closes all rings.
  void Stop();

  int64_t count() const;

 private:
  struct ServedRing {
    std::shared_ptr<Ring> ring;
    proto::FileDescriptor doorbell;
  };
  using Rings = std::vector<std::pair<uint64_t, std::shared_ptr<Ring>>>;  // with their tokens

  RingLoop(const Clock& clock, absl::Duration spin, Ring::Handler handler, OnIdle on_idle,
           proto::FileDescriptor wake, proto::FileDescriptor events);

  void Run();
  // Copies the rings that are open now, and their version.
  void Refresh(Rings& rings, int64_t& version) const;
  // Whether any had work.
  bool ServeAll(const Rings& rings);
  // Until a doorbell rings, or the rings are others.
  void Sleep(const Rings& rings, int64_t version) const;
  bool Watch(int fd) const;
  void Wake() const;

  const Clock& clock_;
  const absl::Duration spin_;
  const Ring::Handler handler_;
  const OnIdle on_idle_;
  const proto::FileDescriptor wake_;    // eventfd: the loop's own doorbell
  const proto::FileDescriptor events_;  // epoll, of all doorbells

  mutable proto::Mutex mutex_;
  std::map<uint64_t, ServedRing> served_ ABSL_GUARDED_BY(mutex_);  // by token
  std::atomic<bool> stopped_ = false;                              // written under mutex_ alone
  std::atomic<int64_t> version_ = 0;  // of served_ and stopped_; grows under mutex_ alone
  std::thread thread_;                // last: starts when everything else stands
};

}  // namespace rope::server

#endif  // ROPE_SERVER_IPC_RING_LOOP_H_
