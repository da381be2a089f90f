// The loops around the formats of cpu_rotate-inl.h and cpu_rotate_bfloat16-inl.h, for one
// instruction set. From the outside in:
//   Rotate        picks the format by dtype and pairing; fused ops and other arithmetic take
//                 RotateFused, which turns one head at a time in a buffer of floats
//   RotateFormat  picks streaming or cached stores
//   RotateSteps   picks loops that are compiled for 1, 2 or 4 whole steps, or general ones
//   RotateLayout  picks RotateTokens (token by token, all heads of a token) or, if the tokens of a
//                 head are adjacent, RotateBlocks (head by head, in blocks of tokens whose rows are
//                 prepared once for all heads)
//   RotateHead    runs whole steps, then RotateTail
// kLoaded is the number of steps whose part of the row is in registers. kWhole says that these
// steps are the whole head and no channel is copied; code for a rest costs registers even if it
// never runs.
#if defined(ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_LOOPS_INL_H_
#undef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_LOOPS_INL_H_
#else
#define ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_LOOPS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/backend/cpu/cpu_rotate-inl.h"
#include "kernels/backend/cpu/cpu_rotate_bfloat16-inl.h"
#include "kernels/backend/cpu/cpu_rotate_function.h"
#include "kernels/backend/cpu/cpu_rotate_fused-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace rope::kernels {
namespace HWY_NAMESPACE {
namespace {

// Streaming stores pay off in whole cache lines only.
constexpr size_t kLineBytes = 64;

// Distance at which input is prefetched: the hardware's prefetching stops at every memory page.
constexpr size_t kInputAheadBytes = 4096;
// The same for cached output: a store that waits for its cache line, even from the second-level
// cache, delays all stores after it.
constexpr size_t kOutputAheadBytes = 1024;

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
        head_dim(static_cast<size_t>(job.head_dim)),
        copies(!in_place && 2 * pairs != head_dim) {}

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
  bool copies;  // whether channels outside the pairs must be copied to the output
};

template <class Element>
HWY_INLINE void PrefetchStep(const Element* a, const Element* b, size_t bytes_ahead) {
  hwy::Prefetch(reinterpret_cast<const uint8_t*>(a) + bytes_ahead);
  hwy::Prefetch(reinterpret_cast<const uint8_t*>(b) + bytes_ahead);
}

template <class Element>
HWY_INLINE void CopyChannels(const Element* from, Element* to, size_t begin, size_t end) {
  if (begin < end) std::memcpy(to + begin, from + begin, (end - begin) * sizeof(Element));
}

// Copies the channels of a head outside the pairs.
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

template <class Format, bool kStream, class Element = typename Format::Element>
HWY_INLINE size_t RotateStep(const Element* a, Element* to_a, size_t to_second,
                             const typename Format::Row& row) {
  PrefetchStep(a, a + to_second, kInputAheadBytes);
  if constexpr (!kStream) PrefetchStep(to_a, to_a + to_second, kOutputAheadBytes);
  return Format::template Rotate<kStream>(a, a + to_second, row, to_a, to_a + to_second);
}

// The last pairs of a head, fewer than a step. They go through a buffer, so that no byte outside
// the head is read or written.
template <class Format, class Element = typename Format::Element>
HWY_INLINE size_t RotateTail(const Element* a, const Element* b, const float* row, Element* to_a,
                             Element* to_b, size_t pairs) {
  const size_t step = Format::PairsPerStep();
  HWY_ALIGN Element buffer[2 * kStepMax] = {};
  constexpr bool kHalf = Format::kPairing == Pairing::kHalf;
  const size_t run = (kHalf ? pairs : 2 * pairs) * sizeof(Element);
  std::memcpy(buffer, a, run);
  if (kHalf) std::memcpy(buffer + step, b, run);
  const size_t saturated = Format::template Rotate<false>(
      buffer, buffer + step, Format::LoadRow(row), buffer, buffer + step);
  std::memcpy(to_a, buffer, run);
  if (kHalf) std::memcpy(to_b, buffer + step, run);
  return saturated;
}

// The first kLoaded steps of a prepared row, in registers.
template <class Format, size_t kLoaded>
struct LoadedRow {
  HWY_INLINE explicit LoadedRow(const float* row) {
    for (size_t i = 0; i < kLoaded; ++i) {
      steps[i] = Format::LoadRow(row + i * Format::PairsPerStep() * Format::kRowFloatsPerPair);
    }
  }
  typename Format::Row steps[kLoaded + 1];  // there are no arrays of 0
};

template <class Format, bool kStream, size_t kLoaded, bool kWhole,
          class Element = typename Format::Element>
HWY_INLINE size_t RotateHead(const View<Element>& view, const Element* from, Element* to,
                             const LoadedRow<Format, kLoaded>& loaded, const float* row) {
  constexpr bool kHalf = Format::kPairing == Pairing::kHalf;
  if (!kWhole && view.copies) CopyUnrotated<Format::kPairing>(view, from, to);
  const size_t step = Format::PairsPerStep();
  const size_t elements = kHalf ? step : 2 * step;
  const size_t to_second = kHalf ? view.partner : step;
  const Element* a = from + view.offset;
  Element* to_a = to + view.offset;
  size_t pairs = view.pairs;
  size_t saturated = 0;
  for (size_t i = 0; i < kLoaded; ++i, pairs -= step, a += elements, to_a += elements) {
    saturated += RotateStep<Format, kStream>(a, to_a, to_second, loaded.steps[i]);
  }
  if constexpr (kWhole) return saturated;
  row += kLoaded * step * Format::kRowFloatsPerPair;
  for (; pairs >= step; pairs -= step, a += elements, to_a += elements) {
    saturated += RotateStep<Format, kStream>(a, to_a, to_second, Format::LoadRow(row));
    row += step * Format::kRowFloatsPerPair;
  }
  if (pairs != 0) {
    saturated += RotateTail<Format>(a, a + to_second, row, to_a, to_a + to_second, pairs);
  }
  return saturated;
}

// Whether every run of rotated channels consists of whole, aligned cache lines.
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

template <class Format, bool kStream, size_t kLoaded, bool kWhole,
          class Element = typename Format::Element>
size_t RotateHeads(const View<Element>& shared_view, int64_t token, const RotateRange& range,
                   const float* row) {
  // A local copy, because the compiler assumes that vector stores change any other memory.
  const View<Element> view = shared_view;
  const LoadedRow<Format, kLoaded> loaded(row);
  const Element* from = view.Input(token, range.head_begin);
  Element* to = view.Output(token, range.head_begin);
  size_t saturated = 0;
  for (int64_t left = range.head_end - range.head_begin; left > 0; --left) {
    saturated += RotateHead<Format, kStream, kLoaded, kWhole>(view, from, to, loaded, row);
    from += view.input_strides.head;
    to += view.output_strides.head;
  }
  return saturated;
}

template <class Format, bool kStream, size_t kLoaded, bool kWhole,
          class Element = typename Format::Element>
size_t RotateTokens(const RotateJob& job, const View<Element>& view, const RotateRange& range) {
  RowBuffer row(RowFloats<Format>(job));
  size_t saturated = 0;
  for (int64_t token = range.token_begin; token < range.token_end; ++token) {
    const bool is_prepared = token > range.token_begin && job.SharesRow(static_cast<size_t>(token));
    if (!is_prepared) PrepareToken<Format>(job, token, row.get());
    saturated += RotateHeads<Format, kStream, kLoaded, kWhole>(view, token, range, row.get());
  }
  return saturated;
}

template <class Format, bool kStream, size_t kLoaded, bool kWhole,
          class Element = typename Format::Element>
size_t RotateBlock(const View<Element>& shared_view, int64_t head, int64_t begin, int64_t end,
                   const float* row, size_t row_floats) {
  const View<Element> view = shared_view;  // as in RotateHeads
  const Element* from = view.Input(begin, head);
  Element* to = view.Output(begin, head);
  size_t saturated = 0;
  for (int64_t left = end - begin; left > 0; --left) {
    saturated += RotateHead<Format, kStream, kLoaded, kWhole>(view, from, to,
                                                              LoadedRow<Format, kLoaded>(row), row);
    from += view.input_strides.token;
    to += view.output_strides.token;
    row += row_floats;
  }
  return saturated;
}

template <class Format, bool kStream, size_t kLoaded, bool kWhole,
          class Element = typename Format::Element>
size_t RotateBlocks(const RotateJob& job, const View<Element>& view, const RotateRange& range) {
  const size_t row_floats = RowFloats<Format>(job);
  const size_t block_tokens = HWY_MAX(kRowBlockBytes / (row_floats * sizeof(float)), 1);
  RowBuffer rows(block_tokens * row_floats);
  const int64_t block = static_cast<int64_t>(block_tokens);
  size_t saturated = 0;
  for (int64_t begin = range.token_begin; begin < range.token_end; begin += block) {
    const int64_t end = HWY_MIN(begin + block, range.token_end);
    float* row = rows.get();
    for (int64_t token = begin; token < end; ++token, row += row_floats) {
      PrepareToken<Format>(job, token, row);
    }
    for (int64_t head = range.head_begin; head < range.head_end; ++head) {
      saturated += RotateBlock<Format, kStream, kLoaded, kWhole>(view, head, begin, end, rows.get(),
                                                                 row_floats);
    }
  }
  return saturated;
}

template <class Format, bool kStream, size_t kLoaded, bool kWhole,
          class Element = typename Format::Element>
size_t RotateLayout(const RotateJob& job, const View<Element>& view, const RotateRange& range) {
  return view.output_strides.head <= view.output_strides.token
             ? RotateTokens<Format, kStream, kLoaded, kWhole>(job, view, range)
             : RotateBlocks<Format, kStream, kLoaded, kWhole>(job, view, range);
}

template <class Format, bool kStream, class Element = typename Format::Element>
size_t RotateSteps(const RotateJob& job, const View<Element>& view, const RotateRange& range) {
  const size_t steps = view.pairs / Format::PairsPerStep();
  const bool whole = !view.copies && view.pairs == steps * Format::PairsPerStep();
  if (whole && steps == 1) return RotateLayout<Format, kStream, 1, true>(job, view, range);
  if (whole && steps == 2) return RotateLayout<Format, kStream, 2, true>(job, view, range);
  if (whole && steps == 4) return RotateLayout<Format, kStream, 4, true>(job, view, range);
  if (steps >= 4) return RotateLayout<Format, kStream, 4, false>(job, view, range);
  if (steps >= 2) return RotateLayout<Format, kStream, 2, false>(job, view, range);
  return RotateLayout<Format, kStream, 0, false>(job, view, range);
}

template <class Format>
void RotateFormat(const RotateJob& job, const RotateRange& range) {
  const View<typename Format::Element> view(job);
  size_t saturated = 0;
  if constexpr (sizeof(typename Format::Element) == 1) {
    // Conversions take longer than the loads of a row, and stores are not whole vectors.
    saturated = RotateLayout<Format, false, 0, false>(job, view, range);
  } else if (job.streams && CanStream<Format::kPairing>(view)) {
    saturated = RotateSteps<Format, true>(job, view, range);
    hwy::FlushStream();
  } else {
    saturated = RotateSteps<Format, false>(job, view, range);
  }
  job.AddSaturated(static_cast<int64_t>(saturated));
}

template <class Elements>
void RotatePairing(const RotateJob& job, const RotateRange& range) {
  if (job.geometry.pairing == Pairing::kHalf)
    return RotateFormat<HalfFormat<Elements> >(job, range);
  RotateFormat<InterleavedFormat<Elements> >(job, range);
}

// Restores the channels outside the pairs bit for bit, for a job without fused ops.
template <Pairing kPairing, class Element>
HWY_INLINE void RestoreUnrotated(const RotateJob& job, const HeadBuffer& buffer) {
  CopyUnrotated<kPairing>(View<Element>(job), reinterpret_cast<Element*>(buffer.raw.get()),
                          reinterpret_cast<Element*>(buffer.rounded.get()));
}
template <Pairing kPairing>
HWY_INLINE void RestoreUnrotated(const RotateJob& job, const HeadBuffer& buffer) {
  if (job.dtype == DType::kFloat32) return RestoreUnrotated<kPairing, float>(job, buffer);
  if (IsFloat8(job.dtype)) return RestoreUnrotated<kPairing, uint8_t>(job, buffer);
  RestoreUnrotated<kPairing, uint16_t>(job, buffer);
}

// Widens each head to floats, rotates it like an fp32 job in place, and rounds it to the output.
template <class Format>
void RotateFused(const RotateJob& job, const RotateRange& range) {
  const HeadBuffer buffer(job);
  float* const values = buffer.values.get();
  RotateJob turn = job;
  turn.input = turn.output = values;
  const View<float> view(turn);
  RowBuffer row(RowFloats<Format>(job));
  const int64_t in_bytes = ElementBytes(job.dtype);
  const int64_t out_bytes = ElementBytes(job.stored());
  size_t saturated = 0;
  for (int64_t token = range.token_begin; token < range.token_end; ++token) {
    PrepareToken<Format>(job, token, row.get());
    const float scale = job.token_scales.empty()
                            ? job.scale
                            : job.scale * job.token_scales[static_cast<size_t>(token)];
    const auto* const from =
        static_cast<const uint8_t*>(job.input) + token * job.input_strides.token * in_bytes;
    auto* const to =
        static_cast<uint8_t*>(job.output) + token * job.output_strides.token * out_bytes;
    for (int64_t head = range.head_begin; head < range.head_end; ++head) {
      WidenHead(job, from + head * job.input_strides.head * in_bytes, buffer);
      if (job.norm) NormaliseHead(job.norm->eps, buffer);
      RotateHead<Format, false, 0, false>(view, values, values, LoadedRow<Format, 0>(row.get()),
                                          row.get());
      // What is copied does not saturate: any finite number may take its place until then.
      if (job.OnlyPairs()) CopyUnrotated<Format::kPairing>(view, buffer.weight.get(), values);
      saturated += NarrowHead(job, scale, buffer);
      if (job.OnlyPairs()) RestoreUnrotated<Format::kPairing>(job, buffer);
      std::memcpy(to + head * job.output_strides.head * out_bytes, buffer.rounded.get(),
                  static_cast<size_t>(job.head_dim * out_bytes));
    }
  }
  job.AddSaturated(static_cast<int64_t>(saturated));
}

template <class Arithmetic>
void RotateFusedWith(const RotateJob& job, const RotateRange& range) {
  if (job.geometry.pairing == Pairing::kHalf) {
    RotateFused<HalfFormat<Float32Elements, Arithmetic> >(job, range);
  } else {
    RotateFused<InterleavedFormat<Float32Elements, Arithmetic> >(job, range);
  }
}

void RotateFused(const RotateJob& job, const RotateRange& range) {
  if (job.arithmetic == PairArithmetic::kTurn) return RotateFusedWith<FusedTurn>(job, range);
  if (job.arithmetic == PairArithmetic::kAdd) return RotateFusedWith<Addition>(job, range);
  if (job.dtype == DType::kFloat32) {
    RotateFusedWith<StepwiseTurn<Float32Elements> >(job, range);
  } else if (job.dtype == DType::kFloat16) {
    RotateFusedWith<StepwiseTurn<Float16Elements> >(job, range);
  } else {
    RotateFusedWith<StepwiseTurn<BFloat16Elements> >(job, range);
  }
}

void Rotate(const RotateJob& job, const RotateRange& range) {
  if (!job.OnlyTurns()) return RotateFused(job, range);
  switch (job.dtype) {
    case DType::kFloat32:
      return RotatePairing<Float32Elements>(job, range);
    case DType::kFloat16:
      return RotatePairing<Float16Elements>(job, range);
    case DType::kBFloat16:
      return job.geometry.pairing == Pairing::kHalf
                 ? RotateFormat<BFloat16HalfFormat>(job, range)
                 : RotateFormat<BFloat16InterleavedFormat>(job, range);
    case DType::kFloat8E4M3:
      return RotatePairing<Float8E4M3Elements>(job, range);
    case DType::kFloat8E5M2:
      return RotatePairing<Float8E5M2Elements>(job, range);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace rope::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_LOOPS_INL_H_
