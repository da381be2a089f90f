// Creates gRPC channels with the options of this library, and the Unix sockets below some of them.
//
// Threading:  Functions only; ConnectSocket blocks.
// Errors:     UNAVAILABLE: no server listens, or it does not accept in time. INVALID_ARGUMENT: a
//             path that does not fit into a socket address.
#ifndef ROPE_CLIENT_TRANSPORT_CHANNEL_H_
#define ROPE_CLIENT_TRANSPORT_CHANNEL_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "proto/ipc/file_descriptor.h"
#include "rope/options.h"
#include "rope/status.h"

namespace rope::client {

// A channel that reconnects by itself. Of several servers (target.h) it takes those in turn that
// say they serve.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target,
                                           const ConnectOptions& options);

// The PATH of "unix:PATH"; nullopt for any other target.
std::optional<std::string> UnixPathOf(const std::string& target);

// A blocking socket. Each read and write takes at most `timeout`.
Result<proto::FileDescriptor> ConnectSocket(const std::string& path,
                                            std::chrono::microseconds timeout);

// A channel on a socket of ConnectSocket. Once the connection is lost, it cannot reconnect.
std::shared_ptr<grpc::Channel> MakeChannelOn(proto::FileDescriptor socket,
                                             const ConnectOptions& options);

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_CHANNEL_H_
