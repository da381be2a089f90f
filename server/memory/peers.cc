#include "server/memory/peers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/error.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

constexpr char kUnknown[] = "unknown";
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

absl::Status TooMany(int64_t count, absl::string_view owner, int64_t most) {
  return MakeError(proto::Reason::kBudgetFull, "max_connections",
                   absl::StrCat("connection ", count, " of ", owner),
                   absl::StrCat("at most ", most));
}

}  // namespace

Peer PeerAt(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return Of(reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  }
  if (address.ss_family != AF_INET6) return {.owner = kUnknown};
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
    return {.local = true, .owner = kUnknown};
  }
  LogLimited(LogKind::kConnection, spdlog::level::debug, "connection from pid {} uid {}", who.pid,
             who.uid);
  return {.local = true, .uid = who.uid, .owner = absl::StrCat("uid:", who.uid)};
}

Connections::Place::Place(Place&& other) noexcept {
  *this = std::move(other);
}

Connections::Place& Connections::Place::operator=(Place&& other) noexcept {
  std::swap(connections_, other.connections_);
  std::swap(owner_, other.owner_);
  return *this;
}

Connections::Place::~Place() {
  if (connections_ != nullptr) connections_->Leave(owner_);
}

absl::StatusOr<Connections::Place> Connections::Enter(int fd, const std::string& owner) {
  proto::WriterMutexLock lock(&mutex_);
  const auto found = counts_.find(owner);
  const int64_t own = found == counts_.end() ? 0 : found->second;
  if (own >= bounds_.owner_connections_max) {
    ++refusals_.owner_share;
    return TooMany(own + 1, owner, bounds_.owner_connections_max);
  }
  if (count_ >= bounds_.connections_max) {
    ++refusals_.full;
    return TooMany(count_ + 1, "all clients", bounds_.connections_max);
  }
  ++count_;
  ++counts_[owner];
  owners_[fd] = owner;
  return Place(this, owner);
}

void Connections::Leave(const std::string& owner) {
  proto::WriterMutexLock lock(&mutex_);
  --count_;
  const auto own = counts_.find(owner);
  if (--own->second == 0) counts_.erase(own);
}

std::string Connections::OwnerOf(absl::string_view peer) const {
  int fd = -1;
  if (!absl::ConsumePrefix(&peer, "fd:") || !absl::SimpleAtoi(peer, &fd)) return kUnknown;
  proto::ReaderMutexLock lock(&mutex_);
  const auto found = owners_.find(fd);
  return found == owners_.end() ? kUnknown : found->second;
}

int64_t Connections::count() const {
  proto::ReaderMutexLock lock(&mutex_);
  return count_;
}

Connections::Refusals Connections::refusals() const {
  proto::ReaderMutexLock lock(&mutex_);
  return refusals_;
}

}  // namespace rope::server
