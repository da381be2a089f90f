// RotateTransport: how the requests of Rotate reach the server of one link: by a slot of the ring,
// if the link has a ring, the request fits and a slot is free; else by a unary RPC. What uses it
// (retries, callbacks, preparations) is the same for both.
//
// Threading:  Thread-safe. REQUIRES: destroyed after every attempt has completed.
// Errors:     The server's, DEADLINE_EXCEEDED, or UNAVAILABLE for a lost connection; with the last
//             two `may_have_executed` is true unless the server says otherwise.
#ifndef ROPE_CLIENT_TRANSPORT_ROTATE_TRANSPORT_H_
#define ROPE_CLIENT_TRANSPORT_ROTATE_TRANSPORT_H_

#include <grpcpp/completion_queue.h>

#include <functional>
#include <memory>

#include "client/codec/codec.h"
#include "client/codec/message_call.h"
#include "client/transport/ring.h"
#include "client/transport/stub.h"
#include "client/transport/waiter.h"
#include "rope/status.h"

namespace rope::client {

// One asynchronous attempt to get a request answered.
class RotateAttempt {
 public:
  virtual ~RotateAttempt() = default;
  // Sends the request. REQUIRES: called once.
  virtual void Start() = 0;
  // Asks for the end of the attempt. It completes in any case, with an error or with the reply if
  // that comes first. May be called at any time, from any thread, and repeatedly.
  virtual void Cancel() = 0;
};

class RotateTransport {
 public:
  // Receives the outcome of an attempt: once, possibly before RotateAttempt::Start has returned, on
  // a callback thread of the connection (waiter.h).
  using OnReply = std::function<void(Result<ReceivedReply>)>;

  // `ring`: null where the link has none; its asynchronous requests complete on a callback thread
  // of `owner`.
  RotateTransport(Stub stub, std::shared_ptr<Ring> ring,
                  std::shared_ptr<const CallbackOwner> owner);

  // How its requests are encoded.
  Route route() const { return ring_ == nullptr ? Route::kRpc : Route::kRing; }

  // Sends a request and waits for the reply on the calling thread. On return gRPC has given back
  // all of `borrowed`, and request.message is empty.
  Result<ReceivedReply> Rotate(EncodedRotate& request, const BorrowedSlices& borrowed,
                               const RpcOptions& options);

  // An attempt that its caller starts; that of an RPC keeps itself alive from Start until the RPC
  // has ended, whose event arrives on `queue`. REQUIRES: `request` and the metadata outlive Start.
  std::shared_ptr<RotateAttempt> NewAttempt(const EncodedRotate& request, const RpcOptions& options,
                                            grpc::CompletionQueue* queue, OnReply on_reply);

 private:
  const Stub stub_;
  const std::shared_ptr<Ring> ring_;                    // null: RPCs only
  const std::shared_ptr<RingCompletions> completions_;  // null with ring_
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_ROTATE_TRANSPORT_H_
