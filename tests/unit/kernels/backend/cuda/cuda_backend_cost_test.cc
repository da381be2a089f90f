// What a batch costs: CUDA calls and bytes on the bus, counted on the fake runtime.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <ostream>
#include <vector>

#include "kernels/backend/cuda/cuda_backend.h"
#include "kernels/backend/cuda/cuda_job.h"
#include "kernels/check.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/table_cache.h"
#include "tests/support/fake_cudart_fixture.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using rope::testing::FakeCudaCounts;
namespace fake_cuda = rope::testing::fake_cuda;

constexpr int64_t kHeadDim = 128;

Frequencies MakeFrequencies() {
  Frequencies frequencies;
  for (int64_t i = 0; i < kHeadDim / 2; ++i) {
    frequencies.inv_freq.push_back(1.0L / static_cast<long double>(1 + i));
  }
  frequencies.key = TableKey(frequencies.inv_freq, frequencies.multiplier);
  return frequencies;
}

// q and k of some requests, in host memory or in device memory.
class Batch {
 public:
  Batch(int64_t requests, int64_t tokens, int64_t heads_q, int64_t heads_k, bool on_device,
        TableCache& cache)
      : on_device_(on_device), rows_(static_cast<size_t>(requests)) {
    for (int64_t request = 0; request < requests; ++request) {
      TokenRows& rows = rows_[static_cast<size_t>(request)];
      std::vector<int64_t> positions;
      for (int64_t i = 0; i < tokens; ++i) positions.push_back(1000 * request + i);
      ROPE_CHECK(cache.AppendRows(MakeFrequencies(), positions, rows).ok());
      for (const int64_t heads : {heads_q, heads_k}) {
        RotateJob job;
        job.input = Allocate(tokens * heads * kHeadDim * 2);
        job.output = Allocate(tokens * heads * kHeadDim * 2);
        job.input_strides = job.output_strides = {heads * kHeadDim, kHeadDim};
        job.tokens = tokens;
        job.heads = heads;
        job.head_dim = kHeadDim;
        job.dtype = DType::kBFloat16;
        job.geometry = {.pairs = kHeadDim / 2, .partner = kHeadDim / 2};
        job.rows = rows.rows;
        job.input_memory = job.output_memory = on_device ? MemoryKind::kDevice : MemoryKind::kHost;
        jobs_.push_back(job);
      }
    }
  }
  ~Batch() {
    for (void* memory : memory_)
      on_device_ ? static_cast<void>(cudaFree(memory)) : std::free(memory);
  }
  const std::vector<RotateJob>& jobs() const { return jobs_; }

 private:
  void* Allocate(int64_t bytes) {
    void* memory = nullptr;
    if (on_device_) {
      ROPE_CHECK(cudaMalloc(&memory, static_cast<size_t>(bytes)) == cudaSuccess);
    } else {
      memory = std::aligned_alloc(64, static_cast<size_t>(bytes));
    }
    std::memset(memory, 0, static_cast<size_t>(bytes));
    memory_.push_back(memory);
    return memory;
  }
  bool on_device_;
  std::vector<TokenRows> rows_;
  std::vector<RotateJob> jobs_;
  std::vector<void*> memory_;
};

struct Cost {
  int64_t calls = 0;
  int64_t launches = 0;
  int64_t bytes_in = 0;
  int64_t bytes_out = 0;

  friend bool operator==(const Cost&, const Cost&) = default;
  friend std::ostream& operator<<(std::ostream& stream, const Cost& cost) {
    return stream << cost.calls << " calls, " << cost.launches << " launches, " << cost.bytes_in
                  << " bytes to the device, " << cost.bytes_out << " back";
  }
};

