#include "server/ipc/hello_reader.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/error.h"

namespace rope::server {
namespace {

constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

HelloReader::Next Failed() {
  const bool nothing_yet = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  return nothing_yet ? HelloReader::Next::kWait : HelloReader::Next::kClose;
}

}  // namespace

HelloReader::Next HelloReader::Advance(int socket, bool hello) {
  if (hello_.have == 0) {
    const Next next = Look(socket, hello);
    if (next != Next::kHello) return next;
  }
  while (!hello_.is_complete()) {
    const ssize_t got = hello_.ReceiveSome(socket, MSG_DONTWAIT);
    if (got < 0) return Failed();
    if (got == 0) return Next::kClose;
  }
  return Next::kHello;
}

HelloReader::Next HelloReader::Look(int socket, bool hello) const {
  std::array<char, kHttp2Preface.size()> first{};
  const ssize_t got = recv(socket, first.data(), first.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0) return Failed();
  if (got == 0) return Next::kClose;
  if (hello && first[0] == proto::kHelloFirstByte) return Next::kHello;
  const std::string_view bytes(first.data(), static_cast<size_t>(got));
  const bool is_part = bytes.size() < kHttp2Preface.size() && kHttp2Preface.starts_with(bytes);
  return is_part ? Next::kWait : Next::kPlain;
}

absl::StatusOr<std::vector<proto::FileDescriptor>> HelloReader::ReleaseDescriptors(size_t count) {
  if (hello_.descriptors.size() == count && !hello_.has_more_descriptors) {
    return std::move(hello_.descriptors);
  }
  const std::string got =
      hello_.has_more_descriptors ? "more" : absl::StrCat(hello_.descriptors.size());
  return InvalidField("hello", absl::StrCat(got, " descriptors"),
                      absl::StrCat(count, ": the region's, and the ring's if the hello has one"));
}

}  // namespace rope::server
