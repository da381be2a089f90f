// RemoteConnection: the Connection (rope/connection.h) to a server.
//
// Threading:  Thread-safe once Connect has returned.
// Errors:     As client.h says for each method.
#ifndef ROPE_CLIENT_REMOTE_CONNECTION_H_
#define ROPE_CLIENT_REMOTE_CONNECTION_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "client/calls/call_runner.h"
#include "rope/connection.h"

namespace rope::client {

class RemoteConnection final : public Connection {
 public:
  RemoteConnection(const std::string& target, const ConnectOptions& options)
      : calls_(target, options) {}

  // As Connector::Connect. REQUIRES: called first.
  Status Connect(std::chrono::microseconds timeout) { return calls_.Connect(timeout); }

  Arena arena() override;
  ChosenTransport transport() override;
  Result<RotateReply> Rotate(const RotateRequest& request, const CallOptions& options) override;
  Result<PreparedRotation> Prepare(const RotateRequest& request, const std::string& open_axis,
                                   const CallOptions& options) override;
  Call RotateAsync(const RotateRequest& request, RotateCallback callback,
                   const CallOptions& options) override;
  Result<std::shared_ptr<StreamConnection>> OpenStream(const StreamOptions& options) override;
  Status Fence(const CallOptions& options) override;
  Result<DescribeReply> Describe(const DescribeRequest& request,
                                 const CallOptions& options) override;
  Result<TablesReply> GetTables(const TablesRequest& request, const CallOptions& options) override;
  Result<std::vector<Model>> ListModels(const CallOptions& options) override;
  Result<RegisteredModel> RegisterModel(const std::string& name, const RopeSpec& rope,
                                        const CallOptions& options) override;
  Status UnregisterModel(const std::string& name, const CallOptions& options) override;
  Result<WarmUpReply> WarmUp(const WarmUpRequest& request, const CallOptions& options) override;
  Result<std::vector<SharedRegion>> ListRegions(const CallOptions& options) override;
  Result<ServerInfo> GetServerInfo(const CallOptions& options) override;
  Result<ServingStatus> Health(const std::string& service, const CallOptions& options) override;

 private:
  CallRunner calls_;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_REMOTE_CONNECTION_H_
