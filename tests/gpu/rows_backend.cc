// Rows about the cuda backend: whole calls on tensors in device memory, against the kernel alone.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/cuda/cuda_backend.h"
#include "kernels/backend/rotate_job.h"
#include "kernels/check.h"
#include "kernels/tables/table_cache.h"
#include "tests/gpu/device.h"
#include "tests/gpu/rows.h"
#include "tests/gpu/workload.h"
#include "tests/gpu/yardsticks.h"
#include "tests/support/plain_frequencies.h"

namespace rope::bench {
namespace {

constexpr int64_t kPositions = 4096;

struct Free {
  void operator()(uint8_t* memory) const { Check(cudaFree(memory), "to free device memory"); }
};
using Memory = std::unique_ptr<uint8_t, Free>;

// Device memory, filled with random numbers.
Memory Allocate(int64_t bytes) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, static_cast<size_t>(bytes)), "device memory");
  FillRandomly(memory, bytes, kernels::DType::kBFloat16);
  return Memory(static_cast<uint8_t*>(memory));
}

struct CallSpec {
  int64_t requests = 1;
  int64_t tokens = 1;  // of a request, from position 1 on
  bool in_place = false;
};

// The jobs of a call, with their memory and rows.
class Call {
 public:
  explicit Call(const CallSpec& spec) : spec_(spec), cache_(int64_t{512} << 20) {
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < spec.tokens; ++i) positions.push_back(1 + i % kPositions);
    const absl::Status status =
        cache_.AppendRows(testing::PlainFrequencies(kHeadDim / 2), positions, rows_);
    ROPE_CHECK(status.ok());
    for (int64_t request = 0; request < spec.requests; ++request) {
      for (const int64_t heads : {kQueryHeads, kKeyHeads}) AddJob(heads);
    }
  }

  int64_t bytes() const { return bytes_; }

  absl::Status Rotate(kernels::Backend& backend) const { return backend.Rotate(jobs_); }

  // Rotates once and compares the first and the last job. Returns what is wrong.
  std::string Verify(kernels::Backend& backend) {
    std::vector<Memory> before;
    for (const kernels::RotateJob& job : jobs_) {
      before.push_back(Allocate(job.bytes()));
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
    Check(cudaMemset(job.output, 0xff, static_cast<size_t>(job.bytes())), "poison");
  }

  void AddJob(int64_t heads) {
    const int64_t bytes = spec_.tokens * heads * kHeadDim * 2;
    bytes_ += bytes;
    memory_.push_back(Allocate(bytes));
    uint8_t* const input = memory_.back().get();
    if (!spec_.in_place) memory_.push_back(Allocate(bytes));
    const kernels::Strides strides = {.token = heads * kHeadDim, .head = kHeadDim};
    jobs_.push_back({.input = input,
                     .output = memory_.back().get(),
                     .input_memory = kernels::MemoryKind::kDevice,
                     .output_memory = kernels::MemoryKind::kDevice,
                     .input_strides = strides,
                     .output_strides = strides,
                     .tokens = spec_.tokens,
                     .heads = heads,
                     .head_dim = kHeadDim,
                     .dtype = kernels::DType::kBFloat16,
                     .geometry = {.pairs = kHeadDim / 2, .partner = kHeadDim / 2},
                     .rows = rows_.rows});
  }

  std::string VerifyJob(const kernels::RotateJob& job, const uint8_t* before) const {
    const Memory after = Allocate(job.bytes());
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

CudaMeasurement MeasureDevice(const CallSpec& spec) {
  auto backend = kernels::MakeCudaBackend();
  if (!backend.ok()) return NotMeasured(backend.status().ToString());
  const Case alone_case = {
      .requests = std::vector<int64_t>(static_cast<size_t>(spec.requests), spec.tokens),
      .in_place = spec.in_place};
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
  const double share = alone.median / seconds.median;
  return {.measurement = {.value = seconds.median * 1e6,
                          .unit = "us",
                          .yardstick = absl::StrFormat("the kernel alone %.2f us, event to event",
                                                       alone.median * 1e6),
                          .ratio = share},
          .seconds = seconds,
          .gigabytes_per_second =
              2 * static_cast<double>(calls.front()->bytes()) / seconds.median * 1e-9,
          .share = share,
          .wrong = status.ok() ? wrong : status.ToString()};
}

CudaRow DeviceRow(const std::string& name, const CallSpec& spec) {
  return {"device/" + name, "", [=] { return MeasureDevice(spec); }};
}

}  // namespace

std::vector<CudaRow> BackendRows() {
  return {
      DeviceRow("4096_tokens_42_MB_in_place", {.tokens = 4096, .in_place = true}),
      DeviceRow("26214_tokens_268_MB_in_place", {.tokens = 26214, .in_place = true}),
      DeviceRow("1_token", {}),
      DeviceRow("64_requests_of_1_token", {.requests = 64}),
      DeviceRow("131072_tokens", {.tokens = 131072}),
      DeviceRow("1048576_tokens_beyond_4_GiB_in_place",
                {.tokens = int64_t{1} << 20, .in_place = true}),
  };
}

}  // namespace rope::bench
