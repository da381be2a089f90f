// The signature of the CPU kernel, and an instruction set that has one (cpu_rotate.h); the kernel
// for the AVX targets of x86, each in a source that compiles beside cpu_rotate.cc.
//
// Threading:  Any number of threads at once, on ranges that do not overlap.
#ifndef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_FUNCTION_H_
#define ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_FUNCTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/backend/rotate_job.h"

namespace rope::kernels {

// A rectangle of tokens and heads of one job.
struct RotateRange {
  int64_t token_begin = 0;
  int64_t token_end = 0;
  int64_t head_begin = 0;
  int64_t head_end = 0;
};

using CpuRotateFunction = void (*)(const RotateJob& job, const RotateRange& range);

struct CpuTarget {
  std::string name;  // instruction set, for example "AVX3"
  CpuRotateFunction rotate = nullptr;
  // True if bf16 results below 2^-126 become 0.
  bool flushes_bfloat16_denormals = false;
};

// The targets AVX3 and AVX2 as far as this CPU has them, best first.
std::vector<CpuTarget> AvxTargets();

// The AVX3 kernel with two extensions that Highway 1.0 does not use in AVX3: bf16 conversions
// (AVX512_BF16) and byte permutations (AVX512_VBMI). Returns nullptr if the compiler or this CPU
// lacks the instructions. bf16 results below the smallest normal number, 2^-126, become 0, because
// the conversion instructions flush denormals.
CpuRotateFunction FindAvx512BFloat16Rotate();

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_FUNCTION_H_
