// Memory that a test shares with a server: a memfd, or a POSIX object that the destructor removes.
//
// Threading:  Confined to one thread.
#ifndef ROPE_TESTS_SUPPORT_SHARED_MEMORY_H_
#define ROPE_TESTS_SUPPORT_SHARED_MEMORY_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
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

  // A POSIX object named after this process and a counter: "/rope_test_123_0".
  static SharedMemory Posix(size_t bytes, mode_t mode = 0600) {
    static int count = 0;
    std::string name = absl::StrCat("/rope_test_", getpid(), "_", count++);
    SharedMemory memory(
        proto::FileDescriptor(shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, mode)), bytes);
    memory.name_ = std::move(name);
    return memory;
  }

  SharedMemory(SharedMemory&& other) noexcept
      : file_(std::move(other.file_)),
        bytes_(other.bytes_),
        data_(std::exchange(other.data_, nullptr)),
        name_(std::move(other.name_)) {
    other.name_.clear();
  }
  ~SharedMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
    if (!name_.empty()) shm_unlink(name_.c_str());
  }

  int fd() const { return file_.get(); }
  size_t bytes() const { return bytes_; }
  char* data() const { return static_cast<char*>(data_); }
  template <typename T>
  T* As(uint64_t offset = 0) const {
    return reinterpret_cast<T*>(data() + offset);
  }
  // The name of a POSIX object.
  const std::string& name() const { return name_; }
  proto::FileDescriptor Dup() const {
    return proto::FileDescriptor(fcntl(fd(), F_DUPFD_CLOEXEC, 0));
  }
  void Truncate(size_t bytes) const { EXPECT_EQ(ftruncate(fd(), static_cast<off_t>(bytes)), 0); }

 private:
  SharedMemory(proto::FileDescriptor file, size_t bytes) : file_(std::move(file)), bytes_(bytes) {
    EXPECT_TRUE(file_.ok());
    Truncate(bytes);
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd(), 0);
    EXPECT_NE(data_, MAP_FAILED);
  }

  proto::FileDescriptor file_;
  size_t bytes_ = 0;
  void* data_ = nullptr;
  std::string name_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_SHARED_MEMORY_H_
