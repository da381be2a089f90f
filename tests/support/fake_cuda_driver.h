// A CUDA driver without a device: libcuda.so.1, in tests/fake_cuda of the build folder. A program
// that links it, or that finds it by LD_LIBRARY_PATH, runs the backend as it is.
//
// Device memory is host memory that the fake keeps a list of. Streams are asynchronous: copies and
// launches wait until the stream is synchronised. A result that is read too early, or a buffer that
// is filled too early, is therefore wrong every time. The null stream runs all at once. Kernels run
// from their source on the CPU. The process stops where a device would fault: on an access to freed
// or foreign memory, a copy from pageable memory, or a misaligned access. Kernels reach pinned
// memory too. SIGUSR1 loses the device: the next launch fails, and everything after it.
//
// Threading:  Thread-safe.
#ifndef ROPE_TESTS_SUPPORT_FAKE_CUDA_DRIVER_H_
#define ROPE_TESTS_SUPPORT_FAKE_CUDA_DRIVER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/backend/cuda/cuda_driver.h"

namespace rope::testing {

// Errors of CUDA that only tests name.
inline constexpr kernels::CudaError kInvalidValue{1};
inline constexpr kernels::CudaError kInvalidContext{201};
inline constexpr kernels::CudaError kNotFound{500};
inline constexpr kernels::CudaError kIllegalAddress{700};
inline constexpr kernels::CudaError kLaunchFailed{719};
inline constexpr kernels::CudaError kUnknown{999};

struct FakeCudaCounts {
  int64_t calls = 0;  // of any function of the driver, without cuGetErrorString
  int64_t launches = 0;
  int64_t allocations = 0;  // of device memory and of pinned memory
  int64_t waits = 0;        // for streams
  int64_t copies_in = 0;    // of any shape, from host memory to a device's
  int64_t copies_out = 0;
  int64_t device_bytes = 0;  // allocated now
  int64_t pinned_bytes = 0;
  int64_t streams = 0;
  int64_t modules = 0;
};

namespace fake_cuda {

// Resets to one working device with all counts zero. REQUIRES: nothing is allocated.
void Reset();
FakeCudaCounts Counts();
// From now on call number `nth` (1: the next) of `function` returns `error` and
// does nothing. `sticky`: every later call of every function fails in the same way.
void Fail(const std::string& function, int64_t nth, kernels::CudaError error, bool sticky = false);
// From now on allocations of device memory and of pinned memory fail beyond these sums.
void SetMemory(int64_t device_bytes, int64_t pinned_bytes);
// From now on the kernel of this name writes nothing.
void BreakKernel(const std::string& name);

// What a stream was asked to do between BeginCapture and EndCapture, as a graph.
using Graph = std::vector<std::function<void()>>;
// Until EndCapture the stream runs nothing. Whatever allocates or waits then fails, on any thread.
void BeginCapture(CUstream_st* stream);
Graph EndCapture(CUstream_st* stream);
// Enqueues all of the graph.
void Replay(const Graph& graph, CUstream_st* stream);

}  // namespace fake_cuda
}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_FAKE_CUDA_DRIVER_H_
