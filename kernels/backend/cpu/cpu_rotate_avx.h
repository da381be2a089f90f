// The CPU kernel for the AVX targets of x86, each in a source that compiles beside cpu_rotate.cc.
//
// Threading:  As cpu_rotate.h.
// Errors:     None.
// Precision:  As Backend. With FindAvx512BFloat16Rotate, bf16 results below the smallest normal
//             number, 2^-126, become 0, because the conversion instructions flush denormals.
#ifndef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_AVX_H_
#define ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_AVX_H_

#include <vector>

#include "kernels/backend/cpu/cpu_rotate_function.h"

namespace rope::kernels {

// The targets AVX3 and AVX2 as far as this CPU has them, best first.
std::vector<CpuTarget> AvxTargets();

// The AVX3 kernel with two extensions that Highway 1.0 does not use in AVX3: bf16 conversions
// (AVX512_BF16) and byte permutations (AVX512_VBMI). Returns nullptr if the compiler or this CPU
// lacks the instructions.
CpuRotateFunction FindAvx512BFloat16Rotate();

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_AVX_H_
