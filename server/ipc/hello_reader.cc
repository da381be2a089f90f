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
  if (have_ == 0) {
    const Next next = Look(socket, hello);
    if (next != Next::kHello) return next;
  }
  while (have_ < bytes_.size()) {
    const Next next = ReadSome(socket);
    if (next != Next::kHello) return next;
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

HelloReader::Next HelloReader::ReadSome(int socket) {
  iovec part = {bytes_.data() + have_, bytes_.size() - have_};
  alignas(cmsghdr) char control[CMSG_SPACE(proto::kHelloDescriptorsMax * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return Failed();
  for (proto::FileDescriptor& came : proto::DescriptorsOf(message)) {
    too_many_ |= descriptors_.size() == proto::kHelloDescriptorsMax;
    // Close the others, so that a client cannot fill the server's descriptor table.
    if (!too_many_) descriptors_.push_back(std::move(came));
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) too_many_ = true;
  if (got == 0) return Next::kClose;
  have_ += static_cast<size_t>(got);
  return Next::kHello;
}

absl::StatusOr<std::vector<proto::FileDescriptor>> HelloReader::ReleaseDescriptors(size_t count) {
  if (descriptors_.size() == count && !too_many_) return std::move(descriptors_);
  const std::string got = too_many_ ? "more" : absl::StrCat(descriptors_.size());
  return InvalidField("hello", absl::StrCat(got, " descriptors"),
                      absl::StrCat(count, ": the region's, and the ring's if the hello has one"));
}

}  // namespace rope::server
