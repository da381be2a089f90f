// Connection: the way to the server (connector.h), the retry loop of synchronous calls, and the
// background thread of the others (async_call.h, stream_call.h).
//
// Threading:  Thread-safe, as far as Hooks are. The background thread starts with the first call
//             that needs it. Destruction cancels what is in flight and waits for it, but not on
//             that thread itself.
// Errors:     Of the last attempt. `executed` is set where an attempt may have run.
#ifndef ROPE_CLIENT_CALLS_CONNECTION_H_
#define ROPE_CLIENT_CALLS_CONNECTION_H_

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "client/calls/async_call.h"
#include "client/calls/event_loop.h"
#include "client/calls/retry.h"
#include "client/calls/stream_call.h"
#include "client/codec/codec.h"
#include "client/transport/connector.h"
#include "rope/async.h"
#include "rope/options.h"
#include "rope/status.h"

namespace rope::client {

class Connection {
 public:
  // What tests replace.
  struct Hooks {
    std::function<void(std::chrono::microseconds)> sleep;
    std::function<double()> random;  // in [0, 1)
  };
  static Hooks DefaultHooks();

  Connection(const std::string& target, const ConnectOptions& options,
             Hooks hooks = DefaultHooks());

  // As Connector::Connect. Before anything else.
  Status Connect(std::chrono::microseconds timeout) { return connector_->Connect(timeout); }

  // `idempotent`: doing it twice is as good as once.
  Result<grpc::ByteBuffer> Call(const std::string& method, const grpc::ByteBuffer& request,
                                bool idempotent, const CallOptions& options) const;

  // What Client::Rotate, Client::RotateAsync, Client::OpenStream and Client::Fence do.
  Result<RotateReply> Rotate(const RotateRequest& request, const CallOptions& options) const;
  std::shared_ptr<AsyncCall> StartRotate(const RotateRequest& request, RotateCallback callback,
                                         const CallOptions& options) const;
  Result<std::shared_ptr<StreamCall>> OpenStream(const StreamOptions& options) const;
  Status Fence(const CallOptions& options) const;

  const Connector& connector() const { return *connector_; }

 private:
  // One attempt, through the ring where there is one and the messages fit into it.
  static Result<ReceivedReply> Send(const Session& session, const EncodedRotate& encoded,
                                    std::chrono::microseconds timeout);
  // Whether there is another attempt; then it is due.
  bool WaitForNext(Attempts& attempts, const Status& status, bool idempotent) const;
  // Of the background thread, which it starts.
  const std::shared_ptr<EventQueue>& Queue() const;

  const std::shared_ptr<Connector> connector_;
  const int attempts_max_;
  const Hooks hooks_;
  mutable std::once_flag loop_once_;
  mutable std::optional<EventLoop> loop_;  // made once, under loop_once_
  mutable std::atomic<bool> has_loop_ = false;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CALLS_CONNECTION_H_
