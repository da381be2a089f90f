// RotateTransport: how the requests of Rotate reach the server of one link.
//
//   RpcTransport   each request is a unary RPC
//   RingTransport  each request takes a slot of the ring; one that does not fit, or that finds no
//                  free slot, is a unary RPC
//
// Everything above it (retries, callbacks, preparations) is the same for all transports. To add
// one: implement this interface, and add a Connect... function to the connector (connector.h).
//
// Threading:  Thread-safe. REQUIRES: destroyed after every attempt has completed.
// Errors:     The server's, DEADLINE_EXCEEDED, or UNAVAILABLE for a lost connection; with the last
//             two `may_have_executed` is true unless the server says otherwise.
#ifndef ROPE_CLIENT_TRANSPORT_ROTATE_TRANSPORT_H_
#define ROPE_CLIENT_TRANSPORT_ROTATE_TRANSPORT_H_

#include <grpcpp/completion_queue.h>

#include <functional>
#include <memory>
#include <utility>

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

  virtual ~RotateTransport() = default;

  // How its requests are encoded.
  virtual Route route() const = 0;

  // Sends a request and waits for the reply on the calling thread. On return gRPC has given back
  // all of `borrowed`, and request.message is empty.
  virtual Result<ReceivedReply> Rotate(EncodedRotate& request, const BorrowedSlices& borrowed,
                                       const RpcOptions& options) = 0;

  // An attempt that its caller starts. Its RPC's event, if it makes one, arrives on `queue`.
  // REQUIRES: `request` and the metadata outlive Start.
  virtual std::shared_ptr<RotateAttempt> NewAttempt(const EncodedRotate& request,
                                                    const RpcOptions& options,
                                                    grpc::CompletionQueue* queue,
                                                    OnReply on_reply) = 0;
};

// An attempt keeps itself alive from Start until its RPC has ended.
class RpcTransport final : public RotateTransport {
 public:
  explicit RpcTransport(Stub stub) : stub_(std::move(stub)) {}

  Route route() const override { return Route::kRpc; }
  Result<ReceivedReply> Rotate(EncodedRotate& request, const BorrowedSlices& borrowed,
                               const RpcOptions& options) override;
  // Sends `message` of a request, or its ring_message if there is no other.
  std::shared_ptr<RotateAttempt> NewAttempt(const EncodedRotate& request, const RpcOptions& options,
                                            grpc::CompletionQueue* queue,
                                            OnReply on_reply) override;

 private:
  const Stub stub_;
};

class RingTransport final : public RotateTransport {
 public:
  // Asynchronous requests complete on a callback thread of `owner`.
  RingTransport(Stub stub, std::shared_ptr<Ring> ring, std::shared_ptr<const CallbackOwner> owner)
      : rpc_(std::move(stub)),
        ring_(std::move(ring)),
        completions_(std::make_shared<RingCompletions>(ring_, std::move(owner))) {}

  Route route() const override { return Route::kRing; }
  Result<ReceivedReply> Rotate(EncodedRotate& request, const BorrowedSlices& borrowed,
                               const RpcOptions& options) override;
  std::shared_ptr<RotateAttempt> NewAttempt(const EncodedRotate& request, const RpcOptions& options,
                                            grpc::CompletionQueue* queue,
                                            OnReply on_reply) override;

 private:
  RpcTransport rpc_;
  const std::shared_ptr<Ring> ring_;
  const std::shared_ptr<RingCompletions> completions_;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_ROTATE_TRANSPORT_H_
