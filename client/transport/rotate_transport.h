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

#include <memory>
#include <optional>

#include "client/codec/codec.h"
#include "client/codec/message_call.h"
#include "client/transport/ring.h"
#include "client/transport/stub.h"
#include "client/transport/waiter.h"
#include "rope/status.h"

namespace rope::client {

class RotateTransport {
 public:
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

  // An asynchronous request takes a slot of the ring, for completions(); nullopt: it goes by Start,
  // as Stub::Start says.
  std::optional<RingCompletions::Ticket> Reserve(const EncodedRotate& request) const;
  const std::shared_ptr<RingCompletions>& completions() const { return completions_; }
  void Start(const EncodedRotate& request, const RpcOptions& options, grpc::CompletionQueue* queue,
             void* tag, UnaryAttempt& attempt) const;
  // REQUIRES: the event of the attempt has arrived.
  static Result<ReceivedReply> ReplyOf(const UnaryAttempt& attempt);

 private:
  const Stub stub_;
  const std::shared_ptr<Ring> ring_;                    // null: RPCs only
  const std::shared_ptr<RingCompletions> completions_;  // null with ring_
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_ROTATE_TRANSPORT_H_
