// Stub: one channel, and single RPCs on it. It makes no decisions: no retries, no dialing.
//
// Threading:  Thread-safe; a copy shares the channel. Call does all its work on the calling thread:
//             it polls a completion queue of that thread if it may (waiter.h), yielding between
//             polls, and then sleeps. The threads of another queue handle an RPC started there.
// Errors:     The status of the RPC, with the rope.v1.Error of its status details. UNAVAILABLE and
//             DEADLINE_EXCEEDED set `may_have_executed`, unless that error says otherwise.
#ifndef ROPE_CLIENT_TRANSPORT_STUB_H_
#define ROPE_CLIENT_TRANSPORT_STUB_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <memory>
#include <string>

#include "client/codec/message_call.h"
#include "client/transport/credentials.h"
#include "rope/options.h"
#include "rope/status.h"

namespace rope::client {

// What the caller asks of one RPC.
struct RpcOptions {
  std::chrono::microseconds timeout;
  const Metadata* metadata = nullptr;  // that CheckMetadata has taken; null: none
};

// INVALID_ARGUMENT: a name or a value that gRPC does not send.
Status CheckMetadata(const Metadata& metadata);

// One unary RPC under way. Must not move until its event has arrived.
struct UnaryAttempt {
  grpc::ClientContext context;
  grpc::ByteBuffer reply;
  grpc::Status status;
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
};

// The full name of a method of rope.v1.RopeService.
inline std::string RopeMethod(const char* name) {
  return std::string("/rope.v1.RopeService/") + name;
}

class Stub {
 public:
  // `token` goes with each RPC; null: none does.
  Stub(std::shared_ptr<grpc::Channel> channel, const ConnectOptions& options,
       std::shared_ptr<const BearerToken> token = nullptr);

  // Starts to connect and waits; true: the channel is ready. REQUIRES: the channel is from
  // MakeChannel.
  bool WaitForConnected(std::chrono::microseconds timeout) const;

  // `method` is the full method name (RopeMethod).
  Result<grpc::ByteBuffer> Call(const std::string& method, const grpc::ByteBuffer& request,
                                const RpcOptions& options) const;

  // Starts an RPC. Its only event, with `tag`, arrives on `queue`.
  void Start(const std::string& method, const grpc::ByteBuffer& request, const RpcOptions& options,
             grpc::CompletionQueue* queue, void* tag, UnaryAttempt& attempt) const;
  // The result of an attempt. REQUIRES: its event has arrived.
  static Result<grpc::ByteBuffer> ResultOf(const UnaryAttempt& attempt);

  // Drives gRPC until it has released all borrowed slices. REQUIRES: the caller has destroyed every
  // ByteBuffer that refers to them.
  void AwaitReturn(const BorrowedSlices& borrowed) const;

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::chrono::microseconds spin_;
  std::shared_ptr<const BearerToken> token_;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_STUB_H_
