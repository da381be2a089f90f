// The CPU kernel of RotateJob: one function per instruction set that is compiled in and runs on
// this CPU.
//
// Threading:  CpuTargets: any thread. The functions: any number of threads at once, on ranges that
//             do not overlap.
// Ownership:  A job and the memory it points to are borrowed for the call.
// Errors:     None; jobs are validated before.
// Limits:     Touches no byte outside the heads of its range. A plain rotation in place touches
//             only channels of pairs.
// Precision:  As Backend; fp32 within 1.5e-7 * (|a| + |b|) of exact for each pair of channels.
#ifndef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_FUNCTION_H_
#define ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_FUNCTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/backend/rotate_job.h"

namespace rope::kernels {

using CpuRotateFunction = void (*)(const RotateJob& job, const RotateRange& range);

struct CpuTarget {
  std::string name;  // instruction set, for example "AVX3"
  CpuRotateFunction rotate = nullptr;
};

// The targets of this CPU, best first; never empty. A backend chooses once, so no row is
// dispatched.
const std::vector<CpuTarget>& CpuTargets();

// Its parts, each in a source that compiles beside cpu_rotate.cc.

// The targets AVX3 and AVX2 as far as this CPU has them, best first.
std::vector<CpuTarget> AvxTargets();

// The AVX3 kernel with two extensions that Highway 1.0 does not use in AVX3: bf16 conversions
// (AVX512_BF16) and byte permutations (AVX512_VBMI). Returns nullptr if the compiler or this CPU
// lacks the instructions. bf16 results below the smallest normal number, 2^-126, become 0, because
// the conversion instructions flush denormals.
CpuRotateFunction FindAvx512BFloat16Rotate();

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_FUNCTION_H_
