// HostMemory: which memory of this process a device accesses directly, so that results need no
// copy through the memory of its backend.
//
// Threading:  Thread-safe.
// Ownership:  The memory is the caller's. Remove it before it is unmapped, and not while a Rotate
//             uses it. A HostMemory may outlive its backend.
// Errors:     None: what the device cannot access is copied.
#ifndef ROPE_KERNELS_BACKEND_HOST_MEMORY_H_
#define ROPE_KERNELS_BACKEND_HOST_MEMORY_H_

#include <cstdint>

namespace rope::kernels {

class HostMemory {
 public:
  virtual ~HostMemory() = default;
  // Takes long: the pages of [data, data + bytes) are locked.
  virtual void Add(char* data, int64_t bytes) = 0;
  // `data` as in Add.
  virtual void Remove(char* data) = 0;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_HOST_MEMORY_H_
