#include "client/transport/target.h"

#include <arpa/inet.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/error.h"

namespace rope::client {
namespace {

constexpr char kDefaultPort[] = ":50051";
constexpr char kTlsPrefix[] = "https://";
constexpr absl::string_view kSchemesOfSeveral[] = {"ipv4:", "ipv6:", "dns:"};

bool HasScheme(absl::string_view target) {
  return IsOfSeveral(target) || absl::StartsWith(target, "unix:") ||
         absl::StartsWith(target, "unix-abstract:");
}

std::string WithPort(absl::string_view address) {
  const size_t bracket = address.rfind(']');  // of an IPv6 address
  const size_t host_end = bracket == absl::string_view::npos ? 0 : bracket;
  if (absl::StrContains(address.substr(host_end), ':')) return std::string(address);
  return absl::StrCat(address, kDefaultPort);
}

bool IsNumber(int family, absl::string_view address) {
  absl::string_view host = address.substr(0, address.rfind(':'));
  if (family == AF_INET6 && !absl::ConsumePrefix(&host, "[")) return false;
  if (family == AF_INET6 && !absl::ConsumeSuffix(&host, "]")) return false;
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

}  // namespace

bool AsksForTls(absl::string_view written) {
  return absl::StartsWith(written, kTlsPrefix);
}

bool IsOfSeveral(absl::string_view target) {
  return std::any_of(
      std::begin(kSchemesOfSeveral), std::end(kSchemesOfSeveral),
      [target](absl::string_view scheme) { return absl::StartsWith(target, scheme); });
}

Result<std::string> ReadTarget(absl::string_view written) {
  absl::string_view target = written;
  if (absl::ConsumePrefix(&target, "http://") || absl::ConsumePrefix(&target, kTlsPrefix)) {
    absl::ConsumeSuffix(&target, "/");
  }
  if (target.empty()) return InvalidField("target", "nothing", "HOST:PORT or unix:PATH");
  if (HasScheme(target)) return std::string(target);
  if (absl::StrContains(target, ',')) return ReadSeveral(target);
  return WithPort(target);
}

}  // namespace rope::client
