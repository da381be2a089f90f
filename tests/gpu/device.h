// Helpers of the GPU benchmarks: device memory, graphs and device time.
//
// Threading:  Confined to one thread.
// Ownership:  Buffers and graphs own their CUDA objects; streams belong to the caller.
// Errors:     None: a CUDA error ends the program with its text and status 1.
#ifndef ROPE_TESTS_GPU_DEVICE_H_
#define ROPE_TESTS_GPU_DEVICE_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace rope::bench {

// Exits the program if `error` is an error; `what` names the failed operation.
void Check(cudaError_t error, const char* what);

// Device memory, uninitialised.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(int64_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // Copies host memory to the buffer's begin.
  void Upload(const void* from, int64_t bytes) const;

 private:
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

using Enqueue = std::function<void(cudaStream_t)>;

// `nodes` calls of a function as one graph. What the function names must outlive the graph.
class Graph {
 public:
  Graph(const Enqueue& enqueue, int nodes);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void Launch(cudaStream_t stream) const;

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

// The times of one function over many turns, in seconds.
struct Spread {
  double median = 0;
  double low = 0;   // a tenth of the turns took less
  double high = 0;  // a tenth took more
};

// REQUIRES: not empty.
Spread SpreadOf(std::vector<double> seconds);

// Raises the clocks of the device, which fall while the host prepares a row.
void WarmUp();
// The clock of the multiprocessors at the end of the last WarmUp; 0: there was none.
double WarmMegahertz();

// The time between two events around each function, with warm clocks. The functions take turns, so
// that changes of the device over time affect all of them, in reverse order every second turn; the
// first turn does not count.
std::vector<Spread> DeviceSeconds(const std::vector<Enqueue>& functions, int rounds = 51);

// The times of the functions by this process's clock, in turns, with warm clocks of the device; the
// first turn does not count.
std::vector<Spread> HostSeconds(const std::vector<std::function<void()>>& functions,
                                int rounds = 51);

// Properties of device 0.
const cudaDeviceProp& Device();
int64_t FreeDeviceBytes();

}  // namespace rope::bench

#endif  // ROPE_TESTS_GPU_DEVICE_H_
