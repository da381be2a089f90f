// A CUDA runtime without a device, for programs that link fake_cudart.cc. Code compiled by nvcc and
// the backend's own objects run against it unchanged.
//
// Device memory is host memory that the fake keeps a list of. Streams are asynchronous: copies and
// launches wait until the stream is synchronised. A result that is read too early, or a buffer that
// is filled too early, is therefore wrong every time. Kernels run from their source on the CPU. The
// process stops where a device would fault: on an access to freed or foreign memory, a copy from
// pageable memory, or a misaligned access. Kernels reach pinned memory too.
//
// Threading:  Thread-safe.
#ifndef ROPE_TESTS_SUPPORT_FAKE_CUDART_H_
#define ROPE_TESTS_SUPPORT_FAKE_CUDART_H_

#include <cstdint>
#include <string>

namespace rope::testing {

struct FakeCudaCounts {
  int64_t calls = 0;  // of any function of the runtime
  int64_t launches = 0;
  int64_t copies_in = 0;  // of any shape, from host memory to a device's
  int64_t copies_out = 0;
  int64_t device_bytes = 0;  // allocated now
  int64_t pinned_bytes = 0;
  int64_t streams = 0;
  int64_t threads_without_device = 0;  // calls of threads that have not chosen a device
};

namespace fake_cuda {

// Resets to one working device with all counts zero. REQUIRES: nothing is allocated.
void Reset();
FakeCudaCounts Counts();
int64_t Calls(const std::string& function);
// From now on call number `nth` (1: the next) of `function` returns the cudaError_t `error` and
// does nothing. `sticky`: every later call of every function fails in the same way.
void Fail(const std::string& function, int64_t nth, int error, bool sticky = false);
// The result of cudaGetDeviceCount; on an error it leaves the count unchanged, as the real one
// does.
void SetDeviceCountError(int error);
// From now on allocations of device memory and of pinned memory fail beyond these sums.
void SetMemory(int64_t device_bytes, int64_t pinned_bytes);
// From now on kernels of this name write nothing.
void BreakKernel(const std::string& name);

}  // namespace fake_cuda
}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_FAKE_CUDART_H_
