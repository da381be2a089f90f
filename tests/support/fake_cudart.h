// A CUDA runtime without a device, for programs that link fake_cudart.cc: what nvcc compiled and
// the backend's own objects run against it unchanged.
//
// Device memory is host memory that the fake knows. Streams really are asynchronous: copies and
// launches wait in them until they are synchronised, so a result that is read too early, or a
// buffer that is filled too early, is wrong every time. Kernels run from their source on the CPU.
// Stops the process where a device would fault: memory that was freed or is not the device's, a
// copy from pageable memory, a misaligned access.
//
// Threading:  Thread-safe.
#ifndef ROPE_TESTS_SUPPORT_FAKE_CUDART_H_
#define ROPE_TESTS_SUPPORT_FAKE_CUDART_H_

#include <cstdint>
#include <string>

namespace rope::testing {

struct FakeCudaCounts {
  int64_t launches = 0;
  int64_t copies_in = 0;  // of any shape, from host memory to a device's
  int64_t copies_out = 0;
  int64_t copies_across = 0;  // between two devices
  int64_t device_bytes = 0;   // allocated now
  int64_t pinned_bytes = 0;
  int64_t streams = 0;
  int64_t device_bytes_most = 0;  // since the start
  int64_t pinned_bytes_most = 0;
};

namespace fake_cuda {

// One device that works, nothing counted. REQUIRES: nothing is allocated.
void Reset();
FakeCudaCounts Counts();
int64_t Calls(const std::string& function);
// From now on call number `nth` (1: the next) of `function` answers the cudaError_t `error` and
// does nothing; where `sticky`, so does every call of every function after it.
void Fail(const std::string& function, int64_t nth, int error, bool sticky = false);
// What cudaGetDeviceCount answers; it leaves the count alone then, as the real one does.
void SetDeviceCountError(int error);
// Makes an allocation the memory of another device.
void MoveToDevice(const void* allocation, int device);

}  // namespace fake_cuda
}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_FAKE_CUDART_H_
