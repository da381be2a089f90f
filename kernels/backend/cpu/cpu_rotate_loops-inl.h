// The loops around the formats of cpu_rotate-inl.h and cpu_rotate_bfloat16-inl.h, for one
// instruction set. From the outside in:
//   Rotate        picks the format by dtype and pairing; fused ops and other arithmetic take
//                 RotateFused, which turns one head at a time in a buffer of floats
//   RotateFormat  picks streaming or cached stores
//   RotateSteps   picks loops that are compiled for 1, 2 or 4 whole steps, or general ones
//   RotateBlocks  goes through blocks of tokens whose rows are prepared once for all layers: token
//                 by token (RotateHeads) or, if the tokens of a head are adjacent, head by head
//                 (RotateBlock)
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

template <class Format, bool kStream, class Element = typename Format::Element>
HWY_INLINE size_t RotateStep(const Element* a, Element* to_a, size_t to_second,
                             const typename Format::Row& row, size_t ahead) {
  PrefetchStep(a, a + to_second, ahead);
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
                             const LoadedRow<Format, kLoaded>& loaded, const float* row,
                             size_t ahead = kInputAheadBytes) {
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
    saturated += RotateStep<Format, kStream>(a, to_a, to_second, loaded.steps[i], ahead);
  }
  if constexpr (kWhole) return saturated;
  row += kLoaded * step * Format::kRowFloatsPerPair;
  for (; pairs >= step; pairs -= step, a += elements, to_a += elements) {
    saturated += RotateStep<Format, kStream>(a, to_a, to_second, Format::LoadRow(row), ahead);
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
                   const float* row, size_t ahead) {
  // A local copy, because the compiler assumes that vector stores change any other memory.
  const View<Element> view = shared_view;
  const LoadedRow<Format, kLoaded> loaded(row);
  const Element* from = view.Input(token, range.head_begin);
  Element* to = view.Output(token, range.head_begin);
  size_t saturated = 0;
  for (int64_t left = range.head_end - range.head_begin; left > 0; --left) {
    saturated += RotateHead<Format, kStream, kLoaded, kWhole>(view, from, to, loaded, row, ahead);
    from += view.input_strides.head;
    to += view.output_strides.head;
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

// Prepares the rows of the tokens [begin, end). Returns the distance from a row to the next, in
// floats: 0 if the tokens share one row.
template <class Format>
size_t PrepareRows(const RotateJob& job, int64_t begin, int64_t end, float* row) {
  PrepareToken<Format>(job, begin, row);
  if (job.SharesRow(begin, end)) return 0;
  const size_t row_floats = RowFloats<Format>(job);
  for (int64_t token = begin + 1; token < end; ++token) {
    row += row_floats;
    PrepareToken<Format>(job, token, row);
  }
  return row_floats;
}

template <class Format, bool kStream, size_t kLoaded, bool kWhole,
          class Element = typename Format::Element>
size_t RotateBlocks(const RotateJob& job, const View<Element>& view, const RotateRange& range) {
  const size_t row_floats = RowFloats<Format>(job);
  const size_t block_tokens = HWY_MAX(kRowBlockBytes / (row_floats * sizeof(float)), 1);
  RowBuffer rows(block_tokens * row_floats);
  const int64_t block = static_cast<int64_t>(block_tokens);
  const bool heads_in_tokens = view.output_strides.head <= view.output_strides.token;
  size_t saturated = 0;
  for (int64_t begin = range.token_begin; begin < range.token_end; begin += block) {
    const int64_t end = HWY_MIN(begin + block, range.token_end);
    const size_t row_step = PrepareRows<Format>(job, begin, end, rows.get());
    for (int64_t layer = range.layer_begin; layer < range.layer_end; ++layer) {
      const View<Element> of_layer = view.Layer(layer);
      if (!heads_in_tokens) {
        for (int64_t head = range.head_begin; head < range.head_end; ++head) {
          saturated += RotateBlock<Format, kStream, kLoaded, kWhole>(of_layer, head, begin, end,
                                                                     rows.get(), row_step);
        }
        continue;
      }
      const void* next = range.next;
      if (layer + 1 < range.layer_end) {
        next = view.Layer(layer + 1).Input(begin, range.head_begin);
      } else if (end < range.token_end) {
        next = view.Layer(range.layer_begin).Input(end, range.head_begin);
      }
      const Ahead ahead(of_layer, end, range.head_begin, next);
      const float* row = rows.get();
      for (int64_t token = begin; token < end; ++token, row += row_step) {
        saturated += RotateHeads<Format, kStream, kLoaded, kWhole>(of_layer, token, range, row,
                                                                   ahead.Of(token));
      }
    }
  }
  return saturated;
}

template <class Format, bool kStream, class Element = typename Format::Element>
size_t RotateSteps(const RotateJob& job, const View<Element>& view, const RotateRange& range) {
  const size_t steps = view.pairs / Format::PairsPerStep();
  const bool whole = !view.copies && view.pairs == steps * Format::PairsPerStep();
  if (whole && steps == 1) return RotateBlocks<Format, kStream, 1, true>(job, view, range);
  if (whole && steps == 2) return RotateBlocks<Format, kStream, 2, true>(job, view, range);
  if (whole && steps == 4) return RotateBlocks<Format, kStream, 4, true>(job, view, range);
  if (steps >= 4) return RotateBlocks<Format, kStream, 4, false>(job, view, range);
  if (steps >= 2) return RotateBlocks<Format, kStream, 2, false>(job, view, range);
  return RotateBlocks<Format, kStream, 0, false>(job, view, range);
}

template <class Format>
void RotateFormat(const RotateJob& job, const RotateRange& range) {
  const View<typename Format::Element> view(job);
  size_t saturated = 0;
  if constexpr (sizeof(typename Format::Element) == 1) {
    // Conversions take longer than the loads of a row, and stores are not whole vectors.
    saturated = RotateBlocks<Format, false, 0, false>(job, view, range);
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

// Widens each head to floats, rotates it like an fp32 job in place, and rounds it to the output.
template <class Format>
void RotateFused(const RotateJob& job, const RotateRange& range) {
  if (job.layers > 1) {
    for (int64_t layer = range.layer_begin; layer < range.layer_end; ++layer) {
      RotateFused<Format>(job.Layer(layer), range);
    }
    return;
  }
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
      if (job.OnlyPairs()) {
        CopyUnrotated<Format::kPairing>(view, buffer.raw.get(), buffer.rounded.get(),
                                        static_cast<size_t>(in_bytes));
      }
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
