// Rows about the cuda backend, one whole call each.
//   host/...       tensors in host memory, staging included, against the time that the bus takes
//                  for the same bytes in both directions at once
//   device/...     tensors in device memory, against the kernel alone
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/cuda/cuda_backend.h"
#include "kernels/backend/rotate_job.h"
#include "kernels/check.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/table_cache.h"
#include "tests/gpu/device.h"
#include "tests/gpu/rows.h"
#include "tests/gpu/workload.h"
#include "tests/gpu/yardsticks.h"

namespace rope::bench {
namespace {

constexpr int64_t kPositions = 4096;

enum class Place { kPageable, kPinned, kDevice };

using Memory = std::unique_ptr<uint8_t, void (*)(void*)>;

void FreePinned(void* memory) {
  Check(cudaFreeHost(memory), "to free pinned memory");
}
void FreeDevice(void* memory) {
  Check(cudaFree(memory), "to free device memory");
}

// Memory whose pages are resident, filled with random numbers.
Memory Allocate(int64_t bytes, Place place) {
  const auto size = static_cast<size_t>(bytes);
  void* memory = nullptr;
  if (place == Place::kDevice) {
    Check(cudaMalloc(&memory, size), "device memory");
    FillRandomly(memory, bytes, kernels::DType::kBFloat16);
    return {static_cast<uint8_t*>(memory), &FreeDevice};
  }
  if (place == Place::kPinned) {
    Check(cudaHostAlloc(&memory, size, cudaHostAllocDefault), "pinned memory");
  } else {
    memory = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    ROPE_CHECK(memory != nullptr);
  }
  FillRandomly(memory, bytes, kernels::DType::kBFloat16);
  return {static_cast<uint8_t*>(memory), place == Place::kPinned ? &FreePinned : &std::free};
}

absl::StatusOr<std::unique_ptr<kernels::Backend>> MakeBackend() {
  const unsigned processors = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  return kernels::MakeCudaBackend({.threads = static_cast<int>(processors)});
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

struct CallSpec {
  int64_t requests = 1;
  int64_t tokens = 1;  // of a request, from position 1 on
  int64_t query_heads = kQueryHeads;
  int64_t key_heads = 0;
  Place place = Place::kPageable;
  bool in_place = false;
  bool announced = false;  // the output, as memory for results (backend.h)
  int64_t slices = 1;      // calls, one after the other, that rotate the tokens
};

// The jobs of a call, with their memory and rows.
class Call {
 public:
  explicit Call(const CallSpec& spec) : spec_(spec), cache_(int64_t{512} << 20) {
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < spec.tokens; ++i) positions.push_back(1 + i % kPositions);
    const absl::Status status = cache_.AppendRows(MakeFrequencies(), positions, rows_);
    ROPE_CHECK(status.ok());
    for (int64_t request = 0; request < spec.requests; ++request) {
      for (const int64_t heads : {spec.query_heads, spec.key_heads}) {
        if (heads > 0) AddJob(heads);
      }
    }
  }

  int64_t bytes() const { return bytes_; }

  // Rotates all jobs: in one call, or slice by slice.
  absl::Status Rotate(kernels::Backend& backend) const {
    if (spec_.slices == 1) return backend.Rotate(jobs_);
    absl::Status status;
    for (const kernels::RotateJob& job : jobs_) status.Update(backend.Rotate({&job, 1}));
    return status;
  }

  // Announces the outputs to the backend, or takes that back, and waits for its effect.
  void Announce(kernels::Backend& backend) const {
    const auto memory = backend.host_memory();
    for (const kernels::RotateJob& job : jobs_) {
      memory->Add(static_cast<char*>(job.output), job.bytes());
    }
    memory->Wait();
  }
  void Withdraw(kernels::Backend& backend) const {
    const auto memory = backend.host_memory();
    for (const kernels::RotateJob& job : jobs_) {
      memory->Remove(static_cast<char*>(job.output), [] {});
    }
    memory->Wait();
  }

  // Rotates once and compares the first and the last job. Returns what is wrong.
  std::string Verify(kernels::Backend& backend) {
    std::vector<Memory> before;
    for (const kernels::RotateJob& job : jobs_) {
      before.push_back(Allocate(job.bytes(), Place::kDevice));
      Check(cudaMemcpy(before.back().get(), job.input, static_cast<size_t>(job.bytes()),
                       cudaMemcpyDefault),
            "a copy of the input");
    }
    for (const kernels::RotateJob& job : jobs_) Poison(job);
    Check(cudaDeviceSynchronize(), "the copies' end");
    if (const absl::Status status = Rotate(backend); !status.ok()) return status.ToString();
    std::string wrong = VerifyJob(jobs_.front(), before.front().get());
    if (wrong.empty()) wrong = VerifyJob(jobs_.back(), before.back().get());
    return wrong;
  }

 private:
  // Fills an output that is not in place with what is no number in any dtype.
  void Poison(const kernels::RotateJob& job) const {
    if (spec_.in_place) return;
    const auto bytes = static_cast<size_t>(job.bytes());
    if (spec_.place == Place::kDevice) {
      Check(cudaMemset(job.output, 0xff, bytes), "poison");
    } else {
      std::memset(job.output, 0xff, bytes);
    }
  }

  void AddJob(int64_t heads) {
    const int64_t bytes = spec_.tokens * heads * kHeadDim * 2;
    bytes_ += bytes;
    memory_.push_back(Allocate(bytes, spec_.place));
    uint8_t* const input = memory_.back().get();
    if (!spec_.in_place) memory_.push_back(Allocate(bytes, spec_.place));
    const kernels::Strides strides = {.token = heads * kHeadDim, .head = kHeadDim};
    const auto kind =
        spec_.place == Place::kDevice ? kernels::MemoryKind::kDevice : kernels::MemoryKind::kHost;
    const int64_t tokens = spec_.tokens / spec_.slices;
    for (int64_t slice = 0; slice < spec_.slices; ++slice) {
      const int64_t offset = slice * bytes / spec_.slices;
      jobs_.push_back(
          {.input = input + offset,
           .output = memory_.back().get() + offset,
           .input_memory = kind,
           .output_memory = kind,
           .input_strides = strides,
           .output_strides = strides,
           .tokens = tokens,
           .heads = heads,
           .head_dim = kHeadDim,
           .dtype = kernels::DType::kBFloat16,
           .geometry = {.pairs = kHeadDim / 2, .partner = kHeadDim / 2},
           .rows = absl::MakeConstSpan(rows_.rows)
                       .subspan(static_cast<size_t>(slice * tokens), static_cast<size_t>(tokens))});
    }
  }

  std::string VerifyJob(const kernels::RotateJob& job, const uint8_t* before) const {
    const Memory after = Allocate(job.bytes(), Place::kDevice);
    Check(cudaMemcpy(after.get(), job.output, static_cast<size_t>(job.bytes()), cudaMemcpyDefault),
          "a copy of the output");
    const int64_t positions = std::min(job.tokens, kPositions);
    std::vector<float> table;
    for (int64_t i = 0; i < positions; ++i) {
      const kernels::RowRef& row = job.rows[static_cast<size_t>(i)];
      table.insert(table.end(), row.page->Cos(row.index), row.page->Cos(row.index) + kHeadDim);
    }
    const DeviceBuffer device_table(static_cast<int64_t>(table.size() * sizeof(float)));
    device_table.Upload(table.data(), device_table.bytes());
    RotatedRectangle rectangle;
    rectangle.before = before;
    rectangle.after = after.get();
    rectangle.tokens = job.tokens;
    rectangle.heads = job.heads;
    rectangle.head_dim = kHeadDim;
    rectangle.pairs = kHeadDim / 2;
    rectangle.table = reinterpret_cast<const float*>(device_table.data());
    rectangle.positions = positions;
    rectangle.dtype = static_cast<uint32_t>(job.dtype);
    WrongElements wrong;
    Check(CountWrong(rectangle, &wrong), "a comparison");
    if (wrong.count == 0) return "";
    return absl::StrFormat("%d elements are wrong, the first is number %d", wrong.count,
                           wrong.first);
  }

  const CallSpec spec_;
  int64_t bytes_ = 0;
  kernels::TableCache cache_;
  kernels::TokenRows rows_;
  std::vector<Memory> memory_;
  std::vector<kernels::RotateJob> jobs_;
};

// Simultaneous copies of pinned memory to the device and from it.
class Bus {
 public:
  explicit Bus(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)),
        up_(Allocate(bytes, Place::kPinned)),
        down_(Allocate(bytes, Place::kPinned)),
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
  Memory up_;
  Memory down_;
  DeviceBuffer device_up_;
  DeviceBuffer device_down_;
  cudaStream_t streams_[2] = {};
};

CudaMeasurement ResultOf(const Call& call, const Spread& seconds) {
  CudaMeasurement result;
  result.seconds = seconds;
  result.gigabytes_per_second = 2 * static_cast<double>(call.bytes()) / seconds.median * 1e-9;
  result.measurement = {.value = seconds.median * 1e6, .unit = "us"};
  return result;
}

// Whether the bus takes more or less than the call.
CudaMeasurement MeasureHost(const CallSpec& spec) {
  auto backend = MakeBackend();
  if (!backend.ok()) return NotMeasured(backend.status().ToString());
  Call call(spec);
  if (spec.announced) call.Announce(**backend);
  const std::string wrong = call.Verify(**backend);
  const Bus bus(call.bytes());
  absl::Status status;
  const std::vector<Spread> seconds =
      HostSeconds({[&] { status.Update(call.Rotate(**backend)); }, [&] { bus.Transfer(); }});
  if (spec.announced) call.Withdraw(**backend);
  CudaMeasurement result = ResultOf(call, seconds[0]);
  result.wrong = status.ok() ? wrong : status.ToString();
  result.share = seconds[1].median / seconds[0].median;
  const double ratio = seconds[0].median / seconds[1].median;
  result.measurement.ratio = ratio;
  result.measurement.yardstick =
      absl::StrFormat("%.3g times the bus, %.1f us, %s", ratio, seconds[1].median * 1e6,
                      GigabytesPerSecond(2 * static_cast<double>(call.bytes()), seconds[1].median));
  return result;
}

CudaMeasurement MeasureDevice(const CallSpec& spec) {
  auto backend = MakeBackend();
  if (!backend.ok()) return NotMeasured(backend.status().ToString());
  const Case alone_case = {
      .requests = std::vector<int64_t>(static_cast<size_t>(spec.requests), spec.tokens),
      .in_place = spec.in_place,
      .query_heads = spec.query_heads,
      .key_heads = spec.key_heads};
  // The kernel's tensors, and the calls' as many with a copy to verify.
  if (2 * Workload::BytesNeeded(alone_case) > FreeDeviceBytes()) {
    return NotMeasured("needs more free device memory");
  }
  Workload kernel(alone_case);
  std::vector<std::unique_ptr<Call>> calls;  // in turns: no tensor is in the cache of the device
  for (int i = 0; i < kernel.sets(); ++i) calls.push_back(std::make_unique<Call>(spec));
  const std::string wrong = calls.front()->Verify(**backend);
  size_t next = 0;
  const Spread alone = DeviceSeconds({[&](cudaStream_t stream) { kernel.Rotate(stream); }}).front();
  absl::Status status;
  const Spread seconds = HostSeconds({[&] {
                           status.Update(calls[next++ % calls.size()]->Rotate(**backend));
                         }}).front();
  CudaMeasurement result = ResultOf(*calls.front(), seconds);
  result.wrong = status.ok() ? wrong : status.ToString();
  result.share = alone.median / seconds.median;
  result.measurement.ratio = result.share;
  result.measurement.yardstick =
      absl::StrFormat("the kernel alone %.2f us, event to event", alone.median * 1e6);
  return result;
}

CudaRow HostRow(const std::string& name, const std::string& bar, const CallSpec& spec) {
  return {"host/" + name, bar, [=] { return MeasureHost(spec); }};
}
CudaRow DeviceRow(const std::string& name, const std::string& bar, CallSpec spec) {
  spec.key_heads = kKeyHeads;
  spec.place = Place::kDevice;
  return {"device/" + name, bar, [=] { return MeasureDevice(spec); }};
}

}  // namespace

std::vector<CudaRow> BackendRows() {
  constexpr int64_t kTokens = 8192;  // of 32 heads: 64 MiB
  return {
      HostRow("64_MiB_pageable", "", {.tokens = kTokens}),
      HostRow("64_MiB_results_announced", "<= 1.3", {.tokens = kTokens, .announced = true}),
      HostRow("64_MiB_in_slices_of_8", "", {.tokens = kTokens, .announced = true, .slices = 8}),
      HostRow("1_token", "", {}),
      HostRow("64_requests_of_1_token", "", {.requests = 64, .key_heads = kKeyHeads}),
      DeviceRow("4096_tokens_42_MB_in_place", ">= 0.7", {.tokens = 4096, .in_place = true}),
      DeviceRow("26214_tokens_268_MB_in_place", ">= 0.9", {.tokens = 26214, .in_place = true}),
      DeviceRow("1_token", "", {}),
      DeviceRow("64_requests_of_1_token", "", {.requests = 64}),
      DeviceRow("131072_tokens", "", {.tokens = 131072}),
      DeviceRow("1048576_tokens_beyond_4_GiB_in_place", "",
                {.tokens = int64_t{1} << 20, .in_place = true}),
  };
}

}  // namespace rope::bench
