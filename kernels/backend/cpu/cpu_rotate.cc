#include "kernels/backend/cpu/cpu_rotate.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

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
#include "kernels/backend/cpu/cpu_rotate_function.h"
#include "kernels/backend/cpu/cpu_rotate_loops-inl.h"
#include "kernels/dtype/element.h"

#if HWY_TARGET == HWY_SCALAR
// The fallback for a CPU without any of the other instruction sets: one element at a time.
namespace rope::kernels {
namespace HWY_NAMESPACE {
namespace {

float RoundedTo32(double value, DType dtype) {
  return static_cast<float>(RoundedTo(value, dtype));
}

// Applies the job's arithmetic to the pairs of a head of floats. -ffp-contract=off keeps the
// compiler from fusing the steps.
void ApplyToHead(const RotateJob& job, int64_t token, float* head) {
  const PairGeometry& geometry = job.geometry;
  std::vector<float> composed;
  const float* const cos = RowOf(job, token, composed);
  const float* const sin = cos + geometry.pairs;
  const bool half = geometry.pairing == Pairing::kHalf;
  const auto rounded = [&job](float value) { return RoundedTo32(value, job.dtype); };
  for (int64_t i = 0; i < geometry.pairs; ++i) {
    float& first = head[geometry.offset + (half ? i : 2 * i)];
    float& second = (&first)[half ? geometry.partner : 1];
    const float a = first;
    const float b = second;
    const float c = cos[i];
    const float s = job.conjugate ? -sin[i] : sin[i];
    if (job.arithmetic == PairArithmetic::kTurn) {
      first = a * c - b * s;
      second = b * c + a * s;
    } else if (job.arithmetic == PairArithmetic::kAdd) {
      first = a + s;
      second = b + c;
    } else {
      first = rounded(rounded(a * c) - rounded(b * s));
      second = rounded(rounded(b * c) + rounded(a * s));
    }
  }
}

// Rotates one head: widens it to floats, computes in floats, and rounds once. Returns the number of
// elements that saturate.
int64_t RotateHead(const RotateJob& job, int64_t token, const uint8_t* from, uint8_t* to,
                   std::vector<float>& head) {
  for (size_t i = 0; i < head.size(); ++i) {
    const auto offset = static_cast<int64_t>(i) * ElementBytes(job.dtype);
    head[i] = static_cast<float>(ReadElement(from + offset, job.dtype));
  }
  if (job.norm) {
    double squares = 0;
    for (const float x : head) squares += static_cast<double>(x) * x;
    const double rms = std::sqrt(squares / static_cast<double>(head.size()) + job.norm->eps);
    const auto factor = static_cast<float>(1.0 / rms);
    for (size_t i = 0; i < head.size(); ++i) {
      head[i] = head[i] * factor * (job.norm->weight == nullptr ? 1.0f : job.norm->weight[i]);
    }
  }
  const size_t index = static_cast<size_t>(token);
  ApplyToHead(job, token, head.data());
  const float scale = job.scale * (job.token_scales.empty() ? 1.0f : job.token_scales[index]);
  const bool copies = job.OnlyPairs();
  if (copies && from != to) std::memcpy(to, from, head.size() * ElementBytes(job.dtype));
  int64_t saturated = 0;
  for (size_t i = 0; i < head.size(); ++i) {
    if (copies && !job.geometry.Holds(static_cast<int64_t>(i))) continue;
    const auto offset = static_cast<int64_t>(i) * ElementBytes(job.stored());
    const float scaled = head[i] * scale;
    const float value = scaled / job.output_scale;
    saturated += Saturates(value, job.stored()) ? 1 : 0;
    WriteElement(value, job.stored(), to + offset);
  }
  return saturated;
}

void Rotate(const RotateJob& job, const RotateRange& range) {
  std::vector<float> head_values(static_cast<size_t>(job.head_dim));
  int64_t saturated = 0;
  const Strides& in = job.input_strides;
  const Strides& out = job.output_strides;
  for (int64_t token = range.token_begin; token < range.token_end; ++token) {
    for (int64_t head = range.head_begin; head < range.head_end; ++head) {
      const auto* const from = static_cast<const uint8_t*>(job.input) +
                               (token * in.token + head * in.head) * ElementBytes(job.dtype);
      auto* const to = static_cast<uint8_t*>(job.output) +
                       (token * out.token + head * out.head) * ElementBytes(job.stored());
      saturated += RotateHead(job, token, from, to, head_values);
    }
  }
  job.AddSaturated(saturated);
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
    targets.push_back({.name = "AVX3_BF16", .rotate = rotate, .flushes_bfloat16_denormals = true});
  }
  for (CpuTarget& target : AvxTargets()) targets.push_back(std::move(target));
#endif
  // Lower bits are better instruction sets. The compiler's baseline always runs.
  int64_t left = (hwy::SupportedTargets() | HWY_STATIC_TARGET) & HWY_TARGETS;
  for (; left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    targets.push_back({.name = hwy::TargetName(target),
                       .rotate = HWY_DISPATCH_TABLE(Rotate)[TableIndex(target)],
                       .flushes_bfloat16_denormals = false});
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
