// HelloReader: what a new connection says first, read as it arrives: a hello with its descriptors
// (proto/ipc/hello.h), or the beginning of something else, which stays in the socket.
//
// Threading:  Confined to one thread. Never blocks.
// Ownership:  The socket stays the caller's; owns the descriptors that came until they are taken.
// Limits:     Takes 32 bytes and keeps two descriptors; others are closed as they come.
#ifndef ROPE_SERVER_IPC_HELLO_READER_H_
#define ROPE_SERVER_IPC_HELLO_READER_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/ipc/file_descriptor.h"
#include "proto/ipc/hello.h"

namespace rope::server {

class HelloReader {
 public:
  enum class Next {
    kWait,   // more has to come
    kPlain,  // no hello: nothing was taken from the socket
    kHello,  // `bytes` are complete
    kClose,  // nobody is there any more
  };

  // Looks at what has come. With `hello` false every first byte is plain.
  Next Advance(int socket, bool hello);

  const proto::HelloBytes& bytes() const { return bytes_; }
  // The descriptors that came. INVALID_ARGUMENT: another number than `count`.
  absl::StatusOr<std::vector<proto::FileDescriptor>> ReleaseDescriptors(size_t count);

 private:
  Next Look(int socket, bool hello) const;
  // Appends to bytes_ and keeps the first descriptors.
  Next ReadSome(int socket);

  proto::HelloBytes bytes_ = {};
  size_t have_ = 0;
  std::vector<proto::FileDescriptor> descriptors_;
  bool too_many_ = false;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_IPC_HELLO_READER_H_
