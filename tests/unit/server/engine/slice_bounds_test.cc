#include "server/engine/slice_bounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <utility>
#include <vector>

#include "kernels/tables/table_cache.h"
#include "server/limits.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::IsOk;
using ::rope::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kColumns = 64;  // of a head of 128 channels
constexpr int64_t kPageBytes = kernels::kPageRows * 2 * kColumns * 4;
constexpr int64_t kSlicePages = limits::kSliceBuildBytesMax / kPageBytes;

std::shared_ptr<kernels::Frequencies> FrequenciesOf(int64_t columns) {
  auto frequencies = std::make_shared<kernels::Frequencies>();
  frequencies->inv_freq.assign(static_cast<size_t>(columns), 1);
  return frequencies;
}

// A plan with these positions.
Plan PlanAt(std::vector<int64_t> positions,
            std::shared_ptr<const kernels::Frequencies> frequencies = FrequenciesOf(kColumns)) {
  Plan plan;
  plan.tokens = static_cast<int64_t>(positions.size());
  plan.row_sets.push_back({{}, {{0, plan.tokens, std::move(frequencies), nullptr}}});
  plan.positions[0] = std::move(positions);
  return plan;
}

// The same with a position for each of three axes.
Plan MropePlanAt(std::vector<int64_t> t, std::vector<int64_t> h, std::vector<int64_t> w) {
  Plan plan = PlanAt(std::move(t));
  plan.positions[1] = std::move(h);
  plan.positions[2] = std::move(w);
  plan.mrope = std::make_shared<const kernels::Mrope>();
  return plan;
}

// The tokens at which slices of the plan end.
std::vector<int64_t> EndsOf(const Plan& plan) {
  const auto& ends = plan.building.slice_ends;
  return ends == nullptr ? std::vector<int64_t>() : *ends;
}

std::vector<int64_t> Scattered(int64_t count, int64_t first = 0) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < count; ++i) positions.push_back(first + i * 10 * kernels::kPageRows);
  return positions;
}

