#include "server/ipc/listen_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/error.h"

namespace rope::server {
namespace {

// As gRPC's own listener: data that is not acknowledged for so long means that the peer is gone.
constexpr unsigned kUserTimeoutMs = 20'000;

bool SomebodyListens(const sockaddr_un& address) {
  const proto::FileDescriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

absl::Status Failed(const std::string& address, const char* step) {
  return absl::UnavailableError(absl::StrCat("--listen: got ", address,
                                             ", want an address that can be listened on (", step,
                                             ": ", std::strerror(errno), ")"));
}

absl::StatusOr<ListenSockets> ListenAtPath(const std::string& listen_address,
                                           std::optional<mode_t> mode) {
  ListenSockets result;
  result.address = listen_address;
  result.path = listen_address.substr(std::strlen(kUnixPrefix));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (result.path.empty() || result.path.size() >= sizeof(address.sun_path)) {
    return InvalidField("--listen", absl::StrCat("a path of ", result.path.size(), " bytes"),
                        absl::StrCat("1 to ", sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, result.path.data(), result.path.size());
  if (SomebodyListens(address)) {
    errno = EADDRINUSE;
    return Failed(listen_address, "connect");
  }
  if (!RemoveSocketFile(result.path)) {
    errno = EEXIST;
    return Failed(listen_address, "a file that is no socket");
  }
  proto::FileDescriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Failed(listen_address, "bind");
  }
  // Before any client can connect, and never through a link put there meanwhile.
  if (mode.has_value() &&
      fchmodat(AT_FDCWD, result.path.c_str(), *mode, AT_SYMLINK_NOFOLLOW) != 0) {
    return Failed(listen_address, "chmod");
  }
  if (listen(listener.get(), SOMAXCONN) != 0) return Failed(listen_address, "listen");
  result.sockets.push_back(std::move(listener));
  return result;
}

// The port field of an IPv4 or IPv6 address.
in_port_t& PortOf(sockaddr& address) {
  if (address.sa_family == AF_INET6) return reinterpret_cast<sockaddr_in6&>(address).sin6_port;
  return reinterpret_cast<sockaddr_in&>(address).sin_port;
}

// Listens at one address, and fills in the port if it is 0.
absl::StatusOr<proto::FileDescriptor> ListenAtAddress(const addrinfo& info,
                                                      const std::string& listen_address) {
  const int on = 1;
  const int off = 0;
  proto::FileDescriptor listener(
      socket(info.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // Allows a restart while old connections are in TIME_WAIT.
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // Accepted connections inherit the rest. Small answers are sent at once.
  setsockopt(listener.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(listener.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs,
             sizeof(kUserTimeoutMs));
  if (info.ai_family == AF_INET6) {  // whatever the system's default is
    setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (bind(listener.get(), info.ai_addr, info.ai_addrlen) != 0) {
    return Failed(listen_address, "bind");
  }
  if (listen(listener.get(), SOMAXCONN) != 0) return Failed(listen_address, "listen");
  socklen_t length = info.ai_addrlen;
  if (getsockname(listener.get(), info.ai_addr, &length) != 0) {
    return Failed(listen_address, "getsockname");
  }
  return listener;
}

bool HasIpv6() {
  return proto::FileDescriptor(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)).ok();
}

absl::StatusOr<ListenSockets> ListenAtPort(const std::string& listen_address) {
  const size_t colon = listen_address.rfind(':');
  std::string host = listen_address.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  if (host == "0.0.0.0" && HasIpv6()) host = "::";
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string service = listen_address.substr(colon + 1);
  if (const int error = getaddrinfo(host.c_str(), service.c_str(), &hints, &found); error != 0) {
    return absl::UnavailableError(absl::StrCat("--listen: got ", listen_address,
                                               ", want an address that can be listened on (",
                                               gai_strerror(error), ")"));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, &freeaddrinfo);
  ListenSockets result;
  absl::Status last;
  in_port_t port = 0;  // of the first address; the others take it
  for (addrinfo* info = all.get(); info != nullptr; info = info->ai_next) {
    if (port != 0) PortOf(*info->ai_addr) = port;
    auto listener = ListenAtAddress(*info, listen_address);
    if (listener.ok()) {
      port = PortOf(*info->ai_addr);
      result.sockets.push_back(*std::move(listener));
    } else if (errno == EADDRINUSE) {
      return listener.status();
    } else {
      last = listener.status();  // for example a host without IPv6
    }
  }
  if (result.sockets.empty()) return last;
  result.address = absl::StrCat(listen_address.substr(0, colon), ":", ntohs(port));
  return result;
}

}  // namespace

bool RemoveSocketFile(const std::string& path) {
  struct stat about {};
  if (lstat(path.c_str(), &about) != 0) return errno == ENOENT;
  return S_ISSOCK(about.st_mode) && unlink(path.c_str()) == 0;
}

absl::StatusOr<ListenSockets> ListenAt(const std::string& address, std::optional<mode_t> mode) {
  return absl::StartsWith(address, kUnixPrefix) ? ListenAtPath(address, mode)
                                                : ListenAtPort(address);
}

}  // namespace rope::server
