// The AVX3 kernel with two extensions that Highway 1.0 does not use in AVX3: bf16 conversions
// (AVX512_BF16) and byte permutations (AVX512_VBMI).
//
// Threading:  As cpu_rotate.h.
// Errors:     None.
// Precision:  As Backend. bf16 results below the smallest normal number, 2^-126, become 0, because
//             the conversion instructions flush denormals.
#ifndef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_AVX512BF16_H_
#define ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_AVX512BF16_H_

#include "kernels/backend/cpu/cpu_rotate_function.h"

namespace rope::kernels {

// Returns nullptr if the compiler or this CPU lacks the instructions.
CpuRotateFunction FindAvx512BFloat16Rotate();

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_AVX512BF16_H_
