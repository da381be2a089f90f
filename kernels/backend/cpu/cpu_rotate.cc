#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/backend/cpu/cpu_rotate_function.h"

// Prepared rows are kept in structs and arrays of vectors. Vectors without a fixed size cannot be.
// cpu_rotate_avx.cc has the other targets of x86, so that neither file takes long to compile.
// Only processors of 2006 have SSSE3 and no SSE4.
#define HWY_DISABLED_TARGETS                                                                     \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3 | HWY_AVX2 | HWY_AVX3 | \
   HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/backend/cpu/cpu_rotate.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/cpu/cpu_rotate_loops-inl.h"

#if HWY_TARGET == HWY_SCALAR
// The fallback for a CPU without any of the other instruction sets: the reference's arithmetic.
namespace rope::kernels {
namespace HWY_NAMESPACE {
namespace {

void Rotate(const RotateJob& job, const RotateRange& range) {
  RotateReference(job, range);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace rope::kernels

#endif  // HWY_TARGET == HWY_SCALAR

#if HWY_ONCE
namespace rope::kernels {

HWY_EXPORT(Rotate);

namespace {

// The index of a target's function in HWY_EXPORT's table.
size_t TableIndex(int64_t target) {
  if ((HWY_TARGETS & (HWY_TARGETS - 1)) == 0) return 0;
  hwy::ChosenTarget chosen;
  chosen.Update(target);
  return chosen.GetIndex();
}

std::vector<CpuTarget> FindTargets() {
  std::vector<CpuTarget> targets;
#if HWY_ARCH_X86
  if (const CpuRotateFunction rotate = FindAvx512BFloat16Rotate()) {
    targets.push_back({.name = "AVX3_BF16", .rotate = rotate});
  }
  for (CpuTarget& target : AvxTargets()) targets.push_back(std::move(target));
#endif
  // Lower bits are better instruction sets. The compiler's baseline always runs.
  int64_t left = (hwy::SupportedTargets() | HWY_STATIC_TARGET) & HWY_TARGETS;
  for (; left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    targets.push_back({.name = hwy::TargetName(target),
                       .rotate = HWY_DISPATCH_TABLE(Rotate)[TableIndex(target)]});
  }
  return targets;
}

}  // namespace

const std::vector<CpuTarget>& CpuTargets() {
  static const std::vector<CpuTarget> targets = FindTargets();
  return targets;
}

}  // namespace rope::kernels
#endif  // HWY_ONCE
