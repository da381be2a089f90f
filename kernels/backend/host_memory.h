// HostMemory: which memory of this process a device accesses directly, so that tensors there need
// no copy through the memory of its backend.
//
// Threading:  Thread-safe. Add and Remove do not wait for the device.
// Ownership:  The memory is the caller's. It stays mapped until `removed` has run. A HostMemory may
//             outlive its backend.
// Errors:     None: what the device cannot access is copied.
#ifndef ROPE_KERNELS_BACKEND_HOST_MEMORY_H_
#define ROPE_KERNELS_BACKEND_HOST_MEMORY_H_

#include <cstdint>
#include <functional>

namespace rope::kernels {

class HostMemory {
 public:
  // Must own no reference to the HostMemory.
  using Removed = std::function<void()>;

  virtual ~HostMemory() = default;
  // The pages of [data, data + bytes) are locked later, on another thread. Tensors are copied until
  // then. REQUIRES: no byte of it is in memory that was added and not removed.
  virtual void Add(char* data, int64_t bytes) = 0;
  // `removed` runs once, on another thread, when the device accesses the memory no more. `data` as
  // in Add. REQUIRES: no Rotate uses the memory.
  virtual void Remove(char* data, Removed removed) = 0;
  // Returns when every Add and Remove has taken effect.
  virtual void Wait() = 0;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_HOST_MEMORY_H_
