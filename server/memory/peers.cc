#include "server/memory/peers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "server/telemetry/log_line.h"

namespace rope::server {
namespace {

constexpr char kUnknown[] = "unknown";
constexpr char kLoopback[] = "ip:loopback";

struct Address {
  bool is_loopback = false;
  std::string owner = kUnknown;
};

Address Of(const in_addr& v4) {
  constexpr uint32_t kLoopbackNet = 127;
  if (ntohl(v4.s_addr) >> 24 == kLoopbackNet) return {true, kLoopback};
  std::array<char, INET_ADDRSTRLEN> text = {};
  inet_ntop(AF_INET, &v4, text.data(), text.size());
  return {false, absl::StrCat("ip:", text.data())};
}

// `scope`: the zone of a link-local address, or empty.
Address Of(const in6_addr& v6, absl::string_view scope) {
  if (IN6_IS_ADDR_LOOPBACK(&v6)) return {true, kLoopback};
  if (IN6_IS_ADDR_V4MAPPED(&v6)) {
    in_addr v4{};
    std::memcpy(&v4, &v6.s6_addr[12], sizeof(v4));
    return Of(v4);
  }
  std::array<char, INET6_ADDRSTRLEN> text = {};
  inet_ntop(AF_INET6, &v6, text.data(), text.size());
  return {false, absl::StrCat("ip:", text.data(), scope.empty() ? "" : "%", scope)};
}

Address Of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return Of(reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  }
  if (address.ss_family != AF_INET6) return {};
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  return Of(v6.sin6_addr, v6.sin6_scope_id == 0 ? "" : absl::StrCat(v6.sin6_scope_id));
}

// "192.0.2.7:4711"
std::string OwnerOfIpv4(absl::string_view text) {
  in_addr v4{};
  const std::string host(text.substr(0, text.rfind(':')));
  return inet_pton(AF_INET, host.c_str(), &v4) == 1 ? Of(v4).owner : kUnknown;
}

// "[fe80::1%2]:4711", percent-encoded as in a URI: '[', ']' and '%' are %5B, %5D and %25.
std::string OwnerOfIpv6(absl::string_view text) {
  const std::string plain = absl::StrReplaceAll(text, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  absl::string_view host = plain;
  host = host.substr(0, host.rfind(']'));
  absl::ConsumePrefix(&host, "[");
  const size_t end = std::min(host.find('%'), host.size());
  const absl::string_view scope = host.substr(std::min(end + 1, host.size()));
  in6_addr v6{};
  return inet_pton(AF_INET6, std::string(host.substr(0, end)).c_str(), &v6) == 1
             ? Of(v6, scope).owner
             : kUnknown;
}

}  // namespace

Peer PeerOf(int socket, bool is_unix) {
  if (!is_unix) {
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) address = {};
    Address other = Of(address);
    return {.local = other.is_loopback, .owner = std::move(other.owner)};
  }
  ucred who{};
  socklen_t length = sizeof(who);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) {
    return {.local = true, .owner = kUnknown};
  }
  LogLimited(LogKind::kConnection, spdlog::level::debug, "connection from pid {} uid {}", who.pid,
             who.uid);
  return {.local = true, .uid = who.uid, .owner = absl::StrCat("uid:", who.uid)};
}

void Peers::Enter(int fd, const std::string& owner) {
  proto::WriterMutexLock lock(&mutex_);
  owners_[fd] = owner;
}

std::string Peers::OwnerOf(absl::string_view peer) const {
  if (absl::ConsumePrefix(&peer, "ipv4:")) return OwnerOfIpv4(peer);
  if (absl::ConsumePrefix(&peer, "ipv6:")) return OwnerOfIpv6(peer);
  int fd = -1;
  if (!absl::ConsumePrefix(&peer, "fd:") || !absl::SimpleAtoi(peer, &fd)) return kUnknown;
  proto::ReaderMutexLock lock(&mutex_);
  const auto found = owners_.find(fd);
  return found == owners_.end() ? kUnknown : found->second;
}

}  // namespace rope::server
