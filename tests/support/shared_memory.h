// Memory that a test shares with a server: a memfd.
//
// Threading:  Confined to one thread.
#ifndef ROPE_TESTS_SUPPORT_SHARED_MEMORY_H_
#define ROPE_TESTS_SUPPORT_SHARED_MEMORY_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "proto/ipc/file_descriptor.h"

namespace rope::testing {

// A file in memory and the test's own mapping of it.
class SharedMemory {
 public:
  // Sealed against shrinking, unless `seals` says otherwise.
  static SharedMemory Memfd(size_t bytes, int seals = F_SEAL_SHRINK) {
    SharedMemory memory(
        proto::FileDescriptor(memfd_create("rope_test", MFD_CLOEXEC | MFD_ALLOW_SEALING)), bytes);
    EXPECT_EQ(fcntl(memory.fd(), F_ADD_SEALS, seals), 0);
    return memory;
  }

  SharedMemory(SharedMemory&& other) noexcept
      : file_(std::move(other.file_)),
        bytes_(other.bytes_),
        data_(std::exchange(other.data_, nullptr)) {}
  ~SharedMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }

  int fd() const { return file_.get(); }
  size_t bytes() const { return bytes_; }
  char* data() const { return static_cast<char*>(data_); }
  template <typename T>
  T* As(uint64_t offset = 0) const {
    return reinterpret_cast<T*>(data() + offset);
  }
  proto::FileDescriptor Dup() const {
    return proto::FileDescriptor(fcntl(fd(), F_DUPFD_CLOEXEC, 0));
  }

 private:
  SharedMemory(proto::FileDescriptor file, size_t bytes) : file_(std::move(file)), bytes_(bytes) {
    EXPECT_TRUE(file_.ok());
    EXPECT_EQ(ftruncate(fd(), static_cast<off_t>(bytes)), 0);
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd(), 0);
    EXPECT_NE(data_, MAP_FAILED);
  }

  proto::FileDescriptor file_;
  size_t bytes_ = 0;
  void* data_ = nullptr;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_SHARED_MEMORY_H_
