// The CUDA kernels over a CudaRectangle: up to four tensors that share tokens and rows.
//
// The grid has a thread for each piece of each head of each token: threads (chunk, head, token),
// blocks (heads of all tensors, tokens, more tokens). So a thread searches nothing and divides
// nothing, and it has no loop. Its piece is two vectors of 16 bytes (fp8: 8) with both channels of
// their pairs, which it loads before it needs anything else; or, behind the pairs, two vectors
// of channels outside of them. Either two are half of a range apart, so neighbours read what is
// adjacent. q and k of a token are neighbours in the grid, so a row comes from memory once.
//
// Precision:  As backend.h; cuda_numbers.cuh.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_RECTANGLE_CUH_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_RECTANGLE_CUH_

#include <cstdint>

#include "kernels/backend/cuda/cuda_rotate.cuh"

namespace rope::kernels::cuda_device {

// Number `index` of an array of int32 or (wide) int64.
__device__ __forceinline__ int64_t NumberAt(const void* numbers, uint32_t wide, uint32_t index) {
#if defined(__CUDACC__)
  if (wide != 0) return __ldg(static_cast<const long long*>(numbers) + index);
  return __ldg(static_cast<const int*>(numbers) + index);
#else
  if (wide != 0) return static_cast<const int64_t*>(numbers)[index];
  return static_cast<const int32_t*>(numbers)[index];
#endif
}

__device__ __forceinline__ void CountOne(uint32_t* count) {
#if defined(__CUDACC__)
  atomicAdd(count, 1u);
#else
  ++*count;
#endif
}

// Adds the values of the threads of a head. Returns false if the thread has to end
// (cuda_cpu_shim.h). REQUIRES: all of them call this; they are a power of two, at most 32.
__device__ __forceinline__ bool SumOfHead(double& value) {
#if defined(__CUDACC__)
  const uint32_t width = blockDim.x;
  const uint32_t first = width * (threadIdx.y + blockDim.y * threadIdx.z) % 32;
  const uint32_t mask = (0xffffffffu >> (32 - width)) << first;
  ROPE_CUDA_UNROLL
  for (uint32_t step = 16; step > 0; step /= 2) {
    if (step < width) value += __shfl_xor_sync(mask, value, step);
  }
  return true;
#else
  return cuda_cpu_shim::SumOfHead(value);
#endif
}

// The number of the token's row in the table.
__device__ __forceinline__ int64_t RowNumber(const CudaRectangle& work, uint32_t token,
                                             bool counts) {
  int64_t number = work.first_row + static_cast<int64_t>(token) * work.row_step;
  if (work.positions != nullptr) number = NumberAt(work.positions, work.wide_positions, token);
  if (static_cast<uint64_t>(number) < static_cast<uint64_t>(work.row_count)) return number;
  if (counts && work.positions_outside != nullptr) CountOne(work.positions_outside);
  return work.row_count - 1;
}

// kCount floats of a row in device memory, or in the parameter.
template <uint32_t kCount>
__device__ __forceinline__ void LoadFloats(const float* address, float* values) {
#if defined(__CUDACC__)
  using Bits = std::conditional_t<kCount == 2, float2, float4>;
  ROPE_CUDA_UNROLL
  for (uint32_t i = 0; i < kCount; i += sizeof(Bits) / sizeof(float)) {
    const Bits bits = __ldg(reinterpret_cast<const Bits*>(address + i));
    memcpy(values + i, &bits, sizeof(bits));
  }
#else
  cuda_cpu_shim::CheckAligned(address, kCount == 2 ? 8 : 16);
  memcpy(values, address, kCount * sizeof(float));
#endif
}
template <uint32_t kCount>
__device__ __forceinline__ void LoadParameters(const float* address, float* values) {
#if defined(__CUDACC__)
  ROPE_CUDA_UNROLL
  for (uint32_t i = 0; i < kCount; i += 2) {
    const float2 bits = *reinterpret_cast<const float2*>(address + i);
    memcpy(values + i, &bits, sizeof(bits));
  }
#else
  memcpy(values, address, kCount * sizeof(float));
#endif
}

// cos and sin of a thread's pairs: in the order of ForPairs.
template <uint32_t kWidth>
struct Angles {
  float cos[kWidth];
  float sin[kWidth];
};

template <typename T, Pairing kPairing>
__device__ __forceinline__ void LoadAngles(const CudaRectangle& work, uint32_t token, bool counts,
                                           Angles<Vector<T>::kWidth>& angles) {
  constexpr uint32_t kPart = Vector<T>::kWidth / 2;  // of pairs whose rows are adjacent
  constexpr bool kHalf = kPairing == Pairing::kHalf;
  const uint32_t first = threadIdx.x * (kHalf ? 2 * kPart : kPart);
  const CudaJob& job = work.jobs[0];
  const uint32_t second = first + (kHalf ? kPart : job.pairs / 2);
  if (work.rows == nullptr) {
    const float* const cos = work.row;
    LoadParameters<kPart>(cos + first, angles.cos);
    LoadParameters<kPart>(cos + second, angles.cos + kPart);
    LoadParameters<kPart>(cos + job.pairs + first, angles.sin);
    LoadParameters<kPart>(cos + job.pairs + second, angles.sin + kPart);
  } else {
    const float* const cos = work.rows + RowNumber(work, token, counts) * (2 * job.pairs);
    const float* const sin = cos + job.pairs;
    if (kHalf) {
      LoadFloats<2 * kPart>(cos + first, angles.cos);
      LoadFloats<2 * kPart>(sin + first, angles.sin);
    } else {
      LoadFloats<kPart>(cos + first, angles.cos);
      LoadFloats<kPart>(cos + second, angles.cos + kPart);
      LoadFloats<kPart>(sin + first, angles.sin);
      LoadFloats<kPart>(sin + second, angles.sin + kPart);
    }
  }
  const uint32_t sign = job.conjugate << 31;
  ROPE_CUDA_UNROLL
  for (uint32_t i = 0; i < 2 * kPart; ++i) angles.sin[i] = FromBits(ToBits(angles.sin[i]) ^ sign);
}

// The channels of the thread's pairs; from the last pair on, of up to two vectors outside the
// pairs.
template <typename T, Pairing kPairing>
__device__ __forceinline__ Channels ChannelsOf(const CudaJob& job) {
  constexpr bool kHalf = kPairing == Pairing::kHalf;
  constexpr uint32_t kWidth = Vector<T>::kWidth;
  const uint32_t turned = job.pairs / kWidth;
  if (threadIdx.x < turned) {
    const uint32_t channel = job.offset + threadIdx.x * kWidth;
    return {channel, channel + (kHalf ? job.partner : job.pairs), true};
  }
  const uint32_t first = (threadIdx.x - turned) * kWidth;
  const uint32_t next = first + (blockDim.x - turned) * kWidth;
  const bool second = next < job.head_dim - 2 * job.pairs;
  const uint32_t channel = CopiedChannel(job, kHalf, first);
  return {channel, second ? CopiedChannel(job, kHalf, next) : channel, second};
}

// Multiplies by the norm's factor and weights. Returns false if the thread has to end.
template <uint32_t kWidth>
__device__ __forceinline__ bool Normalize(const CudaJob& job, const Channels& channels, float* a,
                                          float* b) {
  if (job.norm == 0) return true;
  double squares = 0;
  ROPE_CUDA_UNROLL
  for (uint32_t i = 0; i < kWidth; ++i) {
    squares += static_cast<double>(a[i]) * a[i];
    if (channels.second) squares += static_cast<double>(b[i]) * b[i];
  }
  if (!SumOfHead(squares)) return false;
  const auto factor = static_cast<float>(InverseSquareRoot(squares * job.channel_share + job.eps));
  const auto multiply = [&](float* values, uint32_t channel) {
    float weights[kWidth];
    if (job.norm_weight != nullptr) LoadFloats<kWidth>(job.norm_weight + channel, weights);
    ROPE_CUDA_UNROLL
    for (uint32_t i = 0; i < kWidth; ++i) {
      values[i] = MultiplyRounded(values[i], factor);
      if (job.norm_weight != nullptr) values[i] = MultiplyRounded(values[i], weights[i]);
    }
  };
  multiply(a, channels.a);
  multiply(b, channels.b);
  return true;
}

// The rotation with a norm or scales. Returns false if the thread has to end.
template <typename T, Pairing kPairing>
__device__ __forceinline__ bool TurnFused(const CudaJob& job, uint32_t token, bool turns,
                                          const Channels& channels, Vector<T>& a, Vector<T>& b,
                                          const Angles<Vector<T>::kWidth>& angles) {
  constexpr uint32_t kWidth = Vector<T>::kWidth;
  float x[kWidth], y[kWidth];
  ROPE_CUDA_UNROLL
  for (uint32_t i = 0; i < kWidth; ++i) {
    x[i] = Widen(a.values[i]);
    y[i] = Widen(b.values[i]);
  }
  if (!Normalize<kWidth>(job, channels, x, y)) return false;
  if (turns) {
    ForPairs<kPairing, kWidth>(x, y, [&](float& first, float& second, uint32_t i) {
      Turn(first, second, angles.cos[i], angles.sin[i]);
    });
  }
  float scale = job.scale;
  if (job.token_scales != nullptr) {
    scale = MultiplyRounded(scale, LoadRowValue(job.token_scales + token));
  }
  ROPE_CUDA_UNROLL
  for (uint32_t i = 0; i < kWidth; ++i) {
    a.values[i] = Narrow<T>(MultiplyRounded(x[i], scale));
    b.values[i] = Narrow<T>(MultiplyRounded(y[i], scale));
  }
  return true;
}

template <typename T>
__device__ __forceinline__ void TurnPairStepwise(T& a, T& b, float cos, float sin) {
  float x = Widen(a);
  float y = Widen(b);
  TurnStepwise<T>(x, y, cos, sin);
  a = Narrow<T>(x);
  b = Narrow<T>(y);
}

template <typename T, Pairing kPairing, CudaOps kOps>
__device__ __forceinline__ void RotateRectangle(const CudaRectangle& work) {
  constexpr uint32_t kWidth = Vector<T>::kWidth;
  const CudaJob& shared = work.jobs[0];
  const uint32_t number = (blockIdx.x >= work.jobs[1].first_block ? 1 : 0) +
                          (blockIdx.x >= work.jobs[2].first_block ? 1 : 0) +
                          (blockIdx.x >= work.jobs[3].first_block ? 1 : 0);
  const CudaJob& job = work.jobs[number];
  const uint32_t head = (blockIdx.x - job.first_block) * blockDim.y + threadIdx.y;
  const uint32_t token = (blockIdx.z * gridDim.y + blockIdx.y) * blockDim.z + threadIdx.z;
  if (head >= job.heads || token >= shared.tokens) return;

  const Channels channels = ChannelsOf<T, kPairing>(shared);
  const uint32_t distance = channels.b - channels.a;
  const T* const input = static_cast<const T*>(job.input) + token * job.input_token +
                         head * job.input_head + channels.a;
  Vector<T> a = LoadTensor(input);
  Vector<T> b = LoadTensor(input + distance);
  const bool turns = threadIdx.x < shared.pairs / kWidth;
  Angles<kWidth> angles = {};
  const bool counts = blockIdx.x == 0 && threadIdx.x == 0 && threadIdx.y == 0;
  if (turns) LoadAngles<T, kPairing>(work, token, counts, angles);
  if constexpr (kOps == CudaOps::kFused) {
    if (!TurnFused<T, kPairing>(job, token, turns, channels, a, b, angles)) return;
  } else if (turns) {
    ForPairs<kPairing, kWidth>(a.values, b.values, [&](T& first, T& second, uint32_t i) {
      if constexpr (kOps == CudaOps::kTurn) {
        Turn(first, second, angles.cos[i], angles.sin[i]);
      } else {
        TurnPairStepwise(first, second, angles.cos[i], angles.sin[i]);
      }
    });
  }
  T* const output =
      static_cast<T*>(job.output) + token * job.output_token + head * job.output_head + channels.a;
  StoreTensor(output, a);
  if (channels.second) StoreTensor(output + distance, b);
}

// --- the kernels. BLOCKS of 128 threads have a place on a multiprocessor: 40 or 64 registers ---

#define ROPE_CUDA_RECTANGLES(KERNEL)                      \
  ROPE_CUDA_RECTANGLE_PAIR(KERNEL, Turn, Float32, 12)     \
  ROPE_CUDA_RECTANGLE_PAIR(KERNEL, Turn, Float16, 12)     \
  ROPE_CUDA_RECTANGLE_PAIR(KERNEL, Turn, BFloat16, 12)    \
  ROPE_CUDA_RECTANGLE_PAIR(KERNEL, Turn, Float8E4M3, 8)   \
  ROPE_CUDA_RECTANGLE_PAIR(KERNEL, Turn, Float8E5M2, 8)   \
  ROPE_CUDA_RECTANGLE_PAIR(KERNEL, Stepwise, Float32, 8)  \
  ROPE_CUDA_RECTANGLE_PAIR(KERNEL, Stepwise, Float16, 8)  \
  ROPE_CUDA_RECTANGLE_PAIR(KERNEL, Stepwise, BFloat16, 8) \
  ROPE_CUDA_RECTANGLE_PAIR(KERNEL, Fused, Float32, 8)     \
  ROPE_CUDA_RECTANGLE_PAIR(KERNEL, Fused, Float16, 8)     \
  ROPE_CUDA_RECTANGLE_PAIR(KERNEL, Fused, BFloat16, 8)
#define ROPE_CUDA_RECTANGLE_PAIR(KERNEL, OPS, TYPE, BLOCKS) \
  KERNEL(OPS, TYPE, Half, BLOCKS) KERNEL(OPS, TYPE, Interleaved, BLOCKS)

using Float32 = float;
#define ROPE_CUDA_RECTANGLE(OPS, TYPE, PAIRING, BLOCKS)                           \
  extern "C" __global__ void __launch_bounds__(128, BLOCKS)                       \
      Rectangle##OPS##TYPE##PAIRING(const __grid_constant__ CudaRectangle work) { \
    RotateRectangle<TYPE, Pairing::k##PAIRING, CudaOps::k##OPS>(work);            \
  }
ROPE_CUDA_RECTANGLES(ROPE_CUDA_RECTANGLE)
#undef ROPE_CUDA_RECTANGLE

}  // namespace rope::kernels::cuda_device

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_RECTANGLE_CUH_
