#include "server/clients/peers.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

constexpr char kLoopback[] = "ip:loopback";
constexpr size_t kCertificateNameMax = 256;

std::string TextOf(int family, const void* address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  inet_ntop(family, address, text.data(), text.size());
  return text.data();
}

std::string Of(const in_addr& v4) {
  constexpr uint32_t kLoopbackNet = 127;
  if (ntohl(v4.s_addr) >> 24 == kLoopbackNet) return kLoopback;
  return absl::StrCat("ip:", TextOf(AF_INET, &v4));
}

// `scope`: the zone of a link-local address, or 0.
std::string Of(const in6_addr& v6, uint32_t scope) {
  if (IN6_IS_ADDR_LOOPBACK(&v6)) return kLoopback;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) {
    in_addr v4{};
    std::memcpy(&v4, &v6.s6_addr[12], sizeof(v4));
    return Of(v4);
  }
  return absl::StrCat("ip:", TextOf(AF_INET6, &v6), scope == 0 ? "" : absl::StrCat("%", scope));
}

// All zero: it has none.
sockaddr_storage PeerOf(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return address;
}

// What tells certificates apart.
struct Certificate {
  std::string uri;
  std::string hash;
};

// Envoy writes Key=Value pairs with ; between them for each certificate, and a comma before the
// next one. Values in quotes may have any character. The last certificate is sought from the end:
// what comes before it is what a client may have written, with any quotes.
absl::string_view LastElement(absl::string_view text) {
  bool is_quoted = false;
  for (size_t i = text.size(); i > 0; --i) {
    if (text[i - 1] == ',' && !is_quoted) return text.substr(i);
    if (text[i - 1] != '"') continue;
    const size_t before = text.substr(0, i - 1).find_last_not_of('\\');
    const size_t escapes = i - 1 - (before == absl::string_view::npos ? 0 : before + 1);
    if (escapes % 2 == 0) is_quoted = !is_quoted;
  }
  return text;
}

Certificate LastCertificate(absl::string_view text) {
  text = LastElement(text);
  Certificate last;
  std::string key;
  std::string value;
  bool has_key = false;
  bool is_quoted = false;
  const auto end_pair = [&] {
    if (absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(key), "uri")) last.uri = value;
    if (absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(key), "hash")) last.hash = value;
    key.clear();
    value.clear();
    has_key = false;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      is_quoted = !is_quoted;
    } else if (!is_quoted && text[i] == ';') {
      end_pair();
    } else if (!is_quoted && !has_key && text[i] == '=') {
      has_key = true;
    } else {
      if (is_quoted && text[i] == '\\' && i + 1 < text.size()) ++i;
      (has_key ? value : key) += text[i];
    }
  }
  end_pair();
  return last;
}

}  // namespace

std::string ForwardedOwner(absl::string_view certificates, absl::string_view addresses) {
  const Certificate certificate = LastCertificate(certificates);
  const std::string& name = certificate.uri.empty() ? certificate.hash : certificate.uri;
  if (name.size() > kCertificateNameMax) return kUnknownOwner;
  if (!name.empty()) return absl::StrCat("cert:", name);
  const size_t comma = addresses.rfind(',');
  if (comma != absl::string_view::npos) addresses.remove_prefix(comma + 1);
  const std::string text(absl::StripAsciiWhitespace(addresses));
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return Of(v4);
  if (inet_pton(AF_INET6, text.c_str(), &v6) == 1) return Of(v6, 0);
  return kUnknownOwner;
}

std::string PeerNameOf(int socket) {
  const sockaddr_storage address = PeerOf(socket);
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return absl::StrCat("ipv4:", TextOf(AF_INET, &v4.sin_addr), ":", ntohs(v4.sin_port));
  }
  if (address.ss_family != AF_INET6) return {};
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  const uint16_t port = ntohs(v6.sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    return absl::StrCat("ipv4:", TextOf(AF_INET, &v6.sin6_addr.s6_addr[12]), ":", port);
  }
  return absl::StrCat("ipv6:[", TextOf(AF_INET6, &v6.sin6_addr), "]:", port);
}

// gRPC writes an address as a URI, with %5B for [, and a link-local address with its zone.
std::string PlainPeerName(absl::string_view name) {
  std::string plain = absl::StrReplaceAll(name, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  const size_t zone = plain.find('%');
  const size_t end = plain.find(']');
  if (zone != std::string::npos && end != std::string::npos && zone < end) {
    plain.erase(zone, end - zone);
  }
  return plain;
}

std::string OwnerAt(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return Of(reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  }
  if (address.ss_family != AF_INET6) return kUnknownOwner;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  return Of(v6.sin6_addr, v6.sin6_scope_id);
}

std::string OwnerOfUser(uid_t uid) {
  return absl::StrCat("uid:", uid);
}

std::string OwnerOf(int socket, bool is_unix) {
  if (!is_unix) return OwnerAt(PeerOf(socket));
  ucred who{};
  socklen_t length = sizeof(who);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) return kUnknownOwner;
  LogLimited(LogKind::kConnection, spdlog::level::debug,
             LogLine(absl::StrCat("connection from pid ", who.pid, " uid ", who.uid)));
  return OwnerOfUser(who.uid);
}

}  // namespace rope::server
