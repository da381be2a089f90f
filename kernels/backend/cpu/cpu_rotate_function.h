// The signature of the CPU kernel, and an instruction set that has one (cpu_rotate.h).
//
// Threading:  Any number of threads at once, on ranges that do not overlap.
#ifndef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_FUNCTION_H_
#define ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_FUNCTION_H_

#include <cstdint>
#include <string>

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

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_FUNCTION_H_
