// The AVX3 kernel with instructions that some CPUs have and Highway 1.0 does not use there: bf16
// conversions (AVX512_BF16) and permutations of bytes (AVX512_VBMI).
//
// Threading:  As cpu_rotate.h.
// Errors:     None.
// Precision:  As Backend; bf16 results below the smallest normal number, 2^-126, become 0, because
//             the conversions have no denormals.
#ifndef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_AVX512BF16_H_
#define ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_AVX512BF16_H_

#include "kernels/backend/cpu/cpu_rotate_function.h"

namespace rope::kernels {

// Null where the compiler or this CPU lacks the instructions.
CpuRotateFunction FindAvx512BFloat16Rotate();

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_AVX512BF16_H_
