// The CUDA kernels RotateVector and RotateScalar, over lists of CudaJobs (cuda_plan.h), and what
// other kernels share with them.
//
// Two compilers build this source: nvcc for the device, and any C++17 compiler through
// cuda_cpu_shim.h, which runs it on the CPU. It is C++17 without barriers and without shared
// memory.
//
// A block finds its job by binary search over first_block. Each thread then processes an item of
// the job: one 16-byte piece (in fact two, for both channels of its pairs) of the heads g, g +
// head_groups, ... of one token. So a warp reads adjacent pieces, cos and sin stay in registers
// from head to head, and the loads of two heads are issued before the first is used.
//
// Precision:  As backend.h; cuda_numbers.cuh.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_ROTATE_CUH_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_ROTATE_CUH_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/backend/cuda/cuda_job.h"
#include "kernels/backend/cuda/cuda_numbers.cuh"
#include "kernels/dtype/dtype.h"

#if defined(__CUDACC__)
#define ROPE_CUDA_UNROLL _Pragma("unroll")  // arrays then live in registers
#else
#define ROPE_CUDA_UNROLL
#endif

namespace rope::kernels::cuda_device {

// --- memory: one access of 16 bytes each (fp8: 8); by uint4, since a memcpy goes byte by byte ---

// Tells the compiler that an address is in global memory, which allows shorter instructions.
__device__ __forceinline__ void AssumeGlobal(const void* address) {
#if defined(__CUDACC__)
  __builtin_assume(__isGlobal(address));
#else
  static_cast<void>(address);
#endif
}

template <typename T>
struct alignas(sizeof(T) == 1 ? 8 : 16) Vector {
  static constexpr uint32_t kWidth = (sizeof(T) == 1 ? 8 : 16) / sizeof(T);
  T values[kWidth];
};
#if defined(__CUDACC__)
template <typename T>
using VectorBits = std::conditional_t<sizeof(T) == 1, uint2, uint4>;
#endif

// No cache hints: what is written here, attention reads next.
template <typename T>
__device__ __forceinline__ Vector<T> LoadTensor(const T* address) {
  Vector<T> result;
#if defined(__CUDACC__)
  AssumeGlobal(address);
  const auto bits = *reinterpret_cast<const VectorBits<T>*>(address);
  memcpy(&result, &bits, sizeof(result));
#else
  cuda_cpu_shim::CheckAligned(address, sizeof(result));
  memcpy(&result, address, sizeof(result));
#endif
  return result;
}
template <typename T>
__device__ __forceinline__ void StoreTensor(T* address, const Vector<T>& value) {
#if defined(__CUDACC__)
  AssumeGlobal(address);
  VectorBits<T> bits;
  memcpy(&bits, &value, sizeof(bits));
  *reinterpret_cast<VectorBits<T>*>(address) = bits;
#else
  cuda_cpu_shim::CheckAligned(address, sizeof(value));
  memcpy(address, &value, sizeof(value));
#endif
}
// Rows are shared by the heads of a token and by many tokens. They are constant during a launch.
__device__ __forceinline__ Vector<float> LoadRow(const float* address) {
  Vector<float> result;
#if defined(__CUDACC__)
  const uint4 bits = __ldg(reinterpret_cast<const uint4*>(address));
  memcpy(&result, &bits, sizeof(result));
#else
  cuda_cpu_shim::CheckAligned(address, sizeof(result));
  memcpy(&result, address, sizeof(result));
#endif
  return result;
}
__device__ __forceinline__ float LoadRowValue(const float* address) {
#if defined(__CUDACC__)
  return __ldg(address);
#else
  return *address;
#endif
}

// --- the parts of a batch ---

// Finds the last job of which first_block is at most the block.
__device__ __forceinline__ const CudaJob& FindJob(const CudaJob* __restrict__ jobs,
                                                  uint32_t count) {
  uint32_t low = 0;
  while (count - low > 1) {
    const uint32_t middle = low + (count - low) / 2;
    if (jobs[middle].first_block <= blockIdx.x) {
      low = middle;
    } else {
      count = middle;
    }
  }
  return jobs[low];
}

// The index of the thread's item in its job. It may be past the last item.
__device__ __forceinline__ uint32_t ItemIndex(const CudaJob& job) {
  return (blockIdx.x - job.first_block) * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ const float* Row(const CudaJob& job, uint32_t token) {
  if (job.one_row != nullptr) return job.rows;
  return job.rows + static_cast<int64_t>(token) * (2 * job.pairs);
}

// One piece of some heads of one token.
struct Item {
  uint32_t chunk;
  uint32_t head;  // the first head; the next one is head + head_groups
  uint32_t token;
};

__device__ __forceinline__ Item ItemAt(const CudaJob& job, uint32_t index) {
  const uint32_t vector = index / job.chunks;
  const uint32_t token = vector / job.head_groups;
  return {index - vector * job.chunks, vector - token * job.head_groups, token};
}

template <typename T>
__device__ __forceinline__ const T* Input(const CudaJob& job, uint32_t token) {
  return static_cast<const T*>(job.input) + static_cast<int64_t>(token) * job.input_token;
}
template <typename T>
__device__ __forceinline__ T* Output(const CudaJob& job, uint32_t token) {
  return static_cast<T*>(job.output) + static_cast<int64_t>(token) * job.output_token;
}

// The channel of number `index` among the channels outside the pairs, in ascending order.
__device__ __forceinline__ uint32_t CopiedChannel(const CudaJob& job, bool half, uint32_t index) {
  if (!half) return index < job.offset ? index : index + 2 * job.pairs;
  if (index < job.offset) return index;
  index += job.pairs;
  return index < job.offset + job.partner ? index : index + job.pairs;
}

// --- RotateVector ---

// Calls turn(a, b, i) for the pairs of two vectors: values[i] of both (half), or adjacent values
// (interleaved).
template <Pairing kPairing, uint32_t kWidth, typename T, typename TurnPair>
__device__ __forceinline__ void ForPairs(T* a, T* b, const TurnPair& turn) {
  ROPE_CUDA_UNROLL
  for (uint32_t i = 0; i < kWidth; ++i) {
    if (kPairing == Pairing::kHalf) {
      turn(a[i], b[i], i);
    } else {
      T* const both = i < kWidth / 2 ? a : b;
      turn(both[2 * i % kWidth], both[2 * i % kWidth + 1], i);
    }
  }
}

// The two channels at which an item's vectors begin. `second`: whether there is a second vector.
struct Channels {
  uint32_t a;
  uint32_t b;
  bool second;
};

// The channels of the item's pairs; from the last pair on, of up to two vectors outside the pairs.
template <typename T, Pairing kPairing>
__device__ __forceinline__ Channels ChannelsOf(const CudaJob& job, const Item& item) {
  constexpr bool kHalf = kPairing == Pairing::kHalf;
  constexpr uint32_t kWidth = Vector<T>::kWidth;
  const uint32_t turned = job.pairs / kWidth;
  if (item.chunk < turned) {
    const uint32_t channel = job.offset + item.chunk * (kHalf ? kWidth : 2 * kWidth);
    return {channel, channel + (kHalf ? job.partner : kWidth), true};
  }
  const uint32_t first = 2 * (item.chunk - turned) * kWidth;
  const bool second = first + kWidth < job.head_dim - 2 * job.pairs;
  const uint32_t channel = CopiedChannel(job, kHalf, first);
  return {channel, second ? CopiedChannel(job, kHalf, first + kWidth) : channel, second};
}

// Turns the item's pairs, or copies its vectors outside the pairs, for every head of the item.
template <typename T, Pairing kPairing>
__device__ __forceinline__ void RotateVectorItem(const CudaJob& job, const Item& item) {
  constexpr uint32_t kWidth = Vector<T>::kWidth;
  constexpr uint32_t kRowVectors = kWidth / 4;
  const Channels channels = ChannelsOf<T, kPairing>(job, item);
  const bool turns = item.chunk < job.pairs / kWidth;
  const uint32_t distance = channels.b - channels.a;
  const T* const input = Input<T>(job, item.token) + channels.a;
  T* const output = Output<T>(job, item.token) + channels.a;
  const uint32_t heads = job.heads;
  const auto load = [&](uint32_t head, Vector<T>& a, Vector<T>& b) {
    const T* const address = input + static_cast<int64_t>(head) * job.input_head;
    a = LoadTensor(address);
    b = LoadTensor(address + distance);
  };
  Vector<float> cos[kRowVectors] = {}, sin[kRowVectors] = {};
  const auto finish = [&](uint32_t head, Vector<T>& a, Vector<T>& b) {
    if (turns) {
      ForPairs<kPairing, kWidth>(a.values, b.values, [&](T& first, T& second, uint32_t i) {
        Turn(first, second, cos[i / 4].values[i % 4], sin[i / 4].values[i % 4]);
      });
    }
    T* const address = output + static_cast<int64_t>(head) * job.output_head;
    StoreTensor(address, a);
    if (channels.second) StoreTensor(address + distance, b);
  };

  // All loads are issued before the first instruction that waits for one.
  Vector<T> a, b, next_a, next_b;
  uint32_t head = item.head;
  uint32_t next = head + job.head_groups;
  load(head, a, b);
  if (next < heads) load(next, next_a, next_b);
  if (turns) {
    const float* const row = Row(job, item.token) + item.chunk * kWidth;
    ROPE_CUDA_UNROLL
    for (uint32_t i = 0; i < kRowVectors; ++i) {
      cos[i] = LoadRow(row + 4 * i);
      sin[i] = LoadRow(row + job.pairs + 4 * i);
    }
    if (job.conjugate != 0) {
      ROPE_CUDA_UNROLL
      for (uint32_t i = 0; i < kWidth; ++i) sin[i / 4].values[i % 4] = -sin[i / 4].values[i % 4];
    }
  }
  while (true) {
    finish(head, a, b);
    if (next >= heads) return;
    finish(next, next_a, next_b);
    head = next + job.head_groups;
    if (head >= heads) return;
    next = head + job.head_groups;
    load(head, a, b);
    if (next < heads) load(next, next_a, next_b);
  }
}

// --- RotateScalar: one pair or one channel at a time ---

template <typename T>
__device__ __forceinline__ T LoadElement(const T* address) {
  AssumeGlobal(address);
  return *address;
}
template <typename T>
__device__ __forceinline__ void StoreElement(T* address, T value) {
  AssumeGlobal(address);
  *address = value;
}

template <typename T>
__device__ __forceinline__ void RotateScalarItem(const CudaJob& job, const Item& item) {
  const bool half = job.pairing == static_cast<uint32_t>(Pairing::kHalf);
  const T* const input = Input<T>(job, item.token);
  T* const output = Output<T>(job, item.token);
  const bool copied = item.chunk >= job.pairs;
  const uint32_t channel = copied ? CopiedChannel(job, half, item.chunk - job.pairs)
                                  : job.offset + (half ? item.chunk : 2 * item.chunk);
  const uint32_t other = channel + (half ? job.partner : 1);
  float cos = 1;
  float sin = 0;
  if (!copied) {
    const float* const row = Row(job, item.token);
    cos = LoadRowValue(row + item.chunk);
    sin = LoadRowValue(row + job.pairs + item.chunk);
    if (job.conjugate != 0) sin = -sin;
  }
  for (uint32_t head = item.head; head < job.heads; head += job.head_groups) {
    const T* const from = input + static_cast<int64_t>(head) * job.input_head;
    T* const to = output + static_cast<int64_t>(head) * job.output_head;
    T a = LoadElement(from + channel);
    if (!copied) {
      T b = LoadElement(from + other);
      Turn(a, b, cos, sin);
      StoreElement(to + other, b);
    }
    StoreElement(to + channel, a);
  }
}

// --- what a block does: all of its threads take the same branch on a job ---

__device__ __forceinline__ void RotateVectorBlock(const CudaJob& job) {
  const uint32_t index = ItemIndex(job);
  if (index >= job.items) return;
  const Item item = ItemAt(job, index);
  const bool half = job.pairing == static_cast<uint32_t>(Pairing::kHalf);
  if (job.dtype == static_cast<uint32_t>(DType::kBFloat16)) {
    half ? RotateVectorItem<BFloat16, Pairing::kHalf>(job, item)
         : RotateVectorItem<BFloat16, Pairing::kInterleaved>(job, item);
  } else if (job.dtype == static_cast<uint32_t>(DType::kFloat16)) {
    half ? RotateVectorItem<Float16, Pairing::kHalf>(job, item)
         : RotateVectorItem<Float16, Pairing::kInterleaved>(job, item);
  } else {
    half ? RotateVectorItem<float, Pairing::kHalf>(job, item)
         : RotateVectorItem<float, Pairing::kInterleaved>(job, item);
  }
}

__device__ __forceinline__ void RotateScalarBlock(const CudaJob& job) {
  const uint32_t index = ItemIndex(job);
  if (index >= job.items) return;
  const Item item = ItemAt(job, index);
  if (job.dtype == static_cast<uint32_t>(DType::kBFloat16)) {
    RotateScalarItem<BFloat16>(job, item);
  } else if (job.dtype == static_cast<uint32_t>(DType::kFloat16)) {
    RotateScalarItem<Float16>(job, item);
  } else {
    RotateScalarItem<float>(job, item);
  }
}

// --- the kernels ---

extern "C" __global__ void __launch_bounds__(256, 3)
    RotateVector(const CudaJob* __restrict__ jobs, uint32_t count) {
  RotateVectorBlock(FindJob(jobs, count));
}

extern "C" __global__ void __launch_bounds__(256)
    RotateScalar(const CudaJob* __restrict__ jobs, uint32_t count) {
  RotateScalarBlock(FindJob(jobs, count));
}

}  // namespace rope::kernels::cuda_device

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_ROTATE_CUH_
