// Rows about tensors in host memory through the cuda backend, staging included, against the time
// that the bus takes for the same bytes in both directions at once.
//   host/64_MiB_pageable   memory as malloc gives it
//   host/64_MiB_pinned     memory that the device reads directly
//   host/1_token           one token's q, for information
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/rotate_job.h"
#include "kernels/backends.h"
#include "kernels/check.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/table_cache.h"
#include "tests/gpu/device.h"
#include "tests/gpu/rows.h"
#include "tests/gpu/workload.h"

namespace rope::bench {
namespace {

constexpr int64_t kVectorBytes = kQueryHeads * kHeadDim * 2;  // q of one token
constexpr int64_t kTokens = (int64_t{64} << 20) / kVectorBytes;
constexpr int64_t kPositions = 4096;
constexpr int kRounds = 21;

using HostMemory = std::unique_ptr<uint8_t, void (*)(void*)>;

void FreePinned(void* memory) {
  Check(cudaFreeHost(memory), "to free pinned memory");
}

// Memory whose pages are resident.
HostMemory Allocate(int64_t bytes, bool pinned) {
  const auto size = static_cast<size_t>(bytes);
  void* memory = nullptr;
  if (pinned) {
    Check(cudaHostAlloc(&memory, size, cudaHostAllocDefault), "pinned memory");
  } else {
    memory = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    ROPE_CHECK(memory != nullptr);
  }
  std::memset(memory, 0x3c, size);
  return {static_cast<uint8_t*>(memory), pinned ? &FreePinned : &std::free};
}

std::unique_ptr<kernels::Backend> MakeBackend() {
  const unsigned processors = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  auto backend = kernels::CreateBackend("cuda", {.threads = static_cast<int>(processors)});
  if (!backend.ok()) {
    std::fprintf(stderr, "rope_bench_cuda: %s\n", backend.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(backend);
}

kernels::Frequencies MakeFrequencies() {
  constexpr int64_t kPairs = kHeadDim / 2;
  kernels::Frequencies frequencies;
  for (int64_t i = 0; i < kPairs; ++i) {
    frequencies.inv_freq.push_back(
        std::pow(10000.0L, -static_cast<long double>(i) / static_cast<long double>(kPairs)));
  }
  frequencies.key = kernels::TableKey(frequencies.inv_freq, frequencies.multiplier);
  return frequencies;
}

// q of some tokens in host memory, in sequences of kPositions.
class HostWorkload {
 public:
  HostWorkload(int64_t tokens, bool pinned)
      : bytes_(tokens * kVectorBytes),
        input_(Allocate(bytes_, pinned)),
        output_(Allocate(bytes_, pinned)),
        cache_(int64_t{64} << 20) {
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < tokens; ++i) positions.push_back(i % kPositions);
    ROPE_CHECK(cache_.AppendRows(MakeFrequencies(), positions, rows_).ok());
    const kernels::Strides strides = {.token = kQueryHeads * kHeadDim, .head = kHeadDim};
    job_ = {.input = input_.get(),
            .output = output_.get(),
            .input_strides = strides,
            .output_strides = strides,
            .tokens = tokens,
            .heads = kQueryHeads,
            .head_dim = kHeadDim,
            .dtype = kernels::DType::kBFloat16,
            .geometry = {.pairs = kHeadDim / 2, .partner = kHeadDim / 2},
            .rows = rows_.rows};
  }

  int64_t bytes() const { return bytes_; }
  const kernels::RotateJob& job() const { return job_; }

 private:
  int64_t bytes_;
  HostMemory input_;
  HostMemory output_;
  kernels::TableCache cache_;
  kernels::TokenRows rows_;
  kernels::RotateJob job_;
};

// Simultaneous copies of pinned memory to the device and from it.
class Bus {
 public:
  explicit Bus(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)),
        up_(Allocate(bytes, true)),
        down_(Allocate(bytes, true)),
        device_up_(bytes),
        device_down_(bytes) {
    for (cudaStream_t& stream : streams_) {
      Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    }
  }
  ~Bus() {
    for (cudaStream_t stream : streams_) Check(cudaStreamDestroy(stream), "to destroy a stream");
  }
  Bus(const Bus&) = delete;
  Bus& operator=(const Bus&) = delete;

  void Transfer() const {
    Check(
        cudaMemcpyAsync(device_up_.data(), up_.get(), bytes_, cudaMemcpyHostToDevice, streams_[0]),
        "a copy to the device");
    Check(cudaMemcpyAsync(down_.get(), device_down_.data(), bytes_, cudaMemcpyDeviceToHost,
                          streams_[1]),
          "a copy from the device");
    for (cudaStream_t stream : streams_) Check(cudaStreamSynchronize(stream), "the copies' end");
  }

 private:
  size_t bytes_;
  HostMemory up_;
  HostMemory down_;
  DeviceBuffer device_up_;
  DeviceBuffer device_down_;
  cudaStream_t streams_[2] = {};
};

CudaMeasurement MeasureHost(int64_t tokens, bool pinned) {
  const HostWorkload workload(tokens, pinned);
  const std::unique_ptr<kernels::Backend> backend = MakeBackend();
  const Bus bus(workload.bytes());
  const std::vector<double> seconds =
      MedianSeconds({[&] {
                       ROPE_CHECK(backend->Rotate({&workload.job(), 1}).ok());
                     },
                     [&] { bus.Transfer(); }},
                    kRounds);
  const double bytes = 2 * static_cast<double>(workload.bytes());
  CudaMeasurement result;
  result.microseconds = seconds[0] * 1e6;
  result.gigabytes_per_second = bytes / seconds[0] * 1e-9;
  result.share = seconds[1] / seconds[0];
  result.measurement = {
      .value = result.microseconds,
      .unit = "us",
      .yardstick = absl::StrFormat("%.3g times the bus, %.1f us, %s", seconds[0] / seconds[1],
                                   seconds[1] * 1e6, GigabytesPerSecond(bytes, seconds[1])),
      .ratio = seconds[0] / seconds[1]};
  return result;
}

}  // namespace

std::vector<CudaRow> HostRows() {
  return {
      {"host/64_MiB_pageable", "<= 1.3", [] { return MeasureHost(kTokens, false); }},
      {"host/64_MiB_pinned", "<= 1.3", [] { return MeasureHost(kTokens, true); }},
      {"host/1_token", "", [] { return MeasureHost(1, false); }},
  };
}

}  // namespace rope::bench
