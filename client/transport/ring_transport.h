// RingTransport: each request of Rotate through a ring in shared memory, without an RPC. A request
// that does not fit into a slot, or that finds no free one, is a unary RPC.
#ifndef ROPE_CLIENT_TRANSPORT_RING_TRANSPORT_H_
#define ROPE_CLIENT_TRANSPORT_RING_TRANSPORT_H_

#include <memory>
#include <utility>

#include "client/transport/ring.h"
#include "client/transport/ring_completions.h"
#include "client/transport/rpc_transport.h"
#include "client/transport/waiter.h"

namespace rope::client {

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

#endif  // ROPE_CLIENT_TRANSPORT_RING_TRANSPORT_H_
