#include "tests/support/fake_cudart.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "kernels/backend/cuda/cuda_plan.h"
#include "kernels/check.h"
#include "proto/mutex.h"
#include "tests/support/fake_cuda_kernel.h"

// The type that cudaStream_t points to.
struct CUstream_st {
  rope::proto::Mutex mu;
  std::vector<std::function<void()>> queue ABSL_GUARDED_BY(mu);
};

namespace rope::testing {
namespace {

// Only the beginning of a large block is poisoned, which keeps tests quick.
constexpr int64_t kPoisonedBytes = 4 << 20;

constexpr int64_t kNoLimit = int64_t{1} << 40;
constexpr int64_t kTotalBytes = int64_t{1} << 30;

struct Allocation {
  int64_t bytes;
  bool pinned;
};

struct Failure {
  int64_t nth;
  cudaError_t error;
  bool sticky;
};

struct CallConfiguration {
  dim3 grid;
  dim3 block;
  size_t shared;
  void* stream;
};

struct State {
  rope::proto::Mutex mu;
  std::map<const char*, Allocation> allocations ABSL_GUARDED_BY(mu);
  std::map<std::string, int64_t> calls ABSL_GUARDED_BY(mu);
  std::map<std::string, Failure> failures ABSL_GUARDED_BY(mu);
  std::map<const void*, std::string> kernels ABSL_GUARDED_BY(mu);  // host stub -> mangled name
  cudaError_t sticky ABSL_GUARDED_BY(mu) = cudaSuccess;
  cudaError_t device_count_error ABSL_GUARDED_BY(mu) = cudaSuccess;
  FakeCudaCounts counts ABSL_GUARDED_BY(mu);
  int64_t device_limit ABSL_GUARDED_BY(mu) = kNoLimit;
  int64_t pinned_limit ABSL_GUARDED_BY(mu) = kNoLimit;
  std::string broken_kernel ABSL_GUARDED_BY(mu);
  int64_t tests ABSL_GUARDED_BY(mu) = 1;  // counts Reset
};

State& TheState() {
  static State& state = *new State;  // owned by the process: kernels register before main
  return state;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local std::vector<CallConfiguration> call_configurations;
thread_local int64_t device_chosen = 0;  // State::tests when this thread chose its device

// Counts the call. Returns the error that a test asked for, if any.
cudaError_t Enter(const std::string& function) {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  ++state.calls[function];
  ++state.counts.calls;
  if (state.sticky != cudaSuccess) return last_error = state.sticky;
  const auto failure = state.failures.find(function);
  if (failure == state.failures.end() || --failure->second.nth > 0) return cudaSuccess;
  last_error = failure->second.error;
  if (failure->second.sticky) state.sticky = last_error;
  state.failures.erase(failure);
  return last_error;
}

// As Enter, for calls that use the thread's device.
cudaError_t EnterOnDevice(const std::string& function) {
  State& state = TheState();
  {
    rope::proto::MutexLock lock(&state.mu);
    if (device_chosen != state.tests) ++state.counts.threads_without_device;
  }
  return Enter(function);
}

// Returns the allocation that contains [address, address + bytes), or null.
const Allocation* Find(const State& state, const void* address, int64_t bytes)
    ABSL_SHARED_LOCKS_REQUIRED(state.mu) {
  const char* const begin = static_cast<const char*>(address);
  auto after = state.allocations.upper_bound(begin);
  if (after == state.allocations.begin()) return nullptr;
  --after;
  return begin + bytes <= after->first + after->second.bytes ? &after->second : nullptr;
}

// Checks that a kernel may access [address, address + bytes).
void CheckReached(const void* address, int64_t bytes) {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  ROPE_CHECK(Find(state, address, bytes) != nullptr);
}

cudaError_t Allocate(void** address, size_t bytes, bool pinned) {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  const int64_t left = pinned ? state.pinned_limit - state.counts.pinned_bytes
                              : state.device_limit - state.counts.device_bytes;
  if (static_cast<int64_t>(bytes) > left) return last_error = cudaErrorMemoryAllocation;
  auto* const data =
      static_cast<char*>(std::aligned_alloc(256, std::max<size_t>(bytes + 255, 1) / 256 * 256));
  std::memset(data, 0x5a, std::min<size_t>(bytes, kPoisonedBytes));
  state.allocations[data] = {static_cast<int64_t>(bytes), pinned};
  (pinned ? state.counts.pinned_bytes : state.counts.device_bytes) += static_cast<int64_t>(bytes);
  *address = data;
  return cudaSuccess;
}

void Release(void* address, bool pinned) {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  const auto found = state.allocations.find(static_cast<const char*>(address));
  ROPE_CHECK(found != state.allocations.end() && found->second.pinned == pinned);
  (pinned ? state.counts.pinned_bytes : state.counts.device_bytes) -= found->second.bytes;
  std::memset(address, 0xdd, static_cast<size_t>(std::min(found->second.bytes, kPoisonedBytes)));
  state.allocations.erase(found);
  std::free(address);
}

// Counts a copy and checks that the device can make it.
void CheckCopy(const void* target, const void* source, int64_t bytes) {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  const Allocation* const to = Find(state, target, bytes);
  const Allocation* const from = Find(state, source, bytes);
  ROPE_CHECK(to != nullptr && from != nullptr);
  ROPE_CHECK(to->pinned != from->pinned);
  (from->pinned ? state.counts.copies_in : state.counts.copies_out) += 1;
}

void Enqueue(cudaStream_t stream, std::function<void()> work) {
  rope::proto::MutexLock lock(&stream->mu);
  stream->queue.push_back(std::move(work));
}

// Finds a kernel by its mangled name.
kernels::CudaKernel KernelNamed(const std::string& name) {
  if (name.find("RotateVector") != std::string::npos) return kernels::CudaKernel::kVector;
  if (name.find("RotateScalar") != std::string::npos) return kernels::CudaKernel::kScalar;
  ROPE_CHECK(name.find("RotateFused") != std::string::npos);
  return kernels::CudaKernel::kFused;
}

void CheckJobIsReached(const kernels::CudaJob& job) {
  constexpr int64_t kFloat = sizeof(float);
  CheckReached(job.input, 1);
  CheckReached(job.output, 1);
  if (job.pairs > 0) CheckReached(job.rows, kFloat * 2 * job.pairs * job.tokens);
  if (job.token_scales != nullptr) CheckReached(job.token_scales, job.tokens * kFloat);
  if (job.norm_weight != nullptr) CheckReached(job.norm_weight, job.head_dim * kFloat);
}

cudaError_t Launch(const void* kernel, const dim3& grid, const dim3& block, void** arguments,
                   cudaStream_t stream) {
  State& state = TheState();
  std::string name;
  {
    rope::proto::MutexLock lock(&state.mu);
    const auto found = state.kernels.find(kernel);
    if (found == state.kernels.end()) return last_error = cudaErrorInvalidDeviceFunction;
    name = found->second;
    ++state.counts.launches;
    if (!state.broken_kernel.empty() && name.find(state.broken_kernel) != std::string::npos) {
      return cudaSuccess;
    }
  }
  if (grid.x == 0 || block.x == 0 || block.x > 1024 || grid.y * grid.z * block.y * block.z != 1) {
    return last_error = cudaErrorInvalidConfiguration;
  }
  const kernels::CudaKernel ours = KernelNamed(name);
  const uint32_t count = *static_cast<uint32_t*>(arguments[1]);
  const kernels::CudaJob* table = nullptr;
  std::vector<kernels::CudaJob> by_value;
  if (name.find("ByValue") != std::string::npos) {
    const auto& list = *static_cast<const kernels::CudaJobs*>(arguments[0]);
    by_value.assign(list.jobs, list.jobs + count);
  } else {
    table = *static_cast<const kernels::CudaJob**>(arguments[0]);
  }
  Enqueue(stream, [=, blocks = grid.x, threads = block.x] {
    if (table != nullptr) CheckReached(table, count * static_cast<int64_t>(sizeof(*table)));
    const kernels::CudaJob* const jobs = table != nullptr ? table : by_value.data();
    for (uint32_t i = 0; i < count; ++i) CheckJobIsReached(jobs[i]);
    RunCudaKernelOnCpu(ours, blocks, threads, jobs, count);
  });
  return cudaSuccess;
}

}  // namespace

namespace fake_cuda {

void Reset() {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  ROPE_CHECK(state.allocations.empty() && state.counts.streams == 0);
  state.calls.clear();
  state.failures.clear();
  state.sticky = state.device_count_error = cudaSuccess;
  state.counts = FakeCudaCounts();
  state.device_limit = state.pinned_limit = kNoLimit;
  state.broken_kernel.clear();
  ++state.tests;
}

FakeCudaCounts Counts() {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  return state.counts;
}

int64_t Calls(const std::string& function) {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  return state.calls[function];
}

void Fail(const std::string& function, int64_t nth, int error, bool sticky) {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  state.failures[function] = {nth, static_cast<cudaError_t>(error), sticky};
}

void SetDeviceCountError(int error) {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  state.device_count_error = static_cast<cudaError_t>(error);
}

void SetMemory(int64_t device_bytes, int64_t pinned_bytes) {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  state.device_limit = device_bytes;
  state.pinned_limit = pinned_bytes;
}

void BreakKernel(const std::string& name) {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  state.broken_kernel = name;
}

}  // namespace fake_cuda
}  // namespace rope::testing

using rope::testing::Enter;
using rope::testing::EnterOnDevice;
using rope::testing::TheState;

extern "C" {
// CUDA's names. NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

// --- functions that nvcc's object calls ---

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
char __cudaInitModule(void**) {
  return 1;
}  // called by code that is compiled without optimisation
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  rope::proto::MutexLock lock(&TheState().mu);
  TheState().kernels[stub] = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  rope::testing::call_configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const auto configuration = rope::testing::call_configurations.back();
  rope::testing::call_configurations.pop_back();
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<void**>(stream) = configuration.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(void** kernel, const void* stub) {
  *kernel = const_cast<void*>(stub);
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(void* kernel, dim3 grid, dim3 block, void** arguments, size_t,
                               cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, 0, stream);
}

// --- functions that the backend calls ---

cudaError_t cudaGetLastError() {
  return std::exchange(rope::testing::last_error, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorStubLibrary:
      return "CUDA driver is a stub library";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "some other error";
  }
}
cudaError_t cudaDriverGetVersion(int* version) {
  if (const cudaError_t error = Enter("cudaDriverGetVersion"); error != cudaSuccess) return error;
  rope::proto::MutexLock lock(&TheState().mu);
  *version = TheState().device_count_error == cudaErrorStubLibrary ? 0 : 12020;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  if (const cudaError_t error = Enter("cudaGetDeviceCount"); error != cudaSuccess) return error;
  rope::proto::MutexLock lock(&TheState().mu);
  if (TheState().device_count_error != cudaSuccess) {
    return rope::testing::last_error = TheState().device_count_error;
  }
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* func, dim3 gridDim, dim3 blockDim, void** args, size_t,
                             cudaStream_t stream) {
  if (const cudaError_t error = EnterOnDevice("cudaLaunchKernel"); error != cudaSuccess) {
    return error;
  }
  return rope::testing::Launch(func, gridDim, blockDim, args, stream);
}
cudaError_t cudaSetDevice(int) {
  if (const cudaError_t error = Enter("cudaSetDevice"); error != cudaSuccess) return error;
  rope::proto::MutexLock lock(&TheState().mu);
  rope::testing::device_chosen = TheState().tests;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return Enter("cudaDeviceSynchronize");
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (const cudaError_t error = Enter("cudaMemGetInfo"); error != cudaSuccess) return error;
  rope::proto::MutexLock lock(&TheState().mu);
  *total = rope::testing::kTotalBytes;
  *free = static_cast<size_t>(std::min(TheState().device_limit, rope::testing::kTotalBytes) -
                              TheState().counts.device_bytes);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  if (const cudaError_t error = Enter("cudaGetDeviceProperties"); error != cudaSuccess) {
    return error;
  }
  std::memset(properties, 0, sizeof(*properties));
  std::strcpy(properties->name, "Fake GPU");
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->totalGlobalMem = rope::testing::kTotalBytes;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) {
  return Enter("cudaFuncGetAttributes");
}
cudaError_t cudaMalloc(void** devPtr, size_t size) {
  if (const cudaError_t error = Enter("cudaMalloc"); error != cudaSuccess) return error;
  return rope::testing::Allocate(devPtr, size, false);
}
cudaError_t cudaMallocHost(void** ptr, size_t size) {
  if (const cudaError_t error = Enter("cudaMallocHost"); error != cudaSuccess) return error;
  return rope::testing::Allocate(ptr, size, true);
}
// After a sticky error the device's memory is gone: it is freed whatever this call returns.
cudaError_t cudaFree(void* devPtr) {
  if (devPtr != nullptr) rope::testing::Release(devPtr, false);
  return Enter("cudaFree");
}
cudaError_t cudaFreeHost(void* ptr) {
  if (ptr != nullptr) rope::testing::Release(ptr, true);
  return Enter("cudaFreeHost");
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (const cudaError_t error = Enter("cudaStreamCreateWithFlags"); error != cudaSuccess) {
    return error;
  }
  *stream = new CUstream_st;  // owned by the caller, until cudaStreamDestroy
  rope::proto::MutexLock lock(&TheState().mu);
  ++TheState().counts.streams;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  {
    rope::proto::MutexLock lock(&TheState().mu);
    --TheState().counts.streams;
  }
  return Enter("cudaStreamDestroy");
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t error = EnterOnDevice("cudaStreamSynchronize"); error != cudaSuccess) {
    return error;
  }
  std::vector<std::function<void()>> queue;
  {
    rope::proto::MutexLock lock(&stream->mu);
    queue.swap(stream->queue);
  }
  for (const std::function<void()>& work : queue) work();
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (const cudaError_t error = EnterOnDevice("cudaMemcpyAsync"); error != cudaSuccess) {
    return error;
  }
  const auto copied = static_cast<int64_t>(count);
  rope::testing::Enqueue(stream, [=] {
    rope::testing::CheckCopy(dst, src, copied);
    std::memcpy(dst, src, count);
  });
  return cudaSuccess;
}
// The memory stays poisoned, so that a test sees what nothing has written.
cudaError_t cudaMemset(void*, int, size_t) {
  return EnterOnDevice("cudaMemset");
}
// Not counted, and of any memory: only tests call it.
cudaError_t cudaMemcpy(void* dst, const void* src, size_t count, cudaMemcpyKind) {
  std::memcpy(dst, src, count);
  return cudaSuccess;
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
}  // extern "C"
