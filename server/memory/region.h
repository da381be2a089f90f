// Region: memory of a client on this host that requests read from and write to. Two kinds:
//
//   memfd  sealed against shrinking, so that access through its mapping can never raise SIGBUS.
//          Used in place. A device that has locked its pages keeps them when the client punches a
//          hole: results in place then reach pages that the client no longer sees.
//   posix  an object under /dev/shm. Its owner can truncate it at any time, so that it is never
//          mapped. Read and Write copy its bytes and return an error if the object has shrunk.
//
// Threading:  Immutable. Read and Write may run on any thread. If the client writes to the bytes
//             at the same time, values may be torn; nothing else can go wrong.
// Ownership:  Owns the mapping or the open file and releases it when destroyed. The holder of a
//             region may use it even if the region is no longer registered.
// Errors:     INVALID_ARGUMENT: an illegal name, an empty size. FAILED_PRECONDITION: a memfd
//             without the seal, or of another kind or size; an object that shrank. NOT_FOUND: no
//             such object. PERMISSION_DENIED: the object does not belong to the caller.
//             OUT_OF_RANGE: past the object's end. RESOURCE_EXHAUSTED: no descriptor is left.
//             Messages never contain a path or the system's error text; the log does.
#ifndef ROPE_SERVER_MEMORY_REGION_H_
#define ROPE_SERVER_MEMORY_REGION_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/ipc/file_descriptor.h"

namespace rope::server {

class Region {
 public:
  enum class Kind { kMemfd, kPosix };

  // An object under /dev/shm, as a client names it.
  struct PosixName {
    std::string name;    // "/rope_kv0"
    std::string prefix;  // which the operator requires
    uid_t owner = 0;     // the user that must own it
  };

  // Maps the whole `file`, whose size must be `bytes`.
  static absl::StatusOr<std::unique_ptr<Region>> MapMemfd(proto::FileDescriptor file,
                                                          uint64_t bytes);
  // Opens the `bytes` from `offset` of an object.
  static absl::StatusOr<std::unique_ptr<Region>> OpenPosix(const PosixName& name, uint64_t offset,
                                                           uint64_t bytes);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  Kind kind() const { return kind_; }
  uint64_t bytes() const { return bytes_; }
  // The size of the whole file, which the region keeps alive.
  uint64_t file_bytes() const { return file_bytes_; }
  // Whether both regions belong to the same file.
  bool SameFile(const Region& other) const {
    return device_ == other.device_ && inode_ == other.inode_;
  }

  // The mapping; null if only Read and Write reach the bytes.
  char* mapped() const { return mapped_; }
  // Whether every page of the mapping existed when it was made.
  bool populated() const { return populated_; }

  // OUT_OF_RANGE: [offset, offset + count) passes the end. `field` names the span in the message.
  absl::Status CheckSpan(uint64_t offset, uint64_t count, absl::string_view field) const;
  // Copy bytes. FAILED_PRECONDITION: the object has become shorter. REQUIRES: CheckSpan is OK.
  absl::Status Read(uint64_t offset, absl::Span<char> out) const;
  absl::Status Write(uint64_t offset, absl::Span<const char> bytes) const;

 private:
  Region() = default;

  Kind kind_ = Kind::kMemfd;
  uint64_t bytes_ = 0;
  uint64_t file_bytes_ = 0;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  char* mapped_ = nullptr;
  bool populated_ = false;
  proto::FileDescriptor file_;  // of a POSIX object
  uint64_t begin_ = 0;          // offset of the region in `file_`
};

}  // namespace rope::server

#endif  // ROPE_SERVER_MEMORY_REGION_H_
