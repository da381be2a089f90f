// Rows about K that moves in place by the engine's own table, in this process: bf16, 8 heads of 128
// channels, a table in bf16.
//   move/pages             32 layers of 256 tokens in pages of 16, against the same contiguous
//   move/contiguous        the same contiguous, against a read-modify-write of its bytes
//   move/page_prepared_c   one page of 16 tokens by a prepared call
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/backend/worker_pool.h"
#include "kernels/check.h"
#include "kernels/dtype/element.h"
#include "rope/client.h"
#include "rope/embedded.h"
#include "tests/bench/measure.h"
#include "tests/bench/workload.h"

namespace rope::bench {
namespace {

constexpr int64_t kLayers = 32;
constexpr int64_t kTokens = 256;
constexpr int64_t kKeyHeads = 8;
constexpr int64_t kRow = kKeyHeads * kHeadDim;  // elements of a token
constexpr int64_t kPageTokens = 16;
constexpr int64_t kBytes = kLayers * kTokens * kRow * 2;
constexpr int64_t kTableRows = 4096;

std::vector<uint8_t> MakeTable() {
  constexpr int64_t kPairs = kHeadDim / 2;
  std::vector<uint8_t> table(kTableRows * kHeadDim * 2);
  for (int64_t row = 0; row < kTableRows; ++row) {
    for (int64_t pair = 0; pair < kPairs; ++pair) {
      const double angle =
          static_cast<double>(row) * std::pow(5e5, -static_cast<double>(pair) / kPairs);
      uint8_t* const cos = table.data() + (row * kHeadDim + pair) * 2;
      kernels::WriteElement(std::cos(angle), kernels::DType::kBFloat16, cos);
      kernels::WriteElement(std::sin(angle), kernels::DType::kBFloat16, cos + kPairs * 2);
    }
  }
  return table;
}

// A move of K by 1000 positions, without its tensor.
client::RotateRequest Move(const std::vector<uint8_t>& table) {
  client::RotateRequest request{.operation = client::Operation::kReposition};
  request.rope.pairing = client::Pairing::kHalf;
  request.reposition.emplace().by = {1000};
  request.rows.emplace().cos_sin = client::ArrayView{
      .dtype = client::DType::kBFloat16, .shape = {kTableRows, kHeadDim}, .data = table.data()};
  return request;
}

client::TensorView InPlace(uint8_t* memory, int64_t layers, int64_t tokens) {
  return {.role = client::Role::kK,
          .layout = "LTHD",
          .dtype = client::DType::kBFloat16,
          .shape = {layers, tokens, kKeyHeads, kHeadDim},
          .data = memory,
          .output = memory};
}

// Pools of layers that follow each other, of which the tokens fill `used` of `pages` pages.
client::PagedTokens Pages(int64_t layers, int64_t pages, int64_t used) {
  client::PagedTokens paged = {.block_size = kPageTokens,
                               .page_stride = kPageTokens * kRow,
                               .token_stride = kRow,
                               .head_stride = kHeadDim,
                               .layer_stride = pages * kPageTokens * kRow,
                               .pool_elements = layers * pages * kPageTokens * kRow};
  paged.pages.resize(static_cast<size_t>(pages));
  std::iota(paged.pages.begin(), paged.pages.end(), 0);
  std::shuffle(paged.pages.begin(), paged.pages.end(), std::mt19937(7));
  paged.pages.resize(static_cast<size_t>(used));
  return paged;
}

// Changes every byte where it is, on all threads.
void ReadModifyWrite(kernels::WorkerPool& pool, uint8_t* memory) {
  constexpr int64_t kPieceWords = 32 << 10;  // 256 KiB
  pool.ParallelFor(kBytes / (kPieceWords * 8), [memory](int64_t piece) {
    auto* const words = reinterpret_cast<uint64_t*>(memory) + piece * kPieceWords;
    for (int64_t i = 0; i < kPieceWords; ++i) words[i] += 0x0101010101010101;
  });
}

// The three ways with 16 MiB, in turns.
struct Ways {
  double pages;
  double contiguous;
  double read_modify_write;
};

Ways MeasureWays() {
  constexpr int64_t kUsed = kTokens / kPageTokens;
  const std::vector<uint8_t> table = MakeTable();
  const client::Client client = embedded::Connect({.threads = Threads()}).value();
  const Memory pool = Allocate(2 * kBytes);
  client::RotateRequest paged = Move(table);
  paged.tensors = {InPlace(pool.get(), kLayers, kTokens)};
  paged.tensors[0].paged = Pages(kLayers, 2 * kUsed, kUsed);
  const Memory packed = Allocate(kBytes);
  client::RotateRequest contiguous = Move(table);
  contiguous.tensors = {InPlace(packed.get(), kLayers, kTokens)};
  const Memory other = Allocate(kBytes);
  kernels::WorkerPool workers(Threads());
  const std::vector<double> seconds =
      MedianSeconds({[&] { ROPE_CHECK(client.Rotate(paged).ok()); },
                     [&] { ROPE_CHECK(client.Rotate(contiguous).ok()); },
                     [&] { ReadModifyWrite(workers, other.get()); }},
                    101);
  return {seconds[0], seconds[1], seconds[2]};
}

// Both rows are of one run.
const Ways& MeasuredWays() {
  static const Ways ways = MeasureWays();
  return ways;
}

Measurement InPages() {
  const Ways& ways = MeasuredWays();
  return {
      .value = kBytes / ways.pages * 1e-9,
      .unit = "GB/s",
      .yardstick = absl::StrFormat("contiguous %s", GigabytesPerSecond(kBytes, ways.contiguous)),
      .ratio = ways.contiguous / ways.pages};
}

Measurement Contiguous() {
  const Ways& ways = MeasuredWays();
  return {.value = kBytes / ways.contiguous * 1e-9,
          .unit = "GB/s",
          .yardstick = absl::StrFormat("read-modify-write %s",
                                       GigabytesPerSecond(kBytes, ways.read_modify_write)),
          .ratio = ways.read_modify_write / ways.contiguous};
}

Measurement PagePrepared() {
  constexpr int kCalls = 100;
  const std::vector<uint8_t> table = MakeTable();
  const client::Client client = embedded::Connect({.threads = 1}).value();
  const client::PagedTokens pages = Pages(1, 64, 1);
  const Memory pool = Allocate(pages.pool_elements * 2);
  client::RotateRequest whole = Move(table);
  whole.tensors = {InPlace(pool.get(), 1, kPageTokens)};
  whole.tensors[0].paged = pages;
  client::RotateRequest call{.prepared = client.Prepare(whole).value(),
                             .reposition = whole.reposition,
                             .rows = whole.rows};
  call.tensors = {{.data = pool.get(),
                   .output = pool.get(),
                   .paged = client::PagedTokens{.pages = pages.pages}}};
  const std::vector<double> seconds = MedianSeconds({[&] {
                                                       for (int i = 0; i < kCalls; ++i)
                                                         ROPE_CHECK(client.Rotate(call).ok());
                                                     },
                                                     [&] {
                                                       for (int i = 0; i < kCalls; ++i)
                                                         ROPE_CHECK(client.Rotate(whole).ok());
                                                     }},
                                                    301);
  return {.value = seconds[0] / kCalls * 1e6,
          .unit = "us",
          .yardstick = absl::StrFormat("whole %.1f us", seconds[1] / kCalls * 1e6)};
}

}  // namespace

std::vector<Row> MoveRows() {
  return {
      {"move/pages", ">= 0.9", InPages},
      {"move/contiguous", ">= 0.9", Contiguous},
      {"move/page_prepared_c", "<= 4", PagePrepared},
  };
}

}  // namespace rope::bench
