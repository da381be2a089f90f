// RpcTransport: each request of Rotate as a unary RPC.
//
// Ownership:  Shares its channel. An attempt keeps itself alive from Start until its RPC has ended.
#ifndef ROPE_CLIENT_TRANSPORT_RPC_TRANSPORT_H_
#define ROPE_CLIENT_TRANSPORT_RPC_TRANSPORT_H_

#include <chrono>
#include <memory>
#include <utility>

#include "client/transport/rotate_transport.h"
#include "client/transport/stub.h"

namespace rope::client {

class RpcTransport final : public RotateTransport {
 public:
  explicit RpcTransport(Stub stub) : stub_(std::move(stub)) {}

  Route route() const override { return Route::kRpc; }
  Result<ReceivedReply> Rotate(EncodedRotate& request, const BorrowedSlices& borrowed,
                               std::chrono::microseconds timeout) override;
  // Sends `message` of a request, or its ring_message if there is no other.
  std::shared_ptr<RotateAttempt> NewAttempt(const EncodedRotate& request,
                                            std::chrono::microseconds timeout,
                                            grpc::CompletionQueue* queue,
                                            OnReply on_reply) override;

 private:
  const Stub stub_;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_RPC_TRANSPORT_H_
