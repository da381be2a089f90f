// Reads targets as people write them. Creates gRPC channels with the options of this library, and
// the Unix sockets below some of them.
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

#include "absl/strings/string_view.h"
#include "proto/ipc/file_descriptor.h"
#include "rope/options.h"
#include "rope/status.h"

namespace rope::client {

// "http://" and "https://" go. An address without a port gets that of the server. Several addresses
// with commas become gRPC's "ipv4:A:PORT,B:PORT". Targets with a scheme, such as "unix:" and
// "dns:", stay. INVALID_ARGUMENT: nothing, or anything but IP addresses of one kind among several.
Result<std::string> ReadTarget(absl::string_view written);

// Whether a target as written begins with "https://".
bool AsksForTls(absl::string_view written);

// Whether a target that ReadTarget gave names several servers. "HOST:PORT" names one, whose
// addresses are tried in turn until one connects.
bool IsOfSeveral(absl::string_view target);

// A channel that reconnects by itself. Of several servers it takes those in turn that say they
// serve.
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
