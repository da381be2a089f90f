// Client: a connection to a RopeServe server, and the calls on it.
//
// One Connect is one connection. A synchronous call blocks the calling thread, which is the only
// one that works on it (gRPC keeps a few threads that sleep). Asynchronous calls and streams keep
// many requests in flight without a thread for each: async.h has their rules. Failures that a later
// attempt can mend are retried within the call's deadline (on a stream they are not).
//
// Threading:  Thread-safe; a copy is cheap and is the same connection. Any number of calls at once.
//             The first asynchronous call or stream starts the connection's background thread.
//             When the last copy goes, what is in flight ends with CANCELLED, its callbacks run,
//             and the thread ends; where the last copy goes inside a callback, that happens right
//             after the callback.
// Ownership:  Requests are borrowed until the call returns (asynchronous: their tensors' memory,
//             until the callback has run); by then nothing refers to that memory. Replies own what
//             they hold, except RotatedTensor::data where the request gave `output`.
// Errors:     As the server says them, with the field at fault in Status::detail(); and its own.
//             INVALID_ARGUMENT: a tensor without memory, or of a size that is no number of bytes.
//             DEADLINE_EXCEEDED: no answer within CallOptions::timeout. UNAVAILABLE: no connection.
//             RESOURCE_EXHAUSTED: larger than ConnectOptions::max_message_bytes. INTERNAL: an
//             answer that cannot be read.
// Limits:     A server that stops taking bytes in the middle of a request holds the call past its
//             deadline: over TCP for 10 seconds, over a Unix socket until it goes on or ends.
#ifndef ROPE_CLIENT_H_
#define ROPE_CLIENT_H_

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "rope/arena.h"
#include "rope/async.h"
#include "rope/describe.h"
#include "rope/options.h"
#include "rope/rotate.h"
#include "rope/status.h"

namespace rope::client {

class Connection;

class Client {
 public:
  // Connects to "HOST:PORT" or "unix:PATH" and asks for the server's health.
  // UNAVAILABLE: no connection within the timeout, or (unless require_serving is false) not
  // serving. FAILED_PRECONDITION: none of ConnectOptions::transports. RESOURCE_EXHAUSTED: no memory
  // for arena_bytes.
  static Result<Client> Connect(const std::string& target, const ConnectOptions& options = {});

  // The memory that was asked for with ConnectOptions::arena_bytes, the same for every copy of the
  // client; shared with the server or not.
  Arena arena() const;
  // How tensors in the arena travel now. It may change to inline when a connection is lost.
  ChosenTransport transport() const;

  Result<RotateReply> Rotate(const RotateRequest& request, const CallOptions& options = {}) const;

  // The same without waiting: `callback` gets what Rotate would have returned, exactly once, on the
  // background thread, whatever happens.
  Call RotateAsync(const RotateRequest& request, RotateCallback callback,
                   const CallOptions& options = {}) const;
  // The same with a future in place of the callback.
  std::future<Result<RotateReply>> RotateFuture(const RotateRequest& request,
                                                const CallOptions& options = {}) const;

  // Opens a stream: many requests in flight as one RPC, each for less than a call of its own.
  // INVALID_ARGUMENT: a bound that is not positive. UNAVAILABLE: memfd was lost and nobody listens.
  // A server that does not answer or knows no streams shows in the requests' callbacks.
  Result<RotateStream> OpenStream(const StreamOptions& options = {}) const;

  // Waits until the server has read and written the arena for the last time for calls that began
  // before, on any thread: for those that ended without its word too (DEADLINE_EXCEEDED,
  // CANCELLED), whose slots may then be used for others. Calls that begin meanwhile go on, and are
  // not waited for. OK at once where the server shares no memory of the program's.
  // DEADLINE_EXCEEDED: not yet; another Fence waits on. UNAVAILABLE: a connection that shared the
  // arena was lost since the last Fence, and nobody tells when its server is done; said once.
  // RESOURCE_EXHAUSTED: too many fences in a row that were not waited for; as DEADLINE_EXCEEDED.
  // FAILED_PRECONDITION: called in a callback, where it cannot wait. UNIMPLEMENTED: a server that
  // is older than this library.
  Status Fence(const CallOptions& options = {}) const;

  Result<DescribeReply> Describe(const DescribeRequest& request,
                                 const CallOptions& options = {}) const;
  // The same answer as JSON text, with the field names of proto/rope/v1/describe.proto.
  Result<std::string> DescribeJson(const DescribeRequest& request,
                                   const CallOptions& options = {}) const;

  Result<std::vector<Model>> ListModels(const CallOptions& options = {}) const;
  Result<ServerInfo> GetServerInfo(const CallOptions& options = {}) const;
  // The state of one service, or of the whole server where `service` is empty.
  Result<ServingStatus> Health(const std::string& service = {},
                               const CallOptions& options = {}) const;

 private:
  explicit Client(std::shared_ptr<const Connection> connection);

  std::shared_ptr<const Connection> connection_;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_H_
