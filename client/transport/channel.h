// gRPC channels as this library wants them, and the sockets that some of them run on.
//
// Threading:  Functions only; ConnectSocket blocks.
// Errors:     UNAVAILABLE: nobody listens, or takes the connection in time. INVALID_ARGUMENT: a
//             path that does not fit a socket address.
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

// A channel that connects by itself, again and again.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target,
                                           const ConnectOptions& options);

// PATH of "unix:PATH"; nullopt: another kind of target.
std::optional<std::string> UnixPathOf(const std::string& target);

// A blocking socket whose reads and writes take at most `timeout` each.
Result<proto::FileDescriptor> ConnectSocket(const std::string& path,
                                            std::chrono::microseconds timeout);

// A channel on a socket of ConnectSocket. It ends with its connection.
std::shared_ptr<grpc::Channel> MakeChannelOn(proto::FileDescriptor socket,
                                             const ConnectOptions& options);

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_CHANNEL_H_
