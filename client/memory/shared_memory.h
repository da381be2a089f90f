// SharedMemory: a mapped run of memory that a server on this host can map too.
//
// All pages of an arena exist from the start: what memory there is not shows in Create, and the
// first use of a slot costs no page faults. Those of staging memory are made by their first use, as
// the program's other memory: most connections need few of them.
//
// Threading:  Thread-compatible; UnlinkName once, before others use the memory.
// Ownership:  Owns the mapping, the descriptor and, until UnlinkName, the name.
// Errors:     INVALID_ARGUMENT: no size of memory. RESOURCE_EXHAUSTED: the system has not so much
//             of it. UNAVAILABLE: the system has no such memory.
#ifndef ROPE_CLIENT_MEMORY_SHARED_MEMORY_H_
#define ROPE_CLIENT_MEMORY_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "proto/ipc/file_descriptor.h"
#include "rope/status.h"

namespace rope::client {

class SharedMemory {
 public:
  // Sealed against shrinking and growing. `bytes` is rounded up to whole pages.
  enum class Use { kArena, kStaging };
  static Result<std::unique_ptr<SharedMemory>> CreateMemfd(int64_t bytes, Use use);
  // POSIX shared memory of a name that nobody else has and that begins with `prefix`.
  static Result<std::unique_ptr<SharedMemory>> CreateNamed(const std::string& prefix,
                                                           int64_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  int fd() const { return file_.get(); }
  const std::string& name() const { return name_; }  // empty: none
  // From now on nothing is left behind, whatever becomes of this process.
  void UnlinkName();

 private:
  SharedMemory(proto::FileDescriptor file, std::string name);
  // Gives the file its size and maps it.
  Status Fill(int64_t bytes, Use use);

  const proto::FileDescriptor file_;
  std::string name_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_MEMORY_SHARED_MEMORY_H_
