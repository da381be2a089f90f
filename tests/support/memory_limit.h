// A bound on the memory of a child process: what exceeds it is killed, or is not allocated.
//
// It is a control group of the kernel's memory controller (version 1 or 2) where this machine lets
// us make one, and there memory that the child was the first to touch counts too, shared or not;
// else RLIMIT_DATA, which bounds what it allocates. With address or thread sanitizers, which need
// memory by the terabyte, there is no bound.
//
// Threading:  Enter is for a child between fork and exec; the rest is confined to one thread.
// Ownership:  Removes its group when it goes. REQUIRES: processes in it have been waited for.
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

// Whether this build has sanitizers whose own memory says nothing about the program's.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
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
  // Makes a group under `root`, whose bound is in `file`; false where that is not possible.
  bool MakeGroup(const std::string& root, const std::string& file);
  void RemoveGroup();

  const int64_t bytes_;
  std::string group_;                // its folder; empty: none
  proto::FileDescriptor processes_;  // what a process joins the group by
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_MEMORY_LIMIT_H_
