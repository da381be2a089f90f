// Kernels of the benchmark's own: a copy without arithmetic, a load that warms the clocks, and a
// check of whole tensors in double precision. They share no code with kernels/backend/cuda.
//
// Threading:  Any thread; functions with a stream enqueue, the others wait for the device.
// Ownership:  The caller owns all memory.
// Errors:     cudaError_t. Plain C++17, for nvcc.
#ifndef ROPE_TESTS_GPU_YARDSTICKS_H_
#define ROPE_TESTS_GPU_YARDSTICKS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rope::bench {

// Copies with the accesses of a rotation: each thread loads four 16-byte vectors with streaming
// loads and stores them. REQUIRES: addresses and bytes are multiples of 16.
cudaError_t LaunchCopy(const void* from, void* to, int64_t bytes, cudaStream_t stream);

// Keeps all multiprocessors busy for `milliseconds`. Sets their clock in MHz, as counted meanwhile.
cudaError_t WarmClocks(int milliseconds, double* megahertz);

// One rectangle of dense (token, head) vectors, before and after its rotation, in device memory.
struct RotatedRectangle {
  const void* before = nullptr;
  const void* after = nullptr;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t pairs = 0;             // of channels i and i + pairs (half), or 2 * i and 2 * i + 1
  const float* table = nullptr;  // [positions][2 * pairs]: cosines, then sines
  int64_t positions = 0;         // token t has position t % positions
  uint32_t dtype = 0;            // kernels::DType: fp32, fp16 or bf16
  bool half = true;
};

struct WrongElements {
  unsigned long long count = 0;
  unsigned long long first = ~0ull;  // its index in the rectangle
};

// Counts the elements that are off by more than the tolerance of tests/conformance/rotation.h, and
// channels outside the pairs that are not bit-equal to the input.
cudaError_t CountWrong(const RotatedRectangle& rectangle, WrongElements* wrong);

}  // namespace rope::bench

#endif  // ROPE_TESTS_GPU_YARDSTICKS_H_
