// The CUDA kernel RotateFused, over a list of CudaJobs: jobs with fused ops (a norm, scales,
// another output dtype), an arithmetic other than kTurn, or elements that are not aligned to their
// size. It handles one element at a time, byte by byte. It is correct but not optimised: with a
// norm, one thread processes a whole head, because it must read all of the head before it changes
// any of it. Adjacent threads then read distant addresses.
//
// Precision:  As backend.h; every rounding is explicit, as in cuda_numbers.cuh.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_FUSED_OPS_CUH_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_FUSED_OPS_CUH_

#include <cstdint>

#include "kernels/backend/cuda/cuda_rotate.cuh"

#if defined(__CUDACC__)
#define ROPE_CUDA_LOOP _Pragma("unroll 1")  // an unrolled body would need more registers
#else
#define ROPE_CUDA_LOOP
#endif

namespace rope::kernels::cuda_device {

// Loads element `index` of the input byte by byte. It avoids branches, because each costs a
// register.
__device__ __forceinline__ float LoadWide(const CudaJob& job, int64_t index) {
  const bool is_float32 = job.dtype == static_cast<uint32_t>(DType::kFloat32);
  const auto* const bytes =
      static_cast<const unsigned char*>(job.input) + index * (is_float32 ? 4 : 2);
  AssumeGlobal(bytes);
  uint32_t bits = bytes[0] | (static_cast<uint32_t>(bytes[1]) << 8);
  if (is_float32) {
    bits |= (static_cast<uint32_t>(bytes[2]) << 16) | (static_cast<uint32_t>(bytes[3]) << 24);
  }
  const float half = Widen(Float16{static_cast<uint16_t>(bits)});
  const bool is_half = job.dtype == static_cast<uint32_t>(DType::kFloat16);
  return is_half ? half : FromBits(is_float32 ? bits : bits << 16);
}

// Scales and rounds `value`, and stores it byte by byte.
__device__ __forceinline__ void Finish(const CudaJob& job, int64_t index, float scale,
                                       float value) {
  // In double, so that multiplying by the inverse is as precise as a division.
  const double scaled = MultiplyRounded(value, scale);
  const auto result = static_cast<float>(scaled * job.inverse_output);
  const auto dtype = static_cast<DType>(job.output_dtype);
  uint32_t bits = ToBits(result);
  if (dtype == DType::kFloat16) bits = Narrow<Float16>(result).bits;
  if (dtype == DType::kBFloat16) bits = Narrow<BFloat16>(result).bits;
  if (dtype == DType::kFloat8E4M3) bits = Narrow<Float8E4M3>(result).bits;
  if (dtype == DType::kFloat8E5M2) bits = Narrow<Float8E5M2>(result).bits;
  uint32_t size = dtype == DType::kFloat32 ? 4 : 2;
  if (dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2) size = 1;
  auto* const bytes = static_cast<unsigned char*>(job.output) + index * size;
  AssumeGlobal(bytes);
  bytes[0] = static_cast<unsigned char>(bits);
  if (size > 1) bytes[1] = static_cast<unsigned char>(bits >> 8);
  if (size > 2) bytes[2] = static_cast<unsigned char>(bits >> 16);
  if (size > 2) bytes[3] = static_cast<unsigned char>(bits >> 24);
}

// Copies an element bit for bit.
__device__ __forceinline__ void CopyBytes(const CudaJob& job, int64_t input, int64_t output) {
  const uint32_t size = job.dtype == static_cast<uint32_t>(DType::kFloat32) ? 4 : 2;
  const auto* const from = static_cast<const unsigned char*>(job.input) + input * size;
  auto* const to = static_cast<unsigned char*>(job.output) + output * size;
  AssumeGlobal(from);
  AssumeGlobal(to);
  ROPE_CUDA_LOOP
  for (uint32_t i = 0; i < size; ++i) to[i] = from[i];
}

// 1 / sqrt(mean(x * x) + eps). The squares are exact in double.
__device__ __forceinline__ float InverseRms(const CudaJob& job, int64_t first) {
  double squares = 0;
  ROPE_CUDA_LOOP
  for (uint32_t i = 0; i < job.head_dim; ++i) {
    const double x = LoadWide(job, first + i);
    squares += x * x;
  }
  return static_cast<float>(InverseSquareRoot(squares * job.channel_share + job.eps));
}

// The factors of a head.
struct Factors {
  float norm;   // before the rotation
  float scale;  // after the rotation
};

__device__ __forceinline__ float LoadNormed(const CudaJob& job, const Factors& factors,
                                            int64_t head, uint32_t channel) {
  const float x = LoadWide(job, head + channel);
  if (job.norm == 0) return x;
  const float normed = MultiplyRounded(x, factors.norm);
  if (job.norm_weight == nullptr) return normed;
  return MultiplyRounded(normed, LoadRowValue(job.norm_weight + channel));
}

// Applies the job's arithmetic to a pair.
__device__ __forceinline__ void Apply(const CudaJob& job, float& a, float& b, float cos,
                                      float sin) {
  const auto arithmetic = static_cast<PairArithmetic>(job.arithmetic);
  const auto dtype = static_cast<DType>(job.dtype);
  if (arithmetic == PairArithmetic::kTurn) {
    Turn(a, b, cos, sin);
  } else if (arithmetic == PairArithmetic::kAdd) {
    a = AddRounded(a, sin);
    b = AddRounded(b, cos);
  } else if (dtype == DType::kFloat16) {
    TurnStepwise<Float16>(a, b, cos, sin);
  } else if (dtype == DType::kBFloat16) {
    TurnStepwise<BFloat16>(a, b, cos, sin);
  } else {
    TurnStepwise<float>(a, b, cos, sin);
  }
}

// Processes pair `chunk` of a head; from job.pairs on, a channel outside the pairs.
__device__ __forceinline__ void FinishChunk(const CudaJob& job, const Factors& factors,
                                            uint32_t token, uint32_t chunk, int64_t input,
                                            int64_t output) {
  const bool half = job.pairing == static_cast<uint32_t>(Pairing::kHalf);
  if (chunk >= job.pairs) {
    const uint32_t channel = CopiedChannel(job, half, chunk - job.pairs);
    if (job.copies != 0) return CopyBytes(job, input + channel, output + channel);
    Finish(job, output + channel, factors.scale, LoadNormed(job, factors, input, channel));
    return;
  }
  const uint32_t channel = job.offset + (half ? chunk : 2 * chunk);
  const uint32_t other = channel + (half ? job.partner : 1);
  float a = LoadNormed(job, factors, input, channel);
  float b = LoadNormed(job, factors, input, other);
  const float* const row = Row(job, token);
  const float sin = LoadRowValue(row + job.pairs + chunk);
  Apply(job, a, b, LoadRowValue(row + chunk), job.conjugate != 0 ? -sin : sin);
  Finish(job, output + channel, factors.scale, a);
  Finish(job, output + other, factors.scale, b);
}

__device__ __forceinline__ void FusedItem(const CudaJob& job, const Item& item) {
  Factors factors = {1, job.scale};
  if (job.token_scales != nullptr) {
    factors.scale = MultiplyRounded(job.scale, LoadRowValue(job.token_scales + item.token));
  }
  const bool whole = job.norm != 0;
  const uint32_t first = whole ? 0 : item.chunk;
  const uint32_t last = whole ? job.head_dim - job.pairs : item.chunk + 1;
  ROPE_CUDA_LOOP
  for (uint32_t head = item.head; head < job.heads; head += job.head_groups) {
    const int64_t input = item.token * job.input_token + head * job.input_head;
    const int64_t output = item.token * job.output_token + head * job.output_head;
    if (whole) factors.norm = InverseRms(job, input);
    ROPE_CUDA_LOOP
    for (uint32_t chunk = first; chunk < last; ++chunk) {
      FinishChunk(job, factors, item.token, chunk, input, output);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256)
    RotateFused(const CudaJob* __restrict__ jobs, uint32_t count) {
  const CudaJob& job = FindJob(jobs, count);
  const uint32_t index = ItemIndex(job);
  if (index < job.items) FusedItem(job, ItemAt(job, index));
}

}  // namespace rope::kernels::cuda_device

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_FUSED_OPS_CUH_
