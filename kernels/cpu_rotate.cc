#include "kernels/cpu_rotate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu_rotate.cc"
#include "hwy/aligned_allocator.h"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu_rotate-inl.h"
#include "kernels/float16.h"

#if HWY_TARGET == HWY_SCALAR
// What is left where a CPU has none of the instruction sets below: one element at a time.
namespace rope::kernels {
namespace HWY_NAMESPACE {
namespace {

template <DType kDType>
float LoadElement(const uint8_t* element) {
  if constexpr (kDType == DType::kFloat32) {
    float value = 0;
    std::memcpy(&value, element, sizeof(value));
    return value;
  } else {
    uint16_t bits = 0;
    std::memcpy(&bits, element, sizeof(bits));
    return kDType == DType::kFloat16 ? FromFloat16(bits) : FromBFloat16(bits);
  }
}

template <DType kDType>
void StoreElement(float value, uint8_t* element) {
  if constexpr (kDType == DType::kFloat32) {
    std::memcpy(element, &value, sizeof(value));
  } else {
    const uint16_t bits = kDType == DType::kFloat16 ? ToFloat16(value) : ToBFloat16(value);
    std::memcpy(element, &bits, sizeof(bits));
  }
}

template <DType kDType>
void RotateHead(const RotateJob& job, const RowRef& row, const uint8_t* from, uint8_t* to) {
  constexpr int64_t kBytes = ElementBytes(kDType);
  if (from != to) std::memcpy(to, from, static_cast<size_t>(job.head_dim * kBytes));
  const PairGeometry& geometry = job.geometry;
  const bool half = geometry.pairing == Pairing::kHalf;
  const int64_t to_second = (half ? geometry.partner : 1) * kBytes;
  for (int64_t i = 0; i < geometry.pairs; ++i) {
    const int64_t first = (geometry.offset + (half ? i : 2 * i)) * kBytes;
    const float a = LoadElement<kDType>(from + first);
    const float b = LoadElement<kDType>(from + first + to_second);
    const float c = row.page->Cos(row.index)[i];
    const float s = job.conjugate ? -row.page->Sin(row.index)[i] : row.page->Sin(row.index)[i];
    StoreElement<kDType>(a * c - b * s, to + first);
    StoreElement<kDType>(b * c + a * s, to + first + to_second);
  }
}

template <DType kDType>
void RotateElements(const RotateJob& job, const RotateRange& range) {
  constexpr int64_t kBytes = ElementBytes(kDType);
  const Strides& in = job.input_strides;
  const Strides& out = job.output_strides;
  for (int64_t token = range.token_begin; token < range.token_end; ++token) {
    for (int64_t head = range.head_begin; head < range.head_end; ++head) {
      RotateHead<kDType>(
          job, job.rows[static_cast<size_t>(token)],
          static_cast<const uint8_t*>(job.input) + (token * in.token + head * in.head) * kBytes,
          static_cast<uint8_t*>(job.output) + (token * out.token + head * out.head) * kBytes);
    }
  }
}

void Rotate(const RotateJob& job, const RotateRange& range, CpuStores /*stores*/) {
  switch (job.dtype) {
    case DType::kFloat32:
      return RotateElements<DType::kFloat32>(job, range);
    case DType::kFloat16:
      return RotateElements<DType::kFloat16>(job, range);
    case DType::kBFloat16:
      return RotateElements<DType::kBFloat16>(job, range);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace rope::kernels

#else   // HWY_TARGET == HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace rope::kernels {
namespace HWY_NAMESPACE {
namespace {

// Streaming stores pay off in whole cache lines only.
constexpr size_t kLineBytes = 64;
// Prepared rows of the tokens that one pass over a head turns; stays in the first-level cache.
constexpr size_t kRowBlockBytes = 16 << 10;

// A job in units of one element type.
template <class Element>
struct View {
  explicit View(const RotateJob& job)
      : input(static_cast<const Element*>(job.input)),
        output(static_cast<Element*>(job.output)),
        input_strides(job.input_strides),
        output_strides(job.output_strides),
        in_place(job.input == job.output),
        pairs(static_cast<size_t>(job.geometry.pairs)),
        offset(static_cast<size_t>(job.geometry.offset)),
        partner(static_cast<size_t>(job.geometry.partner)),
        head_dim(static_cast<size_t>(job.head_dim)) {}

  const Element* Input(int64_t token, int64_t head) const {
    return input + token * input_strides.token + head * input_strides.head;
  }
  Element* Output(int64_t token, int64_t head) const {
    return output + token * output_strides.token + head * output_strides.head;
  }

  const Element* input;
  Element* output;
  Strides input_strides;
  Strides output_strides;
  bool in_place;
  size_t pairs;
  size_t offset;
  size_t partner;
  size_t head_dim;
};

template <class Element>
HWY_INLINE void CopyChannels(const Element* from, Element* to, size_t begin, size_t end) {
  if (begin < end) std::memcpy(to + begin, from + begin, (end - begin) * sizeof(Element));
}

// The channels of a head that no pair holds.
template <Pairing kPairing, class Element>
HWY_INLINE void CopyUnrotated(const View<Element>& view, const Element* from, Element* to) {
  CopyChannels(from, to, 0, view.offset);
  if constexpr (kPairing == Pairing::kHalf) {
    const size_t second = view.offset + view.partner;
    CopyChannels(from, to, view.offset + view.pairs, second);
    CopyChannels(from, to, second + view.pairs, view.head_dim);
  } else {
    CopyChannels(from, to, view.offset + 2 * view.pairs, view.head_dim);
  }
}

// The last pairs of a head, fewer than a step, by way of a buffer: nothing outside the head is
// touched.
template <class Format, class Element = typename Format::Element>
HWY_INLINE void RotateTail(const Element* a, const Element* b, const float* row, Element* to_a,
                           Element* to_b, size_t pairs) {
  const size_t step = Format::PairsPerStep();
  HWY_ALIGN Element buffer[2 * kStepMax] = {};
  if constexpr (Format::kPairing == Pairing::kHalf) {
    std::memcpy(buffer, a, pairs * sizeof(Element));
    std::memcpy(buffer + step, b, pairs * sizeof(Element));
    Format::template Rotate<false>(buffer, buffer + step, row, buffer, buffer + step);
    std::memcpy(to_a, buffer, pairs * sizeof(Element));
    std::memcpy(to_b, buffer + step, pairs * sizeof(Element));
  } else {
    std::memcpy(buffer, a, 2 * pairs * sizeof(Element));
    Format::template Rotate<false>(buffer, buffer + step, row, buffer, buffer + step);
    std::memcpy(to_a, buffer, 2 * pairs * sizeof(Element));
  }
}

template <class Format, bool kStream, class Element = typename Format::Element>
HWY_INLINE void RotateHead(const View<Element>& view, const Element* from, Element* to,
                           const float* row) {
  constexpr bool kHalf = Format::kPairing == Pairing::kHalf;
  if (!view.in_place) CopyUnrotated<Format::kPairing>(view, from, to);
  const size_t step = Format::PairsPerStep();
  const size_t elements = kHalf ? step : 2 * step;
  const size_t to_second = kHalf ? view.partner : step;
  const Element* a = from + view.offset;
  Element* to_a = to + view.offset;
  size_t pairs = view.pairs;
  for (; pairs >= step; pairs -= step) {
    Format::template Rotate<kStream>(a, a + to_second, row, to_a, to_a + to_second);
    a += elements;
    to_a += elements;
    row += step * Format::kRowFloatsPerPair;
  }
  if (pairs != 0) RotateTail<Format>(a, a + to_second, row, to_a, to_a + to_second, pairs);
}

// Whether every run of rotated channels is made of whole, aligned cache lines.
template <Pairing kPairing, class Element>
bool CanStream(const View<Element>& view) {
  if (view.in_place) return false;
  constexpr bool kHalf = kPairing == Pairing::kHalf;
  const size_t odd = reinterpret_cast<uintptr_t>(view.output + view.offset) |
                     static_cast<size_t>(view.output_strides.token) * sizeof(Element) |
                     static_cast<size_t>(view.output_strides.head) * sizeof(Element) |
                     (kHalf ? view.partner : 0) * sizeof(Element) |
                     (kHalf ? view.pairs : 2 * view.pairs) * sizeof(Element);
  return odd % HWY_MAX(kLineBytes, hn::Lanes(U32()) * sizeof(uint32_t)) == 0;
}

// Tokens are taken in blocks whose rows are prepared once. Within a block the loop that moves less
// in memory is the inner one.
template <class Format, bool kStream, class Element = typename Format::Element>
void RotateBlocks(const RotateJob& job, const View<Element>& view, const RotateRange& range) {
  const size_t step = Format::PairsPerStep();
  const size_t row_floats = (view.pairs + step - 1) / step * step * Format::kRowFloatsPerPair;
  const bool heads_inner = view.output_strides.head <= view.output_strides.token;
  const size_t row_bytes = HWY_MAX(row_floats * sizeof(float), 1);
  const int64_t block =
      heads_inner ? 1 : static_cast<int64_t>(HWY_MAX(kRowBlockBytes / row_bytes, 1));
  const auto rows = hwy::AllocateAligned<float>(static_cast<size_t>(block) * row_floats + 1);
  for (int64_t begin = range.token_begin; begin < range.token_end; begin += block) {
    const int64_t end = HWY_MIN(begin + block, range.token_end);
    for (int64_t token = begin; token < end; ++token) {
      const RowRef& ref = job.rows[static_cast<size_t>(token)];
      const TableRow row = {ref.page->Cos(ref.index), ref.page->Sin(ref.index), view.pairs,
                            job.conjugate ? -1.0f : 1.0f};
      Format::PrepareRow(row, rows.get() + static_cast<size_t>(token - begin) * row_floats);
    }
    for (int64_t head = range.head_begin; head < range.head_end; ++head) {
      const float* row = rows.get();
      for (int64_t token = begin; token < end; ++token, row += row_floats) {
        RotateHead<Format, kStream>(view, view.Input(token, head), view.Output(token, head), row);
      }
    }
  }
}

template <class Format>
void RotateFormat(const RotateJob& job, const RotateRange& range, CpuStores stores) {
  const View<typename Format::Element> view(job);
  if (stores == CpuStores::kStreaming && CanStream<Format::kPairing>(view)) {
    RotateBlocks<Format, true>(job, view, range);
    hwy::FlushStream();
  } else {
    RotateBlocks<Format, false>(job, view, range);
  }
}

void Rotate(const RotateJob& job, const RotateRange& range, CpuStores stores) {
  const bool half = job.geometry.pairing == Pairing::kHalf;
  switch (job.dtype) {
    case DType::kFloat32:
      return half ? RotateFormat<HalfFormat<Float32Elements> >(job, range, stores)
                  : RotateFormat<InterleavedFormat<Float32Elements> >(job, range, stores);
    case DType::kFloat16:
      return half ? RotateFormat<HalfFormat<Float16Elements> >(job, range, stores)
                  : RotateFormat<InterleavedFormat<Float16Elements> >(job, range, stores);
    case DType::kBFloat16:
      return half ? RotateFormat<BFloat16HalfFormat>(job, range, stores)
                  : RotateFormat<BFloat16InterleavedFormat>(job, range, stores);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace rope::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET == HWY_SCALAR

#if HWY_ONCE
namespace rope::kernels {

HWY_EXPORT(Rotate);

namespace {

// The place of a target's function in the table that HWY_EXPORT made.
size_t TableIndex(int64_t target) {
  if ((HWY_TARGETS & (HWY_TARGETS - 1)) == 0) return 0;
  hwy::ChosenTarget chosen;
  chosen.Update(target);
  return chosen.GetIndex();
}

std::vector<CpuTarget> FindTargets() {
  std::vector<CpuTarget> targets;
  // Lower bits are better instruction sets. What the compiler assumes everywhere always runs.
  int64_t left = (hwy::SupportedTargets() | HWY_STATIC_TARGET) & HWY_TARGETS;
  for (; left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    targets.push_back({hwy::TargetName(target), HWY_DISPATCH_TABLE(Rotate)[TableIndex(target)]});
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
