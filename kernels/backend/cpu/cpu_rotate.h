// The CPU kernel of RotateJob: one function for each instruction set that was compiled in and runs
// here.
//
// Threading:  CpuTargets: any thread. The functions: any number of threads at once, on ranges that
//             do not overlap.
// Ownership:  A job and what it points to are borrowed for the call.
// Errors:     None; jobs are validated before.
// Limits:     Touches no byte outside the heads of its range; in place, where a job only turns,
//             only channels of pairs.
// Precision:  As Backend; fp32 within 1.5e-7 * (|a| + |b|) of exact for each pair of channels.
#ifndef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_H_
#define ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_H_

#include <string>
#include <vector>

#include "kernels/backend/cpu/cpu_rotate_function.h"

namespace rope::kernels {

struct CpuTarget {
  std::string name;  // instruction set, for example "AVX3"
  CpuRotateFunction rotate = nullptr;
  // Whether bf16 results below 2^-126 become 0.
  bool flushes_bfloat16_denormals = false;
};

// Best first; never empty. Chosen once for a backend, so that nothing is dispatched for each row.
const std::vector<CpuTarget>& CpuTargets();

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_H_
