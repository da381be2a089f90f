#include "kernels/backend/cpu/cpu_rotate_function.h"

// Compiles two instruction sets, in addition to the compiler's baseline, which Highway requires.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/backend/cpu/cpu_rotate_avx.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#include "kernels/backend/cpu/cpu_rotate_loops-inl.h"
#endif

#if HWY_ONCE
namespace rope::kernels {

std::vector<CpuTarget> AvxTargets() {
  std::vector<CpuTarget> targets;
#if HWY_TARGETS & HWY_AVX3
  if ((hwy::SupportedTargets() & HWY_AVX3) != 0) {
    targets.push_back({.name = "AVX3", .rotate = &N_AVX3::Rotate});
  }
#endif
#if HWY_TARGETS & HWY_AVX2
  if ((hwy::SupportedTargets() & HWY_AVX2) != 0) {
    targets.push_back({.name = "AVX2", .rotate = &N_AVX2::Rotate});
  }
#endif
  return targets;
}

}  // namespace rope::kernels
#endif  // HWY_ONCE
