#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/dtype/dtype.h"
#include "tests/gpu/yardsticks.h"

namespace rope::bench {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kVectors = 4;  // of a thread

__global__ void CopyVectors(const uint4* from, uint4* to, int64_t count) {
  const int64_t first = int64_t{blockIdx.x} * blockDim.x * kVectors + threadIdx.x;
  uint4 values[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t index = first + i * int64_t{blockDim.x};
    if (index < count) values[i] = __ldcs(from + index);
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t index = first + i * int64_t{blockDim.x};
    if (index < count) __stcs(to + index, values[i]);
  }
}

__device__ unsigned long long Nanoseconds() {
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// spent[0]: cycles of one multiprocessor, spent[1]: nanoseconds.
__global__ void Spin(unsigned long long nanoseconds, unsigned long long* spent) {
  const unsigned long long begin = Nanoseconds();
  const long long cycles = clock64();
  while (Nanoseconds() - begin < nanoseconds) {
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    spent[0] = static_cast<unsigned long long>(clock64() - cycles);
    spent[1] = Nanoseconds() - begin;
  }
}

// --- whole tensors, in double ---

struct Element {
  double value;
  uint32_t bits;
};

// Little-endian, from an address of any alignment.
__device__ uint32_t ReadBits(const void* data, int64_t index, int bytes) {
  uint32_t bits = 0;
  for (int i = 0; i < bytes; ++i) {
    bits |= uint32_t{static_cast<const uint8_t*>(data)[index * bytes + i]} << 8 * i;
  }
  return bits;
}

__device__ Element Read(const void* data, int64_t index, uint32_t dtype) {
  if (dtype == static_cast<uint32_t>(kernels::DType::kFloat32)) {
    const uint32_t bits = ReadBits(data, index, 4);
    return {static_cast<double>(__uint_as_float(bits)), bits};
  }
  const auto bits = static_cast<unsigned short>(ReadBits(data, index, 2));
  if (dtype == static_cast<uint32_t>(kernels::DType::kBFloat16)) {
    return {static_cast<double>(__uint_as_float(static_cast<unsigned>(bits) << 16)), bits};
  }
  return {static_cast<double>(__half2float(__ushort_as_half(bits))), bits};
}

// Half the distance between neighbouring numbers at `value`; 0 for fp32.
__device__ double HalfUnit(double value, uint32_t dtype) {
  if (dtype == static_cast<uint32_t>(kernels::DType::kFloat32)) return 0;
  const bool bfloat = dtype == static_cast<uint32_t>(kernels::DType::kBFloat16);
  const int exponent_min = bfloat ? -126 : -14;
  const int exponent = value == 0 ? exponent_min : max(ilogb(value), exponent_min);
  return ldexp(0.5, exponent - (bfloat ? 7 : 10));
}

__device__ bool IsOff(double got, double want, double a, double b, uint32_t dtype) {
  const double arithmetic = 1.5e-7 * (fabs(a) + fabs(b));
  const double allowed = arithmetic + HalfUnit(fabs(want) + arithmetic, dtype) + ldexp(1.0, -149);
  return !(fabs(got - want) <= allowed);
}

// One thread checks one channel.
__global__ void CompareChannels(RotatedRectangle given, WrongElements* wrong) {
  const int64_t count = given.tokens * given.heads * given.head_dim;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const int64_t channel = i % given.head_dim;
    const int64_t head_begin = i - channel;
    const Element got = Read(given.after, i, given.dtype);
    bool off = false;
    if (channel >= 2 * given.pairs) {
      off = got.bits != Read(given.before, i, given.dtype).bits;
    } else {
      const int64_t pair = given.half ? channel % given.pairs : channel / 2;
      const bool second = given.half ? channel >= given.pairs : channel % 2 != 0;
      const int64_t a_channel = given.half ? pair : 2 * pair;
      const int64_t b_channel = given.half ? pair + given.pairs : 2 * pair + 1;
      const int64_t position = head_begin / (given.heads * given.head_dim) % given.positions;
      const float* const row = given.table + position * 2 * given.pairs;
      const double c = row[pair];
      const double s = row[given.pairs + pair];
      const double a = Read(given.before, head_begin + a_channel, given.dtype).value;
      const double b = Read(given.before, head_begin + b_channel, given.dtype).value;
      off = IsOff(got.value, second ? b * c + a * s : a * c - b * s, a, b, given.dtype);
    }
    if (!off) continue;
    atomicAdd(&wrong->count, 1ull);
    atomicMin(&wrong->first, static_cast<unsigned long long>(i));
  }
}

// Runs `launch` with `bytes` bytes of device memory that begin as `*value`, and reads them back.
template <typename Value, typename Launch>
cudaError_t WithResult(Value* value, const Launch& launch) {
  void* memory = nullptr;
  cudaError_t error = cudaMalloc(&memory, sizeof(Value));
  if (error != cudaSuccess) return error;
  error = cudaMemcpy(memory, value, sizeof(Value), cudaMemcpyHostToDevice);
  if (error == cudaSuccess) {
    launch(static_cast<Value*>(memory));
    error = cudaGetLastError();
  }
  if (error == cudaSuccess)
    error = cudaMemcpy(value, memory, sizeof(Value), cudaMemcpyDeviceToHost);
  const cudaError_t freed = cudaFree(memory);
  return error != cudaSuccess ? error : freed;
}

}  // namespace

cudaError_t LaunchCopy(const void* from, void* to, int64_t bytes, cudaStream_t stream) {
  const int64_t count = bytes / 16;
  const int64_t blocks = (count + kThreads * kVectors - 1) / (kThreads * kVectors);
  CopyVectors<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const uint4*>(from), static_cast<uint4*>(to), count);
  return cudaGetLastError();
}

cudaError_t WarmClocks(int milliseconds, double* megahertz) {
  struct Spent {
    unsigned long long cycles_and_nanoseconds[2];
  } spent = {};
  int processors = 0;
  cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0);
  if (error != cudaSuccess) return error;
  error = WithResult(&spent, [&](Spent* on_device) {
    Spin<<<static_cast<unsigned>(2 * processors), kThreads>>>(
        static_cast<unsigned long long>(milliseconds) * 1000000, on_device->cycles_and_nanoseconds);
  });
  const double nanoseconds = static_cast<double>(spent.cycles_and_nanoseconds[1]);
  const double cycles = static_cast<double>(spent.cycles_and_nanoseconds[0]);
  *megahertz = nanoseconds > 0 ? cycles / nanoseconds * 1e3 : 0;
  return error;
}

cudaError_t CountWrong(const RotatedRectangle& rectangle, WrongElements* wrong) {
  *wrong = WrongElements();
  return WithResult(wrong, [&](WrongElements* on_device) {
    CompareChannels<<<4096, kThreads>>>(rectangle, on_device);
  });
}

}  // namespace rope::bench
