// The work of benchmark rows: touched memory, table rows, and the job of a tensor.
//
// Threading:  Values; a Workload is as its memory is.
// Ownership:  A Workload owns its rows and its memory.
#ifndef ROPE_TESTS_BENCH_WORKLOAD_H_
#define ROPE_TESTS_BENCH_WORKLOAD_H_

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>

#include "kernels/backend/backend.h"
#include "kernels/backend/worker_pool.h"
#include "kernels/tables/table_cache.h"

namespace rope::bench {

// A decode token: 40 heads of 128 channels, bf16 unless a row says otherwise.
inline constexpr int64_t kHeads = 40;
inline constexpr int64_t kHeadDim = 128;
inline constexpr int64_t kTokenBytes = kHeads * kHeadDim * 2;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<uint8_t, Free>;

// Memory whose pages are resident, so that no measurement includes page faults.
Memory Allocate(int64_t bytes);

// The number of threads of a server by default, bounded.
int Threads();

// One tensor to rotate from position 0, with its rows.
class Workload {
 public:
  Workload(int64_t tokens, kernels::DType dtype, kernels::Pairing pairing);

  int64_t bytes() const { return bytes_; }
  uint8_t* input() const { return input_.get(); }
  uint8_t* output() const { return output_.get(); }
  kernels::RotateJob job(bool in_place) const;

 private:
  kernels::TableCache cache_;
  kernels::TokenRows rows_;
  int64_t bytes_;
  Memory input_;
  Memory output_;
  kernels::RotateJob job_;
};

// Copies of a workload's input to its output, divided equally among the threads of the pool.
std::function<void()> PlainCopy(kernels::WorkerPool& pool, const Workload& workload);
std::function<void()> StreamingCopy(kernels::WorkerPool& pool, const Workload& workload);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_WORKLOAD_H_
