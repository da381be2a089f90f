#include <immintrin.h>

#include "kernels/backend/cpu/cpu_rotate_function.h"

// Compiles one instruction set, in addition to the compiler's baseline, which Highway requires.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/backend/cpu/cpu_rotate_avx512bf16.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX3
#undef HWY_TARGET_STR  // the compiler's target attributes in HWY_BEFORE_NAMESPACE
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",avx512bf16,avx512vbmi"
#define ROPE_NATIVE_BFLOAT16
#include "kernels/backend/cpu/cpu_rotate_loops-inl.h"
#undef ROPE_NATIVE_BFLOAT16
#endif

#if HWY_ONCE
namespace rope::kernels {

CpuRotateFunction FindAvx512BFloat16Rotate() {
#if HWY_TARGETS & HWY_AVX3
  if ((hwy::SupportedTargets() & HWY_AVX3) != 0 && __builtin_cpu_supports("avx512bf16") &&
      __builtin_cpu_supports("avx512vbmi")) {
    return &N_AVX3::Rotate;
  }
#endif
  return nullptr;
}

}  // namespace rope::kernels
#endif  // HWY_ONCE
