#include "client/transport/channel.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/security/credentials.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/error.h"
#include "client/transport/credentials.h"

namespace rope::client {
namespace {

constexpr char kDefaultPort[] = ":50051";
constexpr char kTlsPrefix[] = "https://";
constexpr absl::string_view kSchemesOfSeveral[] = {"ipv4:", "ipv6:", "dns:"};

std::string WithPort(absl::string_view address) {
  const size_t bracket = address.rfind(']');  // of an IPv6 address
  const size_t host_end = bracket == absl::string_view::npos ? 0 : bracket;
  if (absl::StrContains(address.substr(host_end), ':')) return std::string(address);
  return absl::StrCat(address, kDefaultPort);
}

bool IsNumber(int family, absl::string_view address) {
  absl::string_view host = address.substr(0, address.rfind(':'));
  const bool is_six = family == AF_INET6;
  if (is_six && !(absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]"))) return false;
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) return false;
  in6_addr number{};
  return port > 0 && port < 65536 && inet_pton(family, std::string(host).c_str(), &number) == 1;
}

Result<std::string> ReadSeveral(absl::string_view written) {
  const int family = absl::StartsWith(written, "[") ? AF_INET6 : AF_INET;
  std::vector<std::string> addresses;
  for (const absl::string_view part : absl::StrSplit(written, ',')) {
    addresses.push_back(WithPort(absl::StripAsciiWhitespace(part)));
    if (!IsNumber(family, addresses.back())) {
      return InvalidField("target", addresses.back(),
                          "IPv4 or IPv6 addresses, all of one kind; dns:///NAME:PORT for a name");
    }
  }
  return absl::StrCat(family == AF_INET6 ? "ipv6:" : "ipv4:", absl::StrJoin(addresses, ","));
}

grpc::ChannelArguments MakeArguments(const ConnectOptions& options) {
  grpc::ChannelArguments arguments;
  const int bytes_max = static_cast<int>(
      std::clamp<int64_t>(options.max_message_bytes, 0, std::numeric_limits<int>::max()));
  arguments.SetMaxReceiveMessageSize(bytes_max);
  arguments.SetMaxSendMessageSize(bytes_max);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, (1 << 24) - 1);  // HTTP/2's maximum
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // one connection per Client, unshared
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);     // retry.h; gRPC's would keep request slices
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // tensors do not go through web proxies
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // gRPC also uses the timeout as TCP_USER_TIMEOUT: a peer that acknowledges no bytes for that long
  // is lost. This bounds calls whose write is blocked, which no deadline ends. Pings are sent as
  // rarely as servers permit.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 300000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  return arguments;
}

void SetTimeouts(int socket, std::chrono::microseconds timeout) {
  timeval time{};
  time.tv_sec = timeout.count() / 1'000'000;
  time.tv_usec = timeout.count() % 1'000'000;
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
}

}  // namespace

bool AsksForTls(absl::string_view written) {
  return absl::StartsWith(written, kTlsPrefix);
}

bool IsOfSeveral(absl::string_view target) {
  return std::ranges::any_of(kSchemesOfSeveral, [target](absl::string_view scheme) {
    return absl::StartsWith(target, scheme);
  });
}

Result<std::string> ReadTarget(absl::string_view written) {
  absl::string_view target = written;
  if (absl::ConsumePrefix(&target, "http://") || absl::ConsumePrefix(&target, kTlsPrefix)) {
    absl::ConsumeSuffix(&target, "/");
  }
  if (target.empty()) return InvalidField("target", "nothing", "HOST:PORT or unix:PATH");
  if (IsOfSeveral(target) || absl::StartsWith(target, "unix:") ||
      absl::StartsWith(target, "unix-abstract:")) {
    return std::string(target);
  }
  if (absl::StrContains(target, ',')) return ReadSeveral(target);
  return WithPort(target);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target,
                                           const ConnectOptions& options) {
  grpc::ChannelArguments arguments = MakeArguments(options);
  if (IsOfSeveral(target)) {
    // A server that does not answer gets no calls, nor one that drains.
    const char* const health =
        options.require_serving ? R"(, "healthCheckConfig": {"serviceName": ""})" : "";
    arguments.SetServiceConfigJSON(
        absl::StrCat(R"({"loadBalancingConfig": [{"round_robin": {}}])", health, "}"));
  }
  if (!options.tls.server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls.server_name);
  }
  return grpc::CreateCustomChannel(target, MakeChannelCredentials(options.tls), arguments);
}

std::optional<std::string> UnixPathOf(const std::string& target) {
  absl::string_view path = target;
  if (!absl::ConsumePrefix(&path, "unix:")) return std::nullopt;
  if (absl::StartsWith(path, "///")) path.remove_prefix(2);  // a URI with an empty authority
  return std::string(path);
}

Result<proto::FileDescriptor> ConnectSocket(const std::string& path,
                                            std::chrono::microseconds timeout) {
  sockaddr_un address{};
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return InvalidField("target", absl::StrCat("a path of ", path.size(), " bytes"),
                        absl::StrCat("1 to ", sizeof(address.sun_path) - 1));
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  proto::FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  proto::EnlargeSendBuffer(socket.get());
  // 0 would mean no time limit.
  SetTimeouts(socket.get(), std::max(timeout, std::chrono::microseconds(1000)));
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    return MakeError(Reason::kConnectionLost, absl::StrCat("unix:", path),
                     absl::StrCat("error ", error, " (", std::strerror(error), ")"),
                     "a connection");
  }
  return socket;
}

std::shared_ptr<grpc::Channel> MakeChannelOn(proto::FileDescriptor socket,
                                             const ConnectOptions& options) {
  SetTimeouts(socket.get(), std::chrono::microseconds(0));
  fcntl(socket.get(), F_SETFL, fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
  grpc::ChannelArguments arguments = MakeArguments(options);
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  return grpc::CreateCustomInsecureChannelFromFd("localhost", socket.release(), arguments);
}

}  // namespace rope::client
