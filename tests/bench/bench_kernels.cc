// Rows about kernels. A kernel's bar stands on its row through the engine (bench_embedded.cc):
//   kernel/rotate_bf16_new_output   4096 tokens x 40 heads x 128 against the fastest copy
//   kernel/rotate_bf16_in_place     the same, in place
//   kernel/rotate_bf16_in_cache     64 tokens, one thread, against memcpy
//   kernel/rotate_*                 every dtype and pairing, 4096 tokens, for information
//   kernel/channel_order_*          results in another order, against the rotation alone
//   table/page_build                one page of 64 columns, for information
//   table/first_request_at_1000000  a new config's first request less the same request warm
//   table/memory_of_1000_configs    bytes against the budget, positions up to 10 million
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/rotate_job.h"
#include "kernels/backend/worker_pool.h"
#include "kernels/backends.h"
#include "kernels/check.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/table_cache.h"
#include "tests/bench/measure.h"
#include "tests/bench/workload.h"

namespace rope::bench {
namespace {

using kernels::DType;
using kernels::Pairing;

Measurement MeasureRotate(DType dtype, Pairing pairing, bool in_place) {
  const Workload workload(4096, dtype, pairing);
  kernels::WorkerPool pool(Threads());
  const auto backend = kernels::CreateBackend("cpu", {.threads = Threads()});
  ROPE_CHECK(backend.ok());
  const kernels::RotateJob job = workload.job(in_place);
  const std::vector<double> seconds =
      MedianSeconds({[&] {
                       ROPE_CHECK((*backend)->Rotate({&job, 1}).ok());
                     },
                     PlainCopy(pool, workload), StreamingCopy(pool, workload)},
                    41);
  const double bytes = static_cast<double>(workload.bytes());
  const double copy = std::min(seconds[1], seconds[2]);
  return {.value = bytes / seconds[0] * 1e-9,
          .unit = "GB/s",
          .yardstick = absl::StrFormat(
              "memcpy %s, streaming copy %s; %d threads, %s", GigabytesPerSecond(bytes, seconds[1]),
              GigabytesPerSecond(bytes, seconds[2]), Threads(), (*backend)->detail()),
          .ratio = copy / seconds[0]};
}

Measurement MeasureInCache() {
  constexpr int kRepeats = 50;
  const Workload workload(64, DType::kBFloat16, Pairing::kHalf);
  const auto backend = kernels::CreateBackend("cpu", {.threads = 1});
  ROPE_CHECK(backend.ok());
  const kernels::RotateJob job = workload.job(false);
  const std::vector<double> seconds = MedianSeconds(
      {[&] {
         for (int i = 0; i < kRepeats; ++i) {
           ROPE_CHECK((*backend)->Rotate({&job, 1}).ok());
         }
       },
       [&] {
         for (int i = 0; i < kRepeats; ++i) {
           std::memcpy(workload.output(), workload.input(), static_cast<size_t>(workload.bytes()));
         }
       }},
      41);
  const double bytes = static_cast<double>(kRepeats * workload.bytes());
  return {.value = bytes / seconds[0] * 1e-9,
          .unit = "GB/s",
          .yardstick = absl::StrFormat("memcpy %s, 1 thread, %s",
                                       GigabytesPerSecond(bytes, seconds[1]), (*backend)->detail()),
          .ratio = seconds[1] / seconds[0]};
}

// Output.channel_order: the rotation of interleaved pairs and the pass that leaves them as halves,
// against the rotation alone.
Measurement MeasureChannelOrder(int64_t tokens) {
  const Workload workload(tokens, DType::kBFloat16, Pairing::kInterleaved);
  const auto backend = kernels::CreateBackend("cpu", {.threads = Threads()});
  ROPE_CHECK(backend.ok());
  const kernels::RotateJob job = workload.job(false);
  const auto rotate = [&] { ROPE_CHECK((*backend)->Rotate({&job, 1}).ok()); };
  const std::vector<double> seconds = MedianSeconds({[&] {
                                                       rotate();
                                                       kernels::ReorderPairs(job, Pairing::kHalf);
                                                     },
                                                     rotate},
                                                    41);
  const double bytes = static_cast<double>(workload.bytes());
  return {.value = bytes / seconds[0] * 1e-9,
          .unit = "GB/s",
          .yardstick = absl::StrFormat("rotation alone %s, %d threads; the pass has 1",
                                       GigabytesPerSecond(bytes, seconds[1]), Threads()),
          .ratio = seconds[1] / seconds[0]};
}

Measurement MeasurePageBuild() {
  const kernels::Frequencies frequencies = MakeFrequencies(500000, kHeadDim / 2);
  const std::vector<double> seconds =
      MedianSeconds({[&] { ROPE_CHECK(kernels::BuildPage(frequencies, 1'000'000).ok()); }}, 201);
  return {.value = seconds[0] * 1e6, .unit = "us", .yardstick = "64 columns, 64 rows"};
}

// The time of one token's q through the cache and the backend: the first request of each of many
// configs, and its second request.
Measurement MeasureFirstRequest() {
  constexpr int kConfigs = 200;
  kernels::TableCache cache(int64_t{64} << 20);
  Workload workload(1, DType::kBFloat16, Pairing::kHalf);
  const auto backend = kernels::CreateBackend("cpu", {.threads = Threads()});
  ROPE_CHECK(backend.ok());
  std::vector<kernels::Frequencies> configs;
  configs.reserve(kConfigs + 1);
  for (int i = 0; i < kConfigs + 1; ++i)
    configs.push_back(MakeFrequencies(10000 + i, kHeadDim / 2));
  const auto request = [&](const kernels::Frequencies& frequencies) {
    kernels::TokenRows rows;
    const int64_t position = 1'000'000;
    ROPE_CHECK(cache.AppendRows(frequencies, {&position, 1}, rows).ok());
    kernels::RotateJob job = workload.job(false);
    job.rows = rows.rows;
    ROPE_CHECK((*backend)->Rotate({&job, 1}).ok());
  };
  size_t cold = 0;
  size_t warm = 0;
  const std::vector<double> seconds = MedianSeconds(
      {[&] { request(configs[cold++]); }, [&] { request(configs[warm++]); }}, kConfigs);
  ROPE_CHECK(cache.statistics().builds == kConfigs + 1);
  return {.value = (seconds[0] - seconds[1]) * 1e3,
          .unit = "ms",
          .yardstick =
              absl::StrFormat("cold %.1f us, warm %.1f us", seconds[0] * 1e6, seconds[1] * 1e6)};
}

Measurement MeasureMemoryOfConfigs() {
  constexpr int64_t kBudgetBytes = int64_t{64} << 20;
  kernels::TableCache cache(kBudgetBytes);
  std::mt19937_64 random(7);
  std::uniform_int_distribution<int64_t> position(0, 10'000'000);
  int64_t bytes_max = 0;
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 1000; ++i) {
      const kernels::Frequencies frequencies = MakeFrequencies(10000 + i, kHeadDim / 2);
      kernels::TokenRows rows;
      const int64_t positions[] = {position(random), position(random)};
      ROPE_CHECK(cache.AppendRows(frequencies, positions, rows).ok());
      bytes_max = std::max(bytes_max, cache.statistics().bytes);
    }
  }
  return {.value = static_cast<double>(bytes_max) / (1 << 20),
          .unit = "MiB",
          .yardstick = absl::StrFormat("budget %d MiB, %d pages evicted", kBudgetBytes >> 20,
                                       cache.statistics().evictions),
          .ratio = static_cast<double>(bytes_max) / static_cast<double>(kBudgetBytes)};
}

}  // namespace

std::vector<Row> KernelRows() {
  std::vector<Row> rows = {
      {"kernel/rotate_bf16_new_output", "",
       [] { return MeasureRotate(DType::kBFloat16, Pairing::kHalf, false); }},
      {"kernel/rotate_bf16_in_place", "",
       [] { return MeasureRotate(DType::kBFloat16, Pairing::kHalf, true); }},
      {"kernel/rotate_bf16_in_cache", "", &MeasureInCache},
      {"kernel/channel_order_4096", "", [] { return MeasureChannelOrder(4096); }},
      {"kernel/channel_order_64", "", [] { return MeasureChannelOrder(64); }},
      {"table/page_build", "", &MeasurePageBuild},
      {"table/first_request_at_1000000", "<= 1", &MeasureFirstRequest},
      {"table/memory_of_1000_configs", "<= 1.1", &MeasureMemoryOfConfigs},
  };
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
      rows.push_back({absl::StrFormat("kernel/rotate_%s_%s", Name(dtype), Name(pairing)), "",
                      [=] { return MeasureRotate(dtype, pairing, false); }});
    }
  }
  return rows;
}

}  // namespace rope::bench
