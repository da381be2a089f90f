#include "server/ipc/hello_reader.h"

#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/error.h"

namespace rope::server {
namespace {

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
  char first = 0;
  const ssize_t got = recv(socket, &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0) return Failed();
  if (got == 0) return Next::kClose;
  return hello && first == proto::kHelloFirstByte ? Next::kHello : Next::kPlain;
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