std::vector<int64_t> From(int64_t first, int64_t count) {
  std::vector<int64_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

TEST(BoundBuildingTest, PrefillFitsOneSlice) {
  Plan plan = PlanAt(From(1000, 4096));
  BoundBuilding(plan);
  EXPECT_THAT(EndsOf(plan), IsEmpty());
}

TEST(BoundBuildingTest, ScatteredPositionsEndSlicesAfterSoManyPages) {
  Plan plan = PlanAt(Scattered(150));
  BoundBuilding(plan);
  EXPECT_EQ(kSlicePages, 64);
  EXPECT_THAT(EndsOf(plan), ElementsAre(64, 128));
  EXPECT_EQ(plan.building.bytes, 150 * kPageBytes);
  EXPECT_EQ(plan.building.slice_bytes, 64 * kPageBytes);
}

TEST(BoundBuildingTest, ScatteredPositionsBehindARunAreBoundToo) {
  std::vector<int64_t> positions = From(0, 60 * kernels::kPageRows);
  const std::vector<int64_t> scattered = Scattered(200, 1 << 20);
  positions.insert(positions.end(), scattered.begin(), scattered.end());
  Plan plan = PlanAt(std::move(positions));
  BoundBuilding(plan);
  EXPECT_THAT(EndsOf(plan), SizeIs(3));
}

TEST(BoundBuildingTest, PageOfAWideHeadIsASlice) {
  constexpr int64_t kWide = 32768;
  Plan plan = PlanAt(Scattered(3), FrequenciesOf(kWide));
  BoundBuilding(plan);
  EXPECT_THAT(EndsOf(plan), ElementsAre(1, 2));
  EXPECT_EQ(plan.building.slice_bytes, kernels::kPageRows * 2 * kWide * 4);
  plan = PlanAt(From(0, 2 * kernels::kPageRows), FrequenciesOf(kWide));
  BoundBuilding(plan);
  EXPECT_THAT(EndsOf(plan), ElementsAre(kernels::kPageRows));
}

TEST(BoundBuildingTest, NarrowHeadsCountAsEightColumns) {
  Plan plan = PlanAt(Scattered(1000), FrequenciesOf(1));
  BoundBuilding(plan);
  EXPECT_THAT(EndsOf(plan), ElementsAre(512));
}

TEST(BoundBuildingTest, EachAxisOfMropeBuildsItsPages) {
  Plan plan = MropePlanAt(Scattered(100), Scattered(100, 1 << 20), Scattered(100, 1 << 21));
  BoundBuilding(plan);
  EXPECT_THAT(EndsOf(plan), ElementsAre(21, 42, 63, 84));
  EXPECT_GE(plan.building.bytes, 300 * kPageBytes);
}

TEST(BoundBuildingTest, TextOfMropeBuildsThePagesOfOneAxis) {
  const std::vector<int64_t> text = From(1000, 4096);
  Plan plan = MropePlanAt(text, text, text);
  BoundBuilding(plan);
  Plan plain = PlanAt(text);
  BoundBuilding(plain);
  EXPECT_EQ(plan.building.bytes, plain.building.bytes);
}

TEST(BoundBuildingTest, ImageOfMropeCountsItsRowsAndFewPages) {
  constexpr int64_t kWidth = 60;  // its columns begin on one page and end on the next
  std::vector<int64_t> t;
  std::vector<int64_t> h;
  std::vector<int64_t> w;
  for (int64_t i = 0; i < kWidth * kWidth; ++i) {
    t.push_back(1030);
    h.push_back(1030 + i / kWidth);
    w.push_back(1030 + i % kWidth);
  }
  Plan plan = MropePlanAt(std::move(t), std::move(h), std::move(w));
  BoundBuilding(plan);
  EXPECT_THAT(EndsOf(plan), IsEmpty());
  EXPECT_LE(plan.building.bytes,
            kWidth * kWidth * kPageBytes / kernels::kPageRows + 2 * kPageBytes);
}

TEST(BoundBuildingTest, RowSetsAndPrecisionHfCountAsOftenAsTheyBuild) {
  Plan plan = PlanAt(Scattered(150));
  plan.row_sets.push_back(plan.row_sets.front());
  BoundBuilding(plan);
  EXPECT_EQ(plan.building.bytes, 2 * 150 * kPageBytes);
  auto eager = FrequenciesOf(kColumns);
  eager->eager = kernels::DType::kBFloat16;
  plan = PlanAt(Scattered(150), eager);
  BoundBuilding(plan);
  EXPECT_EQ(plan.building.bytes, limits::kEagerRowFactor * 150 * kPageBytes);
}

TEST(BoundBuildingTest, RunsOfOtherFrequenciesBuildOtherPages) {
  Plan plan = PlanAt(std::vector<int64_t>(100, 7));
  auto& runs = plan.row_sets.front().runs;
  runs.clear();
  for (int64_t i = 0; i < 100; ++i) runs.push_back({i, i + 1, FrequenciesOf(kColumns), nullptr});
  BoundBuilding(plan);
  EXPECT_THAT(EndsOf(plan), SizeIs(1));
  EXPECT_GE(plan.building.bytes, 100 * kPageBytes);
}

TEST(BoundBuildingTest, RunsThatTakeTurnsShareTheirPages) {
  Plan plan = PlanAt(std::vector<int64_t>(100, 7));
  const auto local = FrequenciesOf(kColumns);
  const auto global = FrequenciesOf(kColumns);
  auto& runs = plan.row_sets.front().runs;
  runs.clear();
  for (int64_t i = 0; i < 100; ++i) runs.push_back({i, i + 1, i % 2 ? local : global, nullptr});
  BoundBuilding(plan);
  EXPECT_THAT(EndsOf(plan), IsEmpty());
}

TEST(BoundBuildingTest, RowsOfOneRequestCountAsTheyAreBuilt) {
  auto own = FrequenciesOf(kColumns);
  own->cacheable = false;
  Plan decode = PlanAt(Scattered(256), own);  // a row each
  BoundBuilding(decode);
  EXPECT_THAT(EndsOf(decode), IsEmpty());
  EXPECT_EQ(decode.building.bytes, limits::kSliceBuildBytesMax);
  Plan prefill = PlanAt(From(0, 4096), own);  // by page
  BoundBuilding(prefill);
  EXPECT_THAT(EndsOf(prefill), IsEmpty());
  EXPECT_EQ(prefill.building.bytes, 64 * kPageBytes);
}

TEST(BoundBuildingTest, RowsFromTwoEmbeddingsCountOneByOne) {
  Plan plan = PlanAt(std::vector<int64_t>(256, 5));
  plan.row_sets.front().runs.front().from = FrequenciesOf(kColumns);
  BoundBuilding(plan);
  EXPECT_THAT(EndsOf(plan), ElementsAre(128));
}

TEST(BoundBuildingTest, NoTokensBuildNothing) {
  Plan plan = PlanAt({});
  BoundBuilding(plan);
  EXPECT_THAT(EndsOf(plan), IsEmpty());
  EXPECT_EQ(plan.building.bytes, 0);
}

// A packed plan of bf16 with these lengths of B, H and S.
Plan Packed(int64_t b, int64_t h, int64_t s, bool heads_inside, int64_t head_dim = 2) {
  Plan plan;
  TensorPlan& tensor = plan.tensors.emplace_back();
  tensor.dtype = tensor.output_dtype = kernels::DType::kBFloat16;
  tensor.layout.token_axes = {{'B', b}, {'S', s}};
  tensor.layout.pre = heads_inside ? b * s : b;
  tensor.layout.post = heads_inside ? 1 : s;
  tensor.layout.heads = h;
  tensor.layout.head_dim = head_dim;
  tensor.heads = {{0, h, true, false}};
  plan.tokens = b * s;
  plan.bytes_per_token = tensor.token_bytes();
  return plan;
}

TEST(BoundJobsTest, TokensInsideHeadsBecomeAJobForEachHead) {
  Plan plan = Packed(1000, 1024, 2, /*heads_inside=*/false);
  ASSERT_THAT(BoundJobs(plan), IsOk());
  EXPECT_DOUBLE_EQ(plan.jobs.per_token, 512);
  EXPECT_EQ(plan.jobs.fixed, 2 * 1024);
  plan = Packed(1000, 1024, 2, /*heads_inside=*/true);
  ASSERT_THAT(BoundJobs(plan), IsOk());
  EXPECT_LT(plan.jobs.per_token, 1e-6);
}

TEST(BoundJobsTest, StridedOutputsBecomeAJobForEachRun) {
  Plan plan = Packed(1000, 8, 4, /*heads_inside=*/true);
  plan.tensors[0].output_strides = LayoutStrides();
  ASSERT_THAT(BoundJobs(plan), IsOk());
  EXPECT_DOUBLE_EQ(plan.jobs.per_token, 0.25);
}

TEST(BoundJobsTest, ManySeparateWritesToAnObjectAreRefused) {
  constexpr int64_t kHeads = 4;
  Plan plan = Packed(limits::kObjectWritesMax / 2, kHeads, 2, /*heads_inside=*/true);
  TensorPlan& tensor = plan.tensors[0];
  tensor.store_strides = LayoutStrides{.token_axes = {1000, 1000}, .head = tensor.layout.head_dim};
  EXPECT_THAT(BoundJobs(plan), IsOk()) << "the heads of a token are one write";
  tensor.store_strides->head += 8;
  EXPECT_THAT(BoundJobs(plan), StatusIs(absl::StatusCode::kResourceExhausted,
                                        HasSubstr("output.strides: got 32768 separate writes")));
}

TEST(BoundJobsTest, ManyNumbersInTheReplyAreRefused) {
  Plan plan = Packed(limits::kReplyNumbersMax / 256, 2, 1, /*heads_inside=*/true, 256);
  EXPECT_THAT(BoundJobs(plan), IsOk());
  plan.tensors[0].numbers = true;
  EXPECT_THAT(BoundJobs(plan), StatusIs(absl::StatusCode::kResourceExhausted,
                                        HasSubstr("tensors: got 524288 numbers in the reply")));
  plan.tensors[0].destination = Destination::kRegion;
  EXPECT_THAT(BoundJobs(plan), IsOk());
}

TEST(BoundJobsTest, TokenOfMoreJobsThanASliceIsRefused) {
  Plan plan = Packed(1, limits::kJobsMax + 1, 2, /*heads_inside=*/false);
  EXPECT_THAT(BoundJobs(plan),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("tensors: got 65537 separate heads and head_ranges")));
  plan = Packed(1, limits::kJobsMax, 2, /*heads_inside=*/false);
  EXPECT_THAT(BoundJobs(plan), IsOk());
}

TEST(BoundJobsTest, LargeTokenIsRefusedAndASmallerOneIfItIsGathered) {
  constexpr int64_t kHeads = limits::kTokenBytesMax / 512;
  Plan plan = Packed(1, kHeads + 1, 1, /*heads_inside=*/true, 256);
  EXPECT_THAT(BoundJobs(plan),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("bytes for each token")));
  plan = Packed(1, kHeads, 1, /*heads_inside=*/true, 256);
  EXPECT_THAT(BoundJobs(plan), IsOk());
  plan.tensors[0].strides = LayoutStrides{.token_axes = {0, 0}, .channel = 2, .extent = 512};
  EXPECT_THAT(BoundJobs(plan), StatusIs(absl::StatusCode::kResourceExhausted,
                                        HasSubstr("tensors[0].array.strides: got a channel")));
  plan = Packed(0, kHeads * 1000, 1, /*heads_inside=*/true, 256);
  EXPECT_THAT(BoundJobs(plan), IsOk()) << "no tokens";
}

}  // namespace
}  // namespace rope::server
