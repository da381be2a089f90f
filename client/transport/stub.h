// Stub: one channel and single RPCs on it. No policy.
//
// Threading:  Thread-safe; a copy is the same channel. Only the calling thread works on a Call: it
//             polls a completion queue of its own for up to the spin time, yielding between polls,
//             and then sleeps; at once where half as many threads of the process as there are
//             processors wait already. What is started on another queue is that queue's threads'
//             work.
// Errors:     The status of the RPC, with rope.v1.Error from its details.
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

#include "client/codec/borrowed_slices.h"
#include "rope/options.h"
#include "rope/status.h"

namespace rope::client {

// One unary RPC under way. Must stay where it is until its event has come.
struct UnaryAttempt {
  grpc::ClientContext context;
  grpc::ByteBuffer reply;
  grpc::Status status;
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
};

// How an RPC ended that this side has not cancelled; without a word of the server's on whether it
// ran, it may have. CANCELLED without such a word is UNAVAILABLE: gRPC says so of calls that reach
// a server in the instant in which it ends. REQUIRES: it has ended.
Status ToStatus(const grpc::Status& status, const grpc::ClientContext& context);

// `timeout` from now; a day is for ever.
gpr_timespec DeadlineAfter(std::chrono::microseconds timeout);

class Stub {
 public:
  Stub(std::shared_ptr<grpc::Channel> channel, const ConnectOptions& options);

  // Whether the channel got ready in time. Begins to connect. REQUIRES: MakeChannel made it.
  bool WaitForConnected(std::chrono::microseconds timeout) const;

  // `method` is the full name, such as "/rope.v1.RopeService/Rotate".
  Result<grpc::ByteBuffer> Call(const std::string& method, const grpc::ByteBuffer& request,
                                std::chrono::microseconds timeout) const;

  // Starts an RPC whose one event, with `tag`, comes on `queue`.
  void Start(const std::string& method, const grpc::ByteBuffer& request,
             std::chrono::microseconds timeout, grpc::CompletionQueue* queue, void* tag,
             UnaryAttempt& attempt) const;
  // What became of it. REQUIRES: its event has come.
  static Result<grpc::ByteBuffer> ResultOf(const UnaryAttempt& attempt);

  // A stream that is not started yet.
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> PrepareStream(
      const std::string& method, grpc::ClientContext* context, grpc::CompletionQueue* queue) const;

  // Drives gRPC until it has released all borrowed slices. REQUIRES: the caller has no ByteBuffer
  // that refers to them.
  void AwaitReturn(const BorrowedSlices& borrowed) const;

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::chrono::microseconds spin_;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_STUB_H_
