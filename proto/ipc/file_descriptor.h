// FileDescriptor: move-only owner of a file descriptor.
//
// Threading:  Thread-compatible.
// Ownership:  The destructor closes the descriptor.
#ifndef ROPE_PROTO_IPC_FILE_DESCRIPTOR_H_
#define ROPE_PROTO_IPC_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace rope::proto {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }

  // -1: empty.
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  // Passes ownership to the caller.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace rope::proto

#endif  // ROPE_PROTO_IPC_FILE_DESCRIPTOR_H_
