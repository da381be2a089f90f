#include "tests/gpu/device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tests/bench/measure.h"
#include "tests/gpu/yardsticks.h"

namespace rope::bench {
namespace {

// An idle card takes this long to raise its clocks.
constexpr int kWarmMilliseconds = 150;

double warm_megahertz = 0;

class Stream {
 public:
  Stream() { Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"); }
  ~Stream() { Check(cudaStreamDestroy(stream_), "to destroy a stream"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { Check(cudaEventCreate(&event_), "an event"); }
  ~Event() { Check(cudaEventDestroy(event_), "to destroy an event"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

std::vector<Spread> Spreads(std::vector<std::vector<double>> seconds) {
  std::vector<Spread> spreads;
  for (std::vector<double>& turns : seconds) spreads.push_back(SpreadOf(std::move(turns)));
  return spreads;
}

}  // namespace

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "rope_bench_cuda: asked for %s, got %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

DeviceBuffer::DeviceBuffer(int64_t bytes) : bytes_(bytes) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, static_cast<size_t>(bytes)), "device memory");
  data_ = static_cast<uint8_t*>(memory);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) Check(cudaFree(data_), "to free device memory");
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

void DeviceBuffer::Upload(const void* from, int64_t bytes) const {
  Check(cudaMemcpy(data_, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice), "an upload");
}

Graph::Graph(const Enqueue& enqueue, int nodes) {
  const Stream stream;
  Check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "a capture");
  for (int i = 0; i < nodes; ++i) enqueue(stream.get());
  Check(cudaStreamEndCapture(stream.get(), &graph_), "a graph");
  Check(cudaGraphInstantiate(&executable_, graph_, 0), "an executable graph");
}

Graph::~Graph() {
  Check(cudaGraphExecDestroy(executable_), "to destroy an executable graph");
  Check(cudaGraphDestroy(graph_), "to destroy a graph");
}

void Graph::Launch(cudaStream_t stream) const {
  Check(cudaGraphLaunch(executable_, stream), "a graph launch");
}

Spread SpreadOf(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const size_t last = seconds.size() - 1;
  return {seconds[last / 2], seconds[last / 10], seconds[last - last / 10]};
}

void WarmUp() {
  Check(WarmClocks(kWarmMilliseconds, &warm_megahertz), "warm clocks");
}

double WarmMegahertz() {
  return warm_megahertz;
}

std::vector<Spread> DeviceSeconds(const std::vector<Enqueue>& functions, int rounds) {
  WarmUp();
  const Stream stream;
  const Event begin;
  const Event end;
  std::vector<std::vector<double>> seconds(functions.size());
  for (int round = -1; round < rounds; ++round) {
    for (size_t turn = 0; turn < functions.size(); ++turn) {
      const size_t i = round % 2 == 0 ? turn : functions.size() - 1 - turn;
      Check(cudaEventRecord(begin.get(), stream.get()), "an event");
      functions[i](stream.get());
      Check(cudaEventRecord(end.get(), stream.get()), "an event");
      Check(cudaEventSynchronize(end.get()), "the end of a measurement");
      float milliseconds = 0;
      Check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "a time");
      if (round >= 0) seconds[i].push_back(static_cast<double>(milliseconds) * 1e-3);
    }
  }
  return Spreads(std::move(seconds));
}

std::vector<Spread> HostSeconds(const std::vector<std::function<void()>>& functions, int rounds) {
  WarmUp();
  return Spreads(TakeTurns(functions, rounds));
}

const cudaDeviceProp& Device() {
  static const cudaDeviceProp properties = [] {
    cudaDeviceProp found;
    Check(cudaGetDeviceProperties(&found, 0), "the properties of device 0");
    return found;
  }();
  return properties;
}

int64_t FreeDeviceBytes() {
  size_t free = 0;
  size_t total = 0;
  Check(cudaMemGetInfo(&free, &total), "free device memory");
  return static_cast<int64_t>(free);
}

}  // namespace rope::bench
