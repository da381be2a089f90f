// The cpu backend: SIMD kernels, threads from one pool.
//
// A batch of at most kCpuAloneBytes runs on the calling thread; one that does more than turn pairs,
// which takes several times as long, up to kCpuSliceBytes. Larger ones are cut into slices of about
// kCpuSliceBytes, by tokens and then heads, which the pool's threads share out; small jobs gather
// in one slice.
//
// Threading:  As Backend.
// Errors:     None.
#ifndef ROPE_KERNELS_BACKEND_CPU_CPU_BACKEND_H_
#define ROPE_KERNELS_BACKEND_CPU_CPU_BACKEND_H_

#include <cstdint>
#include <memory>

#include "kernels/backend/backend.h"
#include "kernels/backend/cpu/cpu_rotate.h"

namespace rope::kernels {

inline constexpr int64_t kCpuSliceBytes = 256 << 10;
// One thread's time for it is about that in which another one wakes up, and its output stays in the
// cache of the thread that sends it.
inline constexpr int64_t kCpuAloneBytes = 1 << 20;
// Batches with more output than this are written with streaming stores.
inline constexpr int64_t kCpuStreamingBytes = 8 << 20;

std::unique_ptr<Backend> MakeCpuBackend(const BackendOptions& options,
                                        const CpuTarget& target = CpuTargets().front());

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_BACKEND_H_
