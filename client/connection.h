// Connection: a stub, the retry loop of synchronous calls, and the background thread of the others
// (async_call.h, stream_call.h).
//
// Threading:  Thread-safe, as far as Hooks are. The background thread starts with the first call
//             that needs it. Destruction cancels what is in flight and waits for it, but not on
//             that thread itself.
// Errors:     Of the last attempt.
#ifndef ROPE_CLIENT_CONNECTION_H_
#define ROPE_CLIENT_CONNECTION_H_

#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "client/async_call.h"
#include "client/event_loop.h"
#include "client/payload_loans.h"
#include "client/stream_call.h"
#include "client/stub.h"
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

  // Waits until there is a connection; why there is none the next call tells.
  void WaitForConnected(std::chrono::microseconds timeout) const;

  // `idempotent`: doing it twice is as good as once.
  Result<grpc::ByteBuffer> Call(const std::string& method, const grpc::ByteBuffer& request,
                                bool idempotent, const CallOptions& options) const;

  // What Client::RotateAsync and Client::OpenStream do.
  std::shared_ptr<AsyncCall> StartRotate(const RotateRequest& request, RotateCallback callback,
                                         const CallOptions& options) const;
  std::shared_ptr<StreamCall> OpenStream(const StreamOptions& options) const;

  // See Stub::AwaitReturn.
  void AwaitReturn(const PayloadLoans& loans) const { stub_.AwaitReturn(loans); }

 private:
  // Of the background thread, which it starts.
  const std::shared_ptr<EventQueue>& Queue() const;

  const Stub stub_;
  const int attempts_max_;
  const Hooks hooks_;
  mutable std::once_flag loop_once_;
  mutable std::optional<EventLoop> loop_;  // made once, under loop_once_
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CONNECTION_H_
