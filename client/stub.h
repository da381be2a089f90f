// Stub: one channel, and one RPC on it at a time for each calling thread. No policy.
//
// Threading:  Thread-safe. Only the calling thread works on a call: it polls a completion queue of
//             its own for up to the spin time, yielding between polls, and then sleeps.
// Errors:     The status of the RPC, with rope.v1.Error from its details.
#ifndef ROPE_CLIENT_STUB_H_
#define ROPE_CLIENT_STUB_H_

#include <grpcpp/channel.h>
#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <memory>
#include <string>

#include "client/payload_loans.h"
#include "rope/options.h"
#include "rope/status.h"

namespace rope::client {

class Stub {
 public:
  Stub(const std::string& target, const ConnectOptions& options);

  // Whether the channel got ready in time. Begins to connect.
  bool WaitForConnected(std::chrono::microseconds timeout) const;

  // `method` is the full name, such as "/rope.v1.RopeService/Rotate".
  Result<grpc::ByteBuffer> Call(const std::string& method, const grpc::ByteBuffer& request,
                                std::chrono::microseconds timeout) const;

  // Drives gRPC until it refers to none of the loans. REQUIRES: no ByteBuffer of the caller does.
  void AwaitReturn(const PayloadLoans& loans) const;

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::chrono::microseconds spin_;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_STUB_H_
