// The memory of a process as a region of it: what a caller in the server's own process names. The
// offset of a byte is its address, counted from kProcessMemoryBegin, because a region has an
// address itself. No system maps the first page.
#ifndef ROPE_PROTO_IPC_PROCESS_MEMORY_H_
#define ROPE_PROTO_IPC_PROCESS_MEMORY_H_

#include <cstdint>
#include <limits>

namespace rope::proto {

inline constexpr uintptr_t kProcessMemoryBegin = 4096;
inline constexpr uint64_t kProcessMemoryBytes =
    static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) - kProcessMemoryBegin;

inline char* ProcessMemory() {
  return reinterpret_cast<char*>(kProcessMemoryBegin);
}
// REQUIRES: not null.
inline int64_t ProcessMemoryOffset(const void* data) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) - kProcessMemoryBegin);
}

}  // namespace rope::proto

#endif  // ROPE_PROTO_IPC_PROCESS_MEMORY_H_
