// RemoteConnection: the Connection (rope/connection.h) to a server. It has the connector
// (transport/connector.h), the retry loop of synchronous calls, and the background thread of
// asynchronous calls (calls/async_call.h).
//
// Threading:  Thread-safe once Connect has returned, if Hooks are. The background thread starts
//             with the first asynchronous call, and ends as client.h says.
// Errors:     As client.h says for each method; the status of the last attempt. `may_have_executed`
//             is true if any attempt may have run.
#ifndef ROPE_CLIENT_REMOTE_CONNECTION_H_
#define ROPE_CLIENT_REMOTE_CONNECTION_H_

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/calls/event_loop.h"
#include "client/calls/retry.h"
#include "client/message_connection.h"
#include "client/transport/connector.h"
#include "proto/mutex.h"
#include "rope/rotate.h"

namespace rope::client {

// Imports: the memory that a program has imported into a connection, each part with a connector of
// its own, whose arena it is.
//
// Threading:  Thread-safe. Without imports, Find takes no lock.
// Ownership:  Shares the connectors with the calls that use them.

class Imports : public std::enable_shared_from_this<Imports> {
 public:
  // Adds a connector that has connected. The import ends with the last copy of the result.
  std::shared_ptr<void> Add(std::shared_ptr<Connector> connector);
  // The connector in whose memory all tensors of `request` lie; null: none.
  std::shared_ptr<Connector> Find(const RotateRequest& request) const;
  std::vector<std::shared_ptr<Connector>> All() const;

 private:
  mutable proto::Mutex mu_;
  std::vector<std::shared_ptr<Connector>> connectors_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> any_ = false;
};

class RemoteConnection final : public MessageConnection {
 public:
  // Replaced by tests.
  struct Hooks {
    std::function<void(std::chrono::microseconds)> sleep;
    std::function<double()> random;  // in [0, 1)
  };
  static Hooks DefaultHooks();

  RemoteConnection(const std::string& target, const ConnectOptions& options,
                   Hooks hooks = DefaultHooks());
  ~RemoteConnection() override;

  // As Connector::Connect. REQUIRES: called first.
  Status Connect(std::chrono::microseconds timeout) { return connector_->Connect(timeout); }

  // `method`: the full name. `idempotent`: as CallMethod.
  Result<grpc::ByteBuffer> CallNamed(const std::string& method, const grpc::ByteBuffer& request,
                                     bool idempotent, const CallOptions& options);

  Arena arena() override { return Arena(connector_->arena()); }
  ChosenTransport transport() override { return connector_->transport(); }
  Result<RotateReply> Rotate(const RotateRequest& request, const CallOptions& options) override;
  Call RotateAsync(const RotateRequest& request, RotateCallback callback,
                   const CallOptions& options) override;
  Result<ImportedMemory> ImportMemory(const MemoryFile& file, const CallOptions& options) override;
  Status Fence(const CallOptions& options) override;
  Result<ServingStatus> Health(const std::string& service, const CallOptions& options) override;

 private:
  Result<grpc::ByteBuffer> CallMethod(const char* method, const grpc::ByteBuffer& request,
                                      bool idempotent, const CallOptions& options) override;
  // The outcome of one attempt, and whether it may be repeated.
  template <typename Reply>
  struct Outcome {
    Result<Reply> reply;
    bool idempotent = true;
  };
  // The retry loop of synchronous calls. `attempt(link, attempts)` returns an Outcome<Reply>.
  template <typename Reply, typename Attempt>
  Result<Reply> Retry(Connector& connector, const CallOptions& options, const Attempt& attempt);
  // In whose memory the tensors lie; else the first one.
  std::shared_ptr<Connector> ConnectorOf(const RotateRequest& request) const;
  static Status FenceOn(Connector& connector, std::chrono::steady_clock::time_point deadline);
  Outcome<RotateReply> RotateOnce(const Link& link, const RotateRequest& request,
                                  const Attempts& attempts);
  // Sleeps until the next attempt is due and returns true; false: there is no further attempt.
  bool WaitForNext(Attempts& attempts, const Status& status, bool idempotent) const;

  const std::shared_ptr<Connector> connector_;
  const std::shared_ptr<Imports> imports_ = std::make_shared<Imports>();
  const Hooks hooks_;
  std::once_flag queue_once_;
  std::shared_ptr<EventQueue> queue_;  // of the background thread; created under queue_once_
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_REMOTE_CONNECTION_H_
