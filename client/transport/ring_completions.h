// RingCompletions: the asynchronous requests of one ring, and the thread that completes them.
//
//   Reserve -> Submit -> completed: answered, given up (cancelled, or past its deadline), or lost
//                        with the ring
//
// The thread starts with the first request. It reads the ring's completion queue, gives up requests
// whose time is over, and fails them all when the ring is lost. It sleeps while nothing happens.
// The slot of a request that was given up is free again once the server has answered it.
//
// Threading:  Thread-safe. Requests complete on the thread of this object, a callback thread of
//             `owner` (waiter.h), under no lock.
// Ownership:  The destructor joins the thread. On that thread itself it does not wait: the thread
//             ends after the current completion. REQUIRES: every request has completed.
#ifndef ROPE_CLIENT_TRANSPORT_RING_COMPLETIONS_H_
#define ROPE_CLIENT_TRANSPORT_RING_COMPLETIONS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "client/transport/ring.h"
#include "client/transport/waiter.h"
#include "proto/ipc/ring.h"
#include "proto/mutex.h"
#include "rope/status.h"

namespace rope::client {

class RingCompletions {
 public:
  using OnReply = std::function<void(Result<ReceivedReply>)>;

  // A quarter of the slots stays free for synchronous calls.
  static constexpr int64_t kRequestsMax = proto::kRingSlots / 4 * 3;

  // A slot of the ring, for one request.
  struct Ticket {
    uint32_t slot = 0;
    uint64_t number = 0;  // tells apart the requests that use the slot one after another
  };

  RingCompletions(std::shared_ptr<Ring> ring, std::shared_ptr<const CallbackOwner> owner);
  ~RingCompletions();
  RingCompletions(const RingCompletions&) = delete;
  RingCompletions& operator=(const RingCompletions&) = delete;

  // nullopt: kRequestsMax are taken, or as Ring::Reserve. The ticket must be submitted.
  std::optional<Ticket> Reserve();
  // `on_reply` runs once, possibly before Submit returns. REQUIRES: as Ring::SubmitQueued.
  void Submit(const Ticket& ticket, std::string_view request, std::chrono::microseconds timeout,
              OnReply on_reply);
  // Gives up a request, also one that is not submitted yet. No effect if it has completed.
  void Cancel(const Ticket& ticket);

 private:
  class Requests;  // what the thread shares with this object, and holds until it ends

  void StartThread();

  const std::shared_ptr<Requests> requests_;
  proto::Mutex mu_;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_RING_COMPLETIONS_H_
