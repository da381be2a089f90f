// SharedMemory: a memory mapping that a server on this host can map too.
//
// All pages of an arena are allocated in Create: a shortage shows there, and the first use of a
// slot takes no page faults. Pages of staging memory are allocated on first use, since most
// connections need few of them.
//
// Threading:  Thread-compatible.
// Ownership:  Owns the mapping and the descriptor.
// Errors:     INVALID_ARGUMENT: a size that is not positive. RESOURCE_EXHAUSTED: more memory than
//             the system has free. UNAVAILABLE: the system call failed for another reason.
#ifndef ROPE_CLIENT_MEMORY_SHARED_MEMORY_H_
#define ROPE_CLIENT_MEMORY_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "proto/ipc/file_descriptor.h"
#include "rope/status.h"

namespace rope::client {

class SharedMemory {
 public:
  // A memfd sealed against shrinking and growing. `bytes` is rounded up to whole pages.
  enum class Use { kArena, kStaging };
  static Result<std::unique_ptr<SharedMemory>> CreateMemfd(int64_t bytes, Use use);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  int fd() const { return file_.get(); }

 private:
  explicit SharedMemory(proto::FileDescriptor file) : file_(std::move(file)) {}
  // Sets the size of the file and maps it.
  Status Fill(int64_t bytes, Use use);

  const proto::FileDescriptor file_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_MEMORY_SHARED_MEMORY_H_
