// The cpu backend: SIMD kernels on the threads of one pool.
//
// A batch of at most kCpuAloneBytes runs on the calling thread. The bound is kCpuSliceBytes for a
// batch with fused ops, another arithmetic or rows to compose, which takes longer per byte. Larger
// batches are cut by tokens, large tokens by heads, and jobs of several layers by these too, into
// portions of equal size, at most about kCpuSliceBytes, as many for each thread of the pool.
//
// Threading:  As Backend.
// Errors:     None.
#ifndef ROPE_KERNELS_BACKEND_CPU_CPU_BACKEND_H_
#define ROPE_KERNELS_BACKEND_CPU_CPU_BACKEND_H_

#include <cstdint>
#include <memory>

#include "kernels/backend/backend.h"
#include "kernels/backend/cpu/cpu_rotate_function.h"

namespace rope::kernels {

inline constexpr int64_t kCpuSliceBytes = 256 << 10;
// One thread rotates this much in about the time that another thread takes to wake up, and the
// output stays in the cache of the thread that sends it.
inline constexpr int64_t kCpuAloneBytes = 1 << 20;

std::unique_ptr<Backend> MakeCpuBackend(const BackendOptions& options,
                                        const CpuTarget& target = CpuTargets().front());

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_BACKEND_H_
