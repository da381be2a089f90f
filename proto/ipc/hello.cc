#include "proto/ipc/hello.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "proto/error.h"

namespace rope::proto {
namespace {

constexpr std::array<char, 8> kMagic = {'R', 'o', 'P', 'E', 'm', 'e', 'm', '1'};
constexpr uint32_t kHelloVersion = 2;

// The common layout of both hellos, as it is on the wire.
struct Words {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kHelloVersion;
  uint32_t second = 0;
  uint64_t third = 0;
  uint64_t fourth = 0;
};
static_assert(sizeof(Words) == kHelloBytes && std::endian::native == std::endian::little);

absl::StatusOr<Words> Split(const HelloBytes& bytes) {
  const auto words = std::bit_cast<Words>(bytes);
  if (words.magic != kMagic) return InvalidField("hello", "another magic", "RoPEmem1");
  if (words.version == kHelloVersion) return words;
  return MakeError(Reason::kNotBuilt, "hello.version", words.version, kHelloVersion);
}

// A control message may hold several descriptors, unaligned; hence memcpy. Each is owned as soon as
// it is read, so none leaks if the hello turns out to be invalid.
std::vector<FileDescriptor> DescriptorsOf(msghdr& message) {
  std::vector<FileDescriptor> descriptors;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + sizeof(int) <= part->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + at, sizeof(fd));
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

}  // namespace

HelloBytes Encode(const ClientHello& hello) {
  return std::bit_cast<HelloBytes>(Words{.third = hello.bytes, .fourth = hello.ring_bytes});
}

HelloBytes Encode(const ServerHello& hello) {
  return std::bit_cast<HelloBytes>(Words{.second = static_cast<uint32_t>(hello.code),
                                         .third = hello.session,
                                         .fourth = hello.region_id});
}

absl::StatusOr<ClientHello> DecodeClientHello(const HelloBytes& bytes) {
  ROPE_ASSIGN_OR_RETURN(const Words words, Split(bytes));
  if (words.second == 0) return ClientHello{words.third, words.fourth};
  return MakeError(Reason::kNotBuilt, "hello.flags", words.second, "0");
}

absl::StatusOr<ServerHello> DecodeServerHello(const HelloBytes& bytes) {
  ROPE_ASSIGN_OR_RETURN(const Words words, Split(bytes));
  return ServerHello{static_cast<absl::StatusCode>(words.second), words.third, words.fourth};
}

// One sendmsg for bytes and descriptors: the receiver gets the descriptors with the first byte.
// MSG_NOSIGNAL: a closed connection returns EPIPE instead of raising SIGPIPE.
bool SendHello(int socket, const HelloBytes& bytes, absl::Span<const int> descriptors, int flags) {
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kHelloDescriptorsMax * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr& rights = *CMSG_FIRSTHDR(&message);
    rights.cmsg_level = SOL_SOCKET;
    rights.cmsg_type = SCM_RIGHTS;
    rights.cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(&rights), descriptors.data(), descriptors.size() * sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, flags | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size());
}

// A descriptor comes with the bytes it was sent with, so every call offers a control buffer.
// MSG_CMSG_CLOEXEC keeps descriptors out of child processes. Those past the bound are closed, so
// that a peer cannot fill the descriptor table.
ssize_t PartialHello::ReceiveSome(int socket, int flags) {
  iovec part = {bytes.data() + have, bytes.size() - have};
  alignas(cmsghdr) char control[CMSG_SPACE(kHelloDescriptorsMax * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  if (got < 0) return got;
  for (FileDescriptor& came : DescriptorsOf(message)) {
    has_more_descriptors |= descriptors.size() == kHelloDescriptorsMax;
    if (!has_more_descriptors) descriptors.push_back(std::move(came));
  }
  has_more_descriptors |= (message.msg_flags & MSG_CTRUNC) != 0;
  have += static_cast<size_t>(got);
  return got;
}

absl::StatusOr<HelloAnswer> ExchangeHello(int socket, const ClientHello& hello,
                                          absl::Span<const int> descriptors) {
  if (!SendHello(socket, Encode(hello), descriptors, 0)) {
    return MakeError(Reason::kConnectionLost, "hello", "a closed connection", "an open one");
  }
  PartialHello answer;
  while (!answer.is_complete()) {
    const ssize_t got = answer.ReceiveSome(socket, 0);
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    return MakeError(Reason::kConnectionLost, "hello",
                     absl::StrCat(answer.have, " bytes of an answer"),
                     absl::StrCat(answer.bytes.size(), " in time"));
  }
  HelloAnswer result;
  ROPE_ASSIGN_OR_RETURN(result.hello, DecodeServerHello(answer.bytes));
  if (!answer.descriptors.empty()) result.doorbell = std::move(answer.descriptors.front());
  return result;
}

}  // namespace rope::proto
