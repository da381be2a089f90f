#include "server/memory/peers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

constexpr char kLoopback[] = "ip:loopback";

Peer Of(const in_addr& v4) {
  constexpr uint32_t kLoopbackNet = 127;
  if (ntohl(v4.s_addr) >> 24 == kLoopbackNet) return {.local = true, .owner = kLoopback};
  std::array<char, INET_ADDRSTRLEN> text = {};
  inet_ntop(AF_INET, &v4, text.data(), text.size());
  return {.owner = absl::StrCat("ip:", text.data())};
}

// `scope`: the zone of a link-local address, or 0.
Peer Of(const in6_addr& v6, uint32_t scope) {
  if (IN6_IS_ADDR_LOOPBACK(&v6)) return {.local = true, .owner = kLoopback};
  if (IN6_IS_ADDR_V4MAPPED(&v6)) {
    in_addr v4{};
    std::memcpy(&v4, &v6.s6_addr[12], sizeof(v4));
    return Of(v4);
  }
  std::array<char, INET6_ADDRSTRLEN> text = {};
  inet_ntop(AF_INET6, &v6, text.data(), text.size());
  return {.owner = absl::StrCat("ip:", text.data(), scope == 0 ? "" : absl::StrCat("%", scope))};
}

}  // namespace

Peer PeerAt(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return Of(reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  }
  if (address.ss_family != AF_INET6) return {.owner = kUnknownOwner};
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  return Of(v6.sin6_addr, v6.sin6_scope_id);
}

Peer PeerOf(int socket, bool is_unix) {
  if (!is_unix) {
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) address = {};
    return PeerAt(address);
  }
  ucred who{};
  socklen_t length = sizeof(who);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) {
    return {.local = true, .owner = kUnknownOwner};
  }
  LogLimited(LogKind::kConnection, spdlog::level::debug, "connection from pid {} uid {}", who.pid,
             who.uid);
  return {.local = true, .uid = who.uid, .owner = absl::StrCat("uid:", who.uid)};
}

}  // namespace rope::server
