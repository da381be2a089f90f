// The parts of CUDA's language that a kernel without barriers needs, for a plain C++ compiler. With
// it the source of cuda_rotate.cuh runs on the CPU, one CUDA thread after the other. nvcc never
// compiles this header.
//
// Threading:  Launches on different threads are independent.
// Errors:     A 16-byte access at an address that is not a multiple of 16 stops the process; a
//             device would report a fault.
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
};

inline void CheckAligned(const void* address, uintptr_t bytes) {
  ROPE_CHECK(reinterpret_cast<uintptr_t>(address) % bytes == 0);
}

}  // namespace rope::kernels::cuda_cpu_shim

// CUDA's names. NOLINTBEGIN(readability-identifier-naming)
inline thread_local rope::kernels::cuda_cpu_shim::Index threadIdx;
inline thread_local rope::kernels::cuda_cpu_shim::Index blockIdx;
inline thread_local rope::kernels::cuda_cpu_shim::Index blockDim;
// NOLINTEND(readability-identifier-naming)

namespace rope::kernels::cuda_cpu_shim {

// kernel<<<blocks, threads>>>(arguments...)
template <typename Kernel, typename... Arguments>
void Launch(Kernel kernel, uint32_t blocks, uint32_t threads, const Arguments&... arguments) {
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) kernel(arguments...);
  }
}

}  // namespace rope::kernels::cuda_cpu_shim

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_CPU_SHIM_H_
