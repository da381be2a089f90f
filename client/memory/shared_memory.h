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
#include "rope/arena.h"
#include "rope/status.h"

namespace rope::client {

class SharedMemory {
 public:
  // A memfd sealed against shrinking and growing. `bytes` is rounded up to whole pages.
  enum class Use { kArena, kStaging };
  static Result<std::unique_ptr<SharedMemory>> CreateMemfd(int64_t bytes, Use use);
  // Part of a file of the program's (arena.h). INVALID_ARGUMENT: no file, or a part past its end.
  static Result<std::unique_ptr<SharedMemory>> Import(const MemoryFile& file);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  int fd() const { return file_.get(); }
  // Where data() lies in the file, and the size of the whole file, which may grow.
  int64_t offset() const { return offset_; }
  int64_t file_bytes() const;
  // Whether the file is a memfd that cannot shrink. A server maps no other one: access past the
  // end of a file ends a process.
  bool is_sealed() const;

 private:
  explicit SharedMemory(proto::FileDescriptor file) : file_(std::move(file)) {}
  // Maps [offset_, offset_ + bytes_), from the start of its page on.
  Status Map(int64_t page, int populate);

  const proto::FileDescriptor file_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t offset_ = 0;
  void* mapping_ = nullptr;  // null: the program's
  size_t mapping_bytes_ = 0;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_MEMORY_SHARED_MEMORY_H_
