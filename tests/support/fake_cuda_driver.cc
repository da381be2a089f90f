#include "tests/support/fake_cuda_driver.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "kernels/backend/cuda/cuda_driver.h"
#include "kernels/backend/cuda/cuda_job.h"
#include "kernels/check.h"
#include "proto/mutex.h"
#include "tests/support/fake_cuda_kernel.h"

struct CUstream_st {
  rope::proto::Mutex mu;
  std::vector<std::function<void()>> queue ABSL_GUARDED_BY(mu);
  bool is_captured ABSL_GUARDED_BY(mu) = false;  // the queue is a graph
};

namespace rope::testing {
namespace {

using kernels::CudaError;

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
  CudaError error;
  bool sticky;
};

struct State {
  rope::proto::Mutex mu;
  std::map<const char*, Allocation> allocations ABSL_GUARDED_BY(mu);
  std::map<std::string, Failure> failures ABSL_GUARDED_BY(mu);
  CudaError sticky ABSL_GUARDED_BY(mu) = CudaError::kSuccess;
  FakeCudaCounts counts ABSL_GUARDED_BY(mu);
  int64_t device_limit ABSL_GUARDED_BY(mu) = kNoLimit;
  int64_t pinned_limit ABSL_GUARDED_BY(mu) = kNoLimit;
  std::string broken_kernel ABSL_GUARDED_BY(mu);
  int64_t tests ABSL_GUARDED_BY(mu) = 1;  // counts Reset
  int64_t captures ABSL_GUARDED_BY(mu) = 0;
};

State& TheState() {
  static State& state = *new State;  // owned by the process
  return state;
}

thread_local int64_t has_context = 0;      // State::tests when this thread made the context current
thread_local std::vector<int64_t> pushed;  // of the contexts before

// SIGUSR1: from the next launch on the device is lost.
std::atomic<bool> lost{false};
[[maybe_unused]] const auto before = signal(SIGUSR1, [](int) { lost = true; });

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool NeedsContext(std::string_view function) {
  if (function == "cuStreamIsCapturing") return false;
  return Contains(function, "cuMem") || Contains(function, "cuStream") ||
         Contains(function, "cuModule") || function == "cuLaunchKernel";
}

// What breaks a capture that is under way.
bool BreaksCapture(std::string_view function) {
  return Contains(function, "cuMemAlloc") || Contains(function, "Synchronize") ||
         Contains(function, "cuModuleLoad");
}

// What a function that releases something releases, it releases whatever it returns.
bool Releases(std::string_view function) {
  return Contains(function, "Free") || Contains(function, "Destroy") ||
         Contains(function, "Unload");
}

// Counts the call. Returns the error that a test asked for, or a device gives, if any.
CudaError Enter(const std::string& function) {
  if (function == "cuGetErrorString") return CudaError::kSuccess;
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  ++state.counts.calls;
  if (lost && function == "cuLaunchKernel") state.sticky = kIllegalAddress;
  if (state.sticky != CudaError::kSuccess) return state.sticky;
  const auto failure = state.failures.find(function);
  if (failure != state.failures.end() && --failure->second.nth <= 0) {
    const CudaError error = failure->second.error;
    if (failure->second.sticky) state.sticky = error;
    state.failures.erase(failure);
    return error;
  }
  if (NeedsContext(function) && has_context != state.tests) return kInvalidContext;
  if (state.captures > 0 && BreaksCapture(function)) return CudaError::kCaptureUnsupported;
  return CudaError::kSuccess;
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

CudaError Allocate(void** address, size_t bytes, bool pinned) {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  const int64_t left = pinned ? state.pinned_limit - state.counts.pinned_bytes
                              : state.device_limit - state.counts.device_bytes;
  if (static_cast<int64_t>(bytes) > left) return CudaError::kOutOfMemory;
  auto* const data =
      static_cast<char*>(std::aligned_alloc(256, std::max<size_t>(bytes + 255, 1) / 256 * 256));
  std::memset(data, 0x5a, std::min<size_t>(bytes, kPoisonedBytes));
  state.allocations[data] = {static_cast<int64_t>(bytes), pinned};
  ++state.counts.allocations;
  (pinned ? state.counts.pinned_bytes : state.counts.device_bytes) += static_cast<int64_t>(bytes);
  *address = data;
  return CudaError::kSuccess;
}

CudaError Release(void* address, bool pinned) {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  const auto found = state.allocations.find(static_cast<const char*>(address));
  ROPE_CHECK(found != state.allocations.end() && found->second.pinned == pinned);
  (pinned ? state.counts.pinned_bytes : state.counts.device_bytes) -= found->second.bytes;
  std::memset(address, 0xdd, static_cast<size_t>(std::min(found->second.bytes, kPoisonedBytes)));
  state.allocations.erase(found);
  std::free(address);
  return CudaError::kSuccess;
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

void Enqueue(CUstream_st* stream, std::function<void()> work) {
  if (stream == nullptr) return work();
  rope::proto::MutexLock lock(&stream->mu);
  stream->queue.push_back(std::move(work));
}

kernels::CudaKernel KernelNamed(std::string_view name) {
  if (Contains(name, "RotateVector")) return kernels::CudaKernel::kVector;
  if (Contains(name, "RotateScalar")) return kernels::CudaKernel::kScalar;
  ROPE_CHECK(Contains(name, "RotateFused"));
  return kernels::CudaKernel::kFused;
}

// `rows`: how many rows the kernel may read; 0: none.
void CheckJobIsReached(const kernels::CudaJob& job, int64_t rows) {
  constexpr int64_t kFloat = sizeof(float);
  CheckReached(job.input, 1);
  CheckReached(job.output, 1);
  if (rows * job.pairs > 0) CheckReached(job.rows, kFloat * 2 * job.pairs * rows);
  if (job.token_scales != nullptr) CheckReached(job.token_scales, job.tokens * kFloat);
  if (job.norm_weight != nullptr) CheckReached(job.norm_weight, job.head_dim * kFloat);
}

std::function<void()> ListLaunch(const std::string& name, uint32_t blocks, uint32_t threads,
                                 const kernels::CudaJob* jobs, uint32_t count) {
  return [=] {
    CheckReached(jobs, count * static_cast<int64_t>(sizeof(*jobs)));
    for (uint32_t i = 0; i < count; ++i) {
      CheckJobIsReached(jobs[i], jobs[i].one_row != nullptr ? 1 : jobs[i].tokens);
    }
    RunCudaKernelOnCpu(KernelNamed(name), blocks, threads, jobs, count);
  };
}

std::function<void()> RectangleLaunch(const std::string& name, const kernels::CudaGrid& blocks,
                                      const kernels::CudaGrid& threads,
                                      const kernels::CudaRectangle& work) {
  return [=] {
    for (const kernels::CudaJob& job : work.jobs) {
      if (job.first_block == kernels::kCudaNoBlock) continue;
      CheckJobIsReached(job, work.rows != nullptr ? work.row_count : 0);
    }
    if (work.positions != nullptr) {
      CheckReached(work.positions, work.jobs[0].tokens * (work.wide_positions != 0 ? 8 : 4));
    }
    if (work.positions_outside != nullptr) CheckReached(work.positions_outside, 4);
    RunCudaRectangleOnCpu(name, blocks, threads, work);
  };
}

// --- the functions, by CUDA's names. NOLINTBEGIN(readability-identifier-naming) ---

CudaError cuInit(unsigned) {
  return CudaError::kSuccess;
}
CudaError cuDeviceGet(int* device, int) {
  *device = 0;
  return CudaError::kSuccess;
}
CudaError cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == kernels::kCudaMultiprocessors   ? 132
           : attribute == kernels::kCudaCapabilityMajor ? 9
                                                        : 0;
  return CudaError::kSuccess;
}
CudaError cuDeviceGetName(char* name, int, int) {
  std::strcpy(name, "Fake GPU");
  return CudaError::kSuccess;
}
CudaError cuDeviceTotalMem(size_t* bytes, int) {
  *bytes = kTotalBytes;
  return CudaError::kSuccess;
}
CudaError cuDevicePrimaryCtxRetain(void** context, int) {
  *context = &TheState();
  return CudaError::kSuccess;
}
CudaError cuCtxSetCurrent(void* context) {
  ROPE_CHECK(context == &TheState());
  rope::proto::MutexLock lock(&TheState().mu);
  has_context = TheState().tests;
  return CudaError::kSuccess;
}
CudaError cuCtxPushCurrent(void* context) {
  pushed.push_back(has_context);
  return cuCtxSetCurrent(context);
}
CudaError cuCtxPopCurrent(void** context) {
  ROPE_CHECK(!pushed.empty());
  *context = &TheState();
  has_context = pushed.back();
  pushed.pop_back();
  return CudaError::kSuccess;
}
// Of the two that the backend asks for, in its order.
CudaError cuPointerGetAttributes(unsigned count, int* attributes, void** values, void* address) {
  ROPE_CHECK(count == 2 && attributes[0] == kernels::kCudaMemoryType &&
             attributes[1] == kernels::kCudaDeviceOrdinal);
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  const Allocation* const found = Find(state, address, 1);
  const bool is_device = found != nullptr && !found->pinned;
  *static_cast<unsigned*>(values[0]) = is_device ? kernels::kCudaDeviceMemory : 0;
  *static_cast<int*>(values[1]) = is_device ? 0 : -1;
  return CudaError::kSuccess;
}
CudaError cuStreamIsCapturing(CUstream_st* stream, int* state) {
  *state = 0;
  if (stream == nullptr) return CudaError::kSuccess;
  rope::proto::MutexLock lock(&stream->mu);
  *state = stream->is_captured ? 1 : 0;
  return CudaError::kSuccess;
}
CudaError cuGetErrorString(CudaError error, const char** words) {
  *words = error == CudaError::kOutOfMemory ? "out of memory"
           : error == CudaError::kNoDevice  ? "no CUDA-capable device is detected"
           : error == kIllegalAddress       ? "an illegal memory access was encountered"
                                            : "some other error";
  return CudaError::kSuccess;
}
CudaError cuMemAlloc(void** address, size_t bytes) {
  return Allocate(address, bytes, false);
}
CudaError cuMemAllocHost(void** address, size_t bytes) {
  return Allocate(address, bytes, true);
}
CudaError cuMemFree(void* address) {
  return Release(address, false);
}
CudaError cuMemFreeHost(void* address) {
  return Release(address, true);
}
CudaError cuMemGetInfo(size_t* free, size_t* total) {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  *total = kTotalBytes;
  *free =
      static_cast<size_t>(std::min(state.device_limit, kTotalBytes) - state.counts.device_bytes);
  return CudaError::kSuccess;
}
// The memory stays poisoned, so that a test sees what nothing has written.
CudaError cuMemsetD8Async(void*, unsigned char, size_t, CUstream_st*) {
  return CudaError::kSuccess;
}
CudaError cuStreamCreate(CUstream_st** stream, unsigned) {
  *stream = new CUstream_st;  // owned by the caller, until cuStreamDestroy
  rope::proto::MutexLock lock(&TheState().mu);
  ++TheState().counts.streams;
  return CudaError::kSuccess;
}
CudaError cuStreamDestroy(CUstream_st* stream) {
  delete stream;
  rope::proto::MutexLock lock(&TheState().mu);
  --TheState().counts.streams;
  return CudaError::kSuccess;
}
CudaError cuStreamSynchronize(CUstream_st* stream) {
  {
    rope::proto::MutexLock lock(&TheState().mu);
    ++TheState().counts.waits;
  }
  if (stream == nullptr) return CudaError::kSuccess;
  std::vector<std::function<void()>> queue;
  {
    rope::proto::MutexLock lock(&stream->mu);
    queue.swap(stream->queue);
  }
  for (const std::function<void()>& work : queue) work();
  return CudaError::kSuccess;
}
CudaError cuMemcpyAsync(void* to, const void* from, size_t bytes, CUstream_st* stream) {
  Enqueue(stream, [=] {
    CheckCopy(to, from, static_cast<int64_t>(bytes));
    std::memcpy(to, from, bytes);
  });
  return CudaError::kSuccess;
}
// A module is its PTX, and a function its name in the PTX.
CudaError cuModuleLoadData(void** module, const void* image) {
  ROPE_CHECK(Contains(static_cast<const char*>(image), ".version 7.0\n"));
  *module = const_cast<void*>(image);
  rope::proto::MutexLock lock(&TheState().mu);
  ++TheState().counts.modules;
  return CudaError::kSuccess;
}
CudaError cuModuleUnload(void*) {
  rope::proto::MutexLock lock(&TheState().mu);
  --TheState().counts.modules;
  return CudaError::kSuccess;
}
CudaError cuModuleGetFunction(void** function, void* module, const char* name) {
  const std::string entry = std::string(".entry ") + name + "(";
  char* const found = std::strstr(static_cast<char*>(module), entry.c_str());
  if (found == nullptr) return kNotFound;
  *function = std::strstr(found, name);
  return CudaError::kSuccess;
}
CudaError cuLaunchKernel(void* function, unsigned blocks, unsigned blocks_y, unsigned blocks_z,
                         unsigned threads, unsigned threads_y, unsigned threads_z, unsigned,
                         CUstream_st* stream, void** parameters, void**) {
  const auto* const begin = static_cast<const char*>(function);
  const std::string name(begin, std::strcspn(begin, "("));
  {
    State& state = TheState();
    rope::proto::MutexLock lock(&state.mu);
    ++state.counts.launches;
    if (name == state.broken_kernel) return CudaError::kSuccess;
  }
  const unsigned block = threads * threads_y * threads_z;
  if (blocks == 0 || blocks_y == 0 || blocks_y > 65535 || blocks_z == 0 || blocks_z > 65535 ||
      block == 0 || block > 1024 || threads_z > 64) {
    return kInvalidValue;
  }
  if (Contains(name, "Rectangle")) {
    const auto& work = *static_cast<const kernels::CudaRectangle*>(parameters[0]);
    Enqueue(stream, RectangleLaunch(name, {blocks, blocks_y, blocks_z},
                                    {threads, threads_y, threads_z}, work));
  } else {
    const auto* const jobs = *static_cast<const kernels::CudaJob**>(parameters[0]);
    const uint32_t count = *static_cast<uint32_t*>(parameters[1]);
    Enqueue(stream, ListLaunch(name, blocks, threads, jobs, count));
  }
  return CudaError::kSuccess;
}

// NOLINTEND(readability-identifier-naming)

// What a program calls in place of a function.
template <auto kFunction>
struct Entry;
template <typename... Arguments, CudaError (*kFunction)(Arguments...)>
struct Entry<kFunction> {
  static inline const char* name;
  static CudaError Call(Arguments... arguments) {
    const CudaError entered = Enter(name);
    if (entered != CudaError::kSuccess && !Releases(name)) return entered;
    const CudaError result = kFunction(arguments...);
    return entered != CudaError::kSuccess ? entered : result;
  }
};

}  // namespace

namespace fake_cuda {

void Reset() {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  ROPE_CHECK(state.allocations.empty() && state.counts.streams + state.counts.modules == 0);
  state.failures.clear();
  state.sticky = CudaError::kSuccess;
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

void Fail(const std::string& function, int64_t nth, CudaError error, bool sticky) {
  State& state = TheState();
  rope::proto::MutexLock lock(&state.mu);
  state.failures[function] = {nth, error, sticky};
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

void BeginCapture(CUstream_st* stream) {
  ROPE_CHECK(cuStreamSynchronize(stream) == CudaError::kSuccess);
  rope::proto::MutexLock state_lock(&TheState().mu);
  ++TheState().captures;
  rope::proto::MutexLock lock(&stream->mu);
  stream->is_captured = true;
}

Graph EndCapture(CUstream_st* stream) {
  rope::proto::MutexLock state_lock(&TheState().mu);
  --TheState().captures;
  rope::proto::MutexLock lock(&stream->mu);
  stream->is_captured = false;
  return std::exchange(stream->queue, {});
}

void Replay(const Graph& graph, CUstream_st* stream) {
  for (const std::function<void()>& node : graph) Enqueue(stream, node);
}

}  // namespace fake_cuda
}  // namespace rope::testing

// NOLINTNEXTLINE(readability-identifier-naming)
extern "C" rope::kernels::CudaError cuGetProcAddress(const char* name, void** function, int,
                                                     uint64_t) {
  using rope::testing::Entry;
  const auto entered = rope::testing::Enter("cuGetProcAddress");
  if (entered != rope::kernels::CudaError::kSuccess) return entered;
#define ROPE_CUDA_ENTRY(known, parameters)             \
  if (std::strcmp(name, #known) == 0) {                \
    using Known = Entry<&rope::testing::known>;        \
    Known::name = #known;                              \
    *function = reinterpret_cast<void*>(&Known::Call); \
    return rope::kernels::CudaError::kSuccess;         \
  }
  ROPE_CUDA_FUNCTIONS(ROPE_CUDA_ENTRY)
#undef ROPE_CUDA_ENTRY
  return rope::testing::kNotFound;
}
