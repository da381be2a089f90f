// CallRunner: runs the calls of one connection. It has the connector to the server (connector.h),
// the retry loop of synchronous calls, and the background thread of asynchronous calls and streams
// (async_call.h, stream_call.h).
//
// Threading:  Thread-safe if Hooks are. The background thread starts with the first asynchronous
//             call or stream. The destructor cancels the calls in flight and waits for them; on the
//             background thread itself it does not wait.
// Errors:     The status of the last attempt. `may_have_executed` is true if any attempt may have
//             run.
#ifndef ROPE_CLIENT_CALLS_CALL_RUNNER_H_
#define ROPE_CLIENT_CALLS_CALL_RUNNER_H_

#include <grpcpp/support/byte_buffer.h>

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

class CallRunner {
 public:
  // Replaced by tests.
  struct Hooks {
    std::function<void(std::chrono::microseconds)> sleep;
    std::function<double()> random;  // in [0, 1)
  };
  static Hooks DefaultHooks();

  CallRunner(const std::string& target, const ConnectOptions& options,
             Hooks hooks = DefaultHooks());

  // As Connector::Connect. REQUIRES: called first.
  Status Connect(std::chrono::microseconds timeout) { return connector_->Connect(timeout); }

  // `idempotent`: running the call twice has the same effect as running it once.
  Result<grpc::ByteBuffer> Call(const std::string& method, const grpc::ByteBuffer& request,
                                bool idempotent, const CallOptions& options) const;

  // Implement the methods of Client with these names (StartRotate: Client::RotateAsync).
  Result<RotateReply> Rotate(const RotateRequest& request, const CallOptions& options) const;
  std::shared_ptr<AsyncCall> StartRotate(const RotateRequest& request, RotateCallback callback,
                                         const CallOptions& options) const;
  Result<std::shared_ptr<StreamCall>> OpenStream(const StreamOptions& options) const;
  Status Fence(const CallOptions& options) const;

  const Connector& connector() const { return *connector_; }

 private:
  // The outcome of one attempt, and whether it may be repeated.
  template <typename Reply>
  struct Outcome {
    Result<Reply> reply;
    bool idempotent = true;
  };
  // The retry loop of synchronous calls. `attempt(session, attempts)` returns an Outcome<Reply>.
  template <typename Reply, typename Attempt>
  Result<Reply> Retry(const CallOptions& options, const Attempt& attempt) const;
  Outcome<RotateReply> RotateOnce(const Session& session, const RotateRequest& request,
                                  const Attempts& attempts) const;
  // Sleeps until the next attempt is due and returns true; false: there is no further attempt.
  bool WaitForNext(Attempts& attempts, const Status& status, bool idempotent) const;
  // The queue of the background thread, which the first call starts.
  const std::shared_ptr<EventQueue>& Queue() const;

  const std::shared_ptr<Connector> connector_;
  const int attempts_max_;
  const Hooks hooks_;
  mutable std::once_flag loop_once_;
  mutable std::optional<EventLoop> loop_;  // created once, under loop_once_
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CALLS_CALL_RUNNER_H_
