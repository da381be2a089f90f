// An upper bound on the memory of a child process. Beyond it the process is killed, or an
// allocation fails.
//
// Where this machine allows it, the bound is a control group of the kernel's memory controller
// (version 1 or 2). There, shared memory that the child touches first counts too. Elsewhere it is
// RLIMIT_DATA, which bounds the child's allocations. With address or thread sanitizers, which
// reserve terabytes, there is no bound.
//
// Threading:  Enter is for a child between fork and exec; the rest is confined to one thread.
// Ownership:  The destructor removes the group. REQUIRES: its processes have been waited for.
#ifndef ROPE_TESTS_SUPPORT_MEMORY_LIMIT_H_
#define ROPE_TESTS_SUPPORT_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

#include "proto/ipc/file_descriptor.h"

#if defined(__has_feature)
#define ROPE_TESTS_HAS_FEATURE(name) __has_feature(name)
#else
#define ROPE_TESTS_HAS_FEATURE(name) 0
#endif

namespace rope::testing {

// False when sanitizers add so much memory that the program's own cannot be measured.
#if defined(__SANITIZE_ADDRESS__) || defined(_GLIBCXX_TSAN) || \
    ROPE_TESTS_HAS_FEATURE(address_sanitizer) || ROPE_TESTS_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kMemoryIsMeasured = false;
#else
inline constexpr bool kMemoryIsMeasured = true;
#endif

class MemoryLimit {
 public:
  explicit MemoryLimit(int64_t bytes);
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

  // Puts the calling process under the bound.
  void Enter() const;
  // "control group", "RLIMIT_DATA" or "none".
  const char* kind() const;

 private:
  // Creates a group under `root` with the bound in `file`. False: not possible here.
  bool MakeGroup(const std::string& root, const std::string& file);
  void RemoveGroup();

  const int64_t bytes_;
  std::string group_;                // the group's folder; empty: none
  proto::FileDescriptor processes_;  // a process joins the group by writing to it
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_MEMORY_LIMIT_H_
