// The parts of CUDA's language that a kernel without barriers needs, for a plain C++ compiler. With
// it the source of the kernels runs on the CPU, one CUDA thread after the other. nvcc never
// compiles this header.
//
// Threading:  Launches on different threads are independent.
// Errors:     An access of several bytes at an address that is not a multiple of them stops the
//             process; a device would report a fault.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_CPU_SHIM_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_CPU_SHIM_H_

#if defined(__CUDACC__)
#error "for the host compiler only"
#endif

#include <cstdint>

#include "kernels/check.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

namespace rope::kernels::cuda_cpu_shim {

struct Index {
  uint32_t x = 0;
  uint32_t y = 1;
  uint32_t z = 1;
};

inline void CheckAligned(const void* address, uintptr_t bytes) {
  ROPE_CHECK(reinterpret_cast<uintptr_t>(address) % bytes == 0);
}

}  // namespace rope::kernels::cuda_cpu_shim

// CUDA's names. NOLINTBEGIN(readability-identifier-naming)
inline thread_local rope::kernels::cuda_cpu_shim::Index threadIdx;
inline thread_local rope::kernels::cuda_cpu_shim::Index blockIdx;
inline thread_local rope::kernels::cuda_cpu_shim::Index blockDim;
inline thread_local rope::kernels::cuda_cpu_shim::Index gridDim;
// NOLINTEND(readability-identifier-naming)

namespace rope::kernels::cuda_cpu_shim {

// What the threads of a block add to the sums of their heads, while a block runs for the first
// time. A block whose threads wait for sums runs twice.
struct Sums {
  bool waiting = false;
  bool complete = false;
  double parts[1024];
};
inline thread_local Sums block_sums;

// Adds the values of the threads with the same y and z, which are a power of two. Returns false if
// the thread has to end, because not all have run; it may have stored nothing.
inline bool SumOfHead(double& value) {
  const uint32_t first = blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  Sums& sums = block_sums;
  if (!sums.complete) {
    sums.parts[first + threadIdx.x] = value;
    sums.waiting = true;
    return false;
  }
  double tree[32];
  for (uint32_t i = 0; i < blockDim.x; ++i) tree[i] = sums.parts[first + i];
  for (uint32_t step = blockDim.x / 2; step > 0; step /= 2) {
    for (uint32_t i = 0; i < step; ++i) tree[i] += tree[i + step];
  }
  value = tree[0];
  return true;
}

template <typename Kernel, typename... Arguments>
void RunThreads(Kernel kernel, const Arguments&... arguments) {
  for (threadIdx.z = 0; threadIdx.z < blockDim.z; ++threadIdx.z) {
    for (threadIdx.y = 0; threadIdx.y < blockDim.y; ++threadIdx.y) {
      for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) kernel(arguments...);
    }
  }
}

// kernel<<<blocks, threads>>>(arguments...)
template <typename Kernel, typename... Arguments>
void Launch(Kernel kernel, const Index& blocks, const Index& threads,
            const Arguments&... arguments) {
  gridDim = blocks;
  blockDim = threads;
  for (blockIdx.z = 0; blockIdx.z < blocks.z; ++blockIdx.z) {
    for (blockIdx.y = 0; blockIdx.y < blocks.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < blocks.x; ++blockIdx.x) {
        block_sums.waiting = block_sums.complete = false;
        RunThreads(kernel, arguments...);
        block_sums.complete = true;
        if (block_sums.waiting) RunThreads(kernel, arguments...);
      }
    }
  }
}

}  // namespace rope::kernels::cuda_cpu_shim

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_CPU_SHIM_H_