class CudaBackendCostTest : public rope::testing::FakeCudaTest {
 protected:
  // The cost of a batch that ran before. `first`: of the first run. `announced`: results are in
  // memory that the device copies them to.
  static Cost CostOf(const Batch& batch, Cost* first = nullptr, bool announced = false) {
    const auto backend = MakeCudaBackend({.threads = 2});
    EXPECT_THAT(backend, IsOk());
    HostMemory& memory = *(*backend)->host_memory();
    for (const RotateJob& job : batch.jobs()) {
      if (announced) memory.Add(static_cast<char*>(job.output), job.bytes());
    }
    memory.Wait();
    Cost cost;
    for (Cost* run : {first, &cost}) {
      const FakeCudaCounts before = fake_cuda::Counts();
      EXPECT_THAT((*backend)->Rotate(batch.jobs()), IsOk());
      const FakeCudaCounts after = fake_cuda::Counts();
      if (run == nullptr) continue;
      *run = {after.calls - before.calls, after.launches - before.launches,
              after.bytes_in - before.bytes_in, after.bytes_out - before.bytes_out};
    }
    for (const RotateJob& job : batch.jobs()) {
      if (announced) memory.Remove(static_cast<char*>(job.output), [] {});
    }
    memory.Wait();
    return cost;
  }

  static constexpr int64_t kRow = 2 * kHeadDim / 2 * 4;       // bytes of a token's cos and sin
  static constexpr int64_t kDecode = 64 * 40 * kHeadDim * 2;  // q and k of 64 tokens
  static constexpr int64_t kJobs = 2 * 64 * sizeof(CudaJob);  // of 64 requests
  TableCache cache_{int64_t{1} << 30};
};

TEST_F(CudaBackendCostTest, DecodeOf64RequestsInDeviceMemory) {
  Cost first;
  const Batch batch(64, 1, 32, 8, true, cache_);
  EXPECT_EQ(CostOf(batch, &first), (Cost{4, 1, 64 * kRow + kJobs, 0}));
  EXPECT_EQ(first, (Cost{4, 1, 64 * kRow + kJobs, 0})) << "new positions cost nothing more";
}

TEST_F(CudaBackendCostTest, DecodeOfOneRequestIsACopyALaunchAndACopyBack) {
  const int64_t bytes = kDecode / 64;
  EXPECT_EQ(CostOf(Batch(1, 1, 32, 8, false, cache_)), (Cost{5, 1, bytes + kRow, bytes}));
  EXPECT_EQ(CostOf(Batch(1, 1, 32, 8, true, cache_)), (Cost{4, 1, kRow, 0})) << "its row";
}

TEST_F(CudaBackendCostTest, DecodeOf64RequestsInHostMemory) {
  const Cost cost = CostOf(Batch(64, 1, 32, 8, false, cache_));
  EXPECT_EQ(cost, (Cost{10, 2, kDecode + 64 * kRow + kJobs, kDecode}));
}

TEST_F(CudaBackendCostTest, SequenceInDeviceMemoryIsOneLaunchWithoutACopy) {
  Cost first;
  const Batch batch(1, 131072, 1, 1, true, cache_);
  EXPECT_EQ(CostOf(batch, &first), (Cost{3, 1, 0, 0}));
  EXPECT_EQ(first.bytes_in, 131072 * kRow);
}

TEST_F(CudaBackendCostTest, SequenceInHostMemoryMovesItsTensorsAlone) {
  constexpr int64_t kBytes = 2 * 131072 * kHeadDim * 2;
  const Cost cost = CostOf(Batch(1, 131072, 1, 1, false, cache_));
  EXPECT_EQ(cost, (Cost{134, 33, kBytes, kBytes}));
}

TEST_F(CudaBackendCostTest, EachResultInAnnouncedMemoryIsACopy) {
  constexpr int64_t kBytes = 2 * 131072 * kHeadDim * 2;
  EXPECT_EQ(CostOf(Batch(1, 131072, 1, 1, false, cache_), nullptr, true),
            (Cost{135, 33, kBytes, kBytes}));
}

}  // namespace
}  // namespace rope::kernels
