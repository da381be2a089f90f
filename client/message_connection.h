// MessageConnection: the part of a Connection that is a message of rope.v1.RopeService and its
// answer, without a tensor: Prepare and the control plane. RemoteConnection sends the messages to a
// server; server/embedded answers them in the same process.
//
// Threading:  Thread-safe if CallMethod is.
// Errors:     As client.h says for each method.
#ifndef ROPE_CLIENT_MESSAGE_CONNECTION_H_
#define ROPE_CLIENT_MESSAGE_CONNECTION_H_

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <string>

#include "rope/connection.h"
#include "rope/options.h"
#include "rope/status.h"

namespace rope::client {

class Preparation;

class MessageConnection : public Connection {
 public:
  Result<PreparedRotation> Prepare(const RotateRequest& request, const std::string& open_axis,
                                   const CallOptions& options) override;
  Result<PreparedRotation> PrepareJson(const std::string& request,
                                       const CallOptions& options) override;
  Result<std::string> CallJson(const std::string& method, const std::string& request,
                               const CallOptions& options) override;
  Result<DescribeReply> Describe(const DescribeRequest& request,
                                 const CallOptions& options) override;
  Result<TablesReply> GetTables(const TablesRequest& request, const CallOptions& options) override;

 protected:
  // `method`: of rope.v1.RopeService, without its service. `idempotent`: running the call twice has
  // the same effect as running it once.
  virtual Result<grpc::ByteBuffer> CallMethod(const char* method, const grpc::ByteBuffer& request,
                                              bool idempotent, const CallOptions& options) = 0;

 private:
  Result<PreparedRotation> Prepare(const Result<std::shared_ptr<const Preparation>>& preparation,
                                   const CallOptions& options);
};

// How Client::Connect reaches "inproc:". The client library knows no server: rope::embedded::Enable
// tells it the function. Thread-safe.
using InProcessConnect = Result<std::shared_ptr<Connection>> (*)(const ConnectOptions& options);
void SetInProcessConnect(InProcessConnect connect);

}  // namespace rope::client

#endif  // ROPE_CLIENT_MESSAGE_CONNECTION_H_
