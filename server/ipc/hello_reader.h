// HelloReader: reads the first bytes of a new connection as they arrive. They are a hello with its
// descriptors (proto/ipc/hello.h), or the preface of HTTP/2, which stays in the socket.
//
// Threading:  Confined to one thread. Never blocks.
// Ownership:  The caller owns the socket. The reader owns descriptors until they are taken.
// Limits:     Takes 32 bytes and keeps two descriptors; further descriptors are closed on receipt.
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
    kWait,   // more bytes must come
    kPlain,  // HTTP/2's whole preface, or neither; all bytes are still in the socket
    kHello,  // bytes() is complete
    kClose,  // the client has gone
  };

  // Reads the bytes that have come. If `hello` is false, every connection is plain.
  Next Advance(int socket, bool hello);

  const proto::HelloBytes& bytes() const { return hello_.bytes; }
  // Returns the received descriptors. INVALID_ARGUMENT: their number is not `count`.
  absl::StatusOr<std::vector<proto::FileDescriptor>> ReleaseDescriptors(size_t count);

 private:
  Next Look(int socket, bool hello) const;

  proto::PartialHello hello_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_IPC_HELLO_READER_H_
