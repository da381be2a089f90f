#include "tests/bench/workload.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/check.h"
#include "tests/support/plain_frequencies.h"

namespace rope::bench {
namespace {

void CopyPlain(const uint8_t* from, uint8_t* to, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

#if defined(__SSE2__)
void CopyStreaming(const uint8_t* from, uint8_t* to, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) {
    const auto* source = reinterpret_cast<const __m128i*>(from + i);
    auto* target = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();
}
#else
constexpr auto CopyStreaming = CopyPlain;
#endif

using Copy = void(const uint8_t* from, uint8_t* to, int64_t bytes);

std::function<void()> ParallelCopy(kernels::WorkerPool& pool, const Workload& workload,
                                   Copy* copy) {
  return [&pool, &workload, copy] {
    const int64_t part = workload.bytes() / pool.threads() / 64 * 64;
    pool.ParallelFor(pool.threads(), [&](int64_t i) {
      const int64_t begin = i * part;
      const int64_t end = i + 1 == pool.threads() ? workload.bytes() : begin + part;
      copy(workload.input() + begin, workload.output() + begin, end - begin);
    });
  };
}

}  // namespace

std::function<void()> PlainCopy(kernels::WorkerPool& pool, const Workload& workload) {
  return ParallelCopy(pool, workload, &CopyPlain);
}
std::function<void()> StreamingCopy(kernels::WorkerPool& pool, const Workload& workload) {
  return ParallelCopy(pool, workload, &CopyStreaming);
}

Memory Allocate(int64_t bytes) {
  Memory memory(static_cast<uint8_t*>(
      std::aligned_alloc(4096, static_cast<size_t>(bytes + 4095) / 4096 * 4096)));
  ROPE_CHECK(memory != nullptr);
  std::memset(memory.get(), 0x3c, static_cast<size_t>(bytes));
  return memory;
}

int Threads() {
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 16u));
}

Workload::Workload(int64_t tokens, kernels::DType dtype, kernels::Pairing pairing)
    : cache_(int64_t{64} << 20), bytes_(tokens * kHeads * kHeadDim * ElementBytes(dtype)) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < tokens; ++i) positions.push_back(i);
  ROPE_CHECK(cache_.AppendRows(testing::PlainFrequencies(kHeadDim / 2), positions, rows_).ok());
  input_ = Allocate(bytes_);
  output_ = Allocate(bytes_);
  const kernels::Strides strides = {.token = kHeads * kHeadDim, .head = kHeadDim};
  job_ = {.input = input_.get(),
          .output = output_.get(),
          .input_strides = strides,
          .output_strides = strides,
          .tokens = tokens,
          .heads = kHeads,
          .head_dim = kHeadDim,
          .dtype = dtype,
          .geometry = {.pairing = pairing, .pairs = kHeadDim / 2, .partner = kHeadDim / 2},
          .conjugate = false,
          .rows = rows_.rows,
          .streams = bytes_ > kernels::kCachedBytesMax};
}

kernels::RotateJob Workload::job(bool in_place) const {
  kernels::RotateJob job = job_;
  if (in_place) job.output = input_.get();
  return job;
}

}  // namespace rope::bench
