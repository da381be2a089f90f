#include "server/control/warm_up.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <optional>
#include <vector>

#include "server/error.h"
#include "server/request/limits.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int64_t kBudget = 1 << 20;
// 32 frequencies: cos and sin of 64 positions.
constexpr int64_t kPageBytes = 64 * 2 * 32 * 4;

v1::WarmUpRequest MakeRequest(int64_t begin, int64_t end) {
  v1::WarmUpRequest request;
  request.mutable_rope()->mutable_config()->set_head_dim(64);
  request.set_begin(begin);
  request.set_end(end);
  return request;
}

class WarmUpTest : public ::testing::Test {
 protected:
  absl::StatusOr<WarmUpPlan> Plan(const v1::WarmUpRequest& request) {
    return PlanWarmUp(request, *registry_, kBudget);
  }
  void ExpectRefused(const v1::WarmUpRequest& request, absl::StatusCode code,
                     const std::string& text) {
    EXPECT_THAT(Plan(request), Fails(code, text));
  }

  static absl::StatusOr<v1::WarmUpResponse> Run(const WarmUpPlan& plan,
                                                kernels::TableCache& tables) {
    v1::WarmUpResponse answer;
    const auto step = WarmUpSteps(plan, tables);
    absl::StatusOr<bool> finished = false;
    while (finished.ok() && !*finished) finished = step(answer);
    if (!finished.ok()) return finished.status();
    return answer;
  }

  std::unique_ptr<ModelRegistry> registry_ = ModelRegistry::Create({}).value();
};

TEST_F(WarmUpTest, PlanHoldsEveryPageThatTheRangeTouches) {
  for (const auto& [begin, end, first, pages] : std::vector<std::array<int64_t, 4>>{
           {0, 1, 0, 1},
           {0, 64, 0, 1},
           {0, 65, 0, 2},
           {63, 65, 0, 2},
           {64, 65, 1, 1},
           {1000000, 1000100, 15625, 2},
           {limits::kPositionMax, limits::kPositionMax + 1, limits::kPositionMax / 64, 1}}) {
    ASSERT_OK(plan, Plan(MakeRequest(begin, end)));
    EXPECT_EQ(plan->first_page, first) << begin;
    EXPECT_EQ(plan->pages, pages) << begin;
    EXPECT_EQ(plan->bytes, pages * kPageBytes) << begin;
  }
}

TEST_F(WarmUpTest, PrecisionHfBuildsTheRowsOfADType) {
  v1::WarmUpRequest request = MakeRequest(0, 1);
  request.mutable_rope()->set_precision(v1::PRECISION_HF);
  EXPECT_EQ(Plan(request)->frequencies->eager, kernels::DType::kFloat32);
  request.set_dtype(v1::DTYPE_BF16);
  EXPECT_EQ(Plan(request)->frequencies->eager, kernels::DType::kBFloat16);
  request.mutable_rope()->clear_precision();
  ExpectRefused(request, kInvalid, "dtype: got DTYPE_BF16, want it unset");
}

TEST_F(WarmUpTest, BadRangesAreRefused) {
  ExpectRefused(MakeRequest(-1, 5), kInvalid, "begin: got -1");
  ExpectRefused(MakeRequest(5, 5), kInvalid, "end: got 5, want more than begin, 5");
  ExpectRefused(MakeRequest(5, 4), kInvalid, "end: got 4, want more than begin, 5");
  ExpectRefused(MakeRequest(limits::kPositionMax + 1, limits::kPositionMax + 2),
                absl::StatusCode::kOutOfRange, "begin: got 1073741825");
  ExpectRefused(MakeRequest(limits::kPositionMax, limits::kPositionMax + 2),
                absl::StatusCode::kOutOfRange, "end: got 1073741826, want at most 1073741825");
  ExpectRefused(MakeRequest(0, std::numeric_limits<int64_t>::max()), absl::StatusCode::kOutOfRange,
                "end: got 9223372036854775807");
}

TEST_F(WarmUpTest, BadConfigsAreRefused) {
  v1::WarmUpRequest request = MakeRequest(0, 1);
  request.mutable_rope()->clear_config();
  ExpectRefused(request, kInvalid, "rope: got nothing");
  request.mutable_rope()->set_model("nobody");
  ExpectRefused(request, absl::StatusCode::kNotFound, "rope.model: got \"nobody\"");
  request = MakeRequest(0, 1);
  request.mutable_rope()->mutable_config()->clear_head_dim();
  ExpectRefused(request, kInvalid, "rope.config.head_dim: got nothing");
}

TEST_F(WarmUpTest, ConfigThatFollowsSeqLenIsRefusedWithTheReason) {
  v1::WarmUpRequest request = MakeRequest(0, 1);
  v1::RopeConfig& config = *request.mutable_rope()->mutable_config();
  config.set_rope_type("dynamic");
  config.set_factor(2);
  config.set_max_position_embeddings(64);
  ExpectRefused(request, absl::StatusCode::kFailedPrecondition,
                "rope: got rope_type dynamic, whose frequencies follow the length");
}

TEST_F(WarmUpTest, LayerWithoutRotationNeedsNoPages) {
  v1::WarmUpRequest request = MakeRequest(0, 1000);
  request.mutable_rope()->clear_config();
  request.mutable_rope()->set_config_json(
      R"({"head_dim": 64, "num_hidden_layers": 2, "no_rope_layers": [1, 0]})");
  request.mutable_rope()->set_layer(1);
  ASSERT_OK(plan, Plan(request));
  EXPECT_EQ(plan->pages, 0);
  kernels::TableCache tables(kBudget);
  EXPECT_EQ(Run(*plan, tables)->pages(), 0);
}

TEST_F(WarmUpTest, RangeThatDoesNotFitSaysHowMuchDoesAndThatMuchStays) {
  const auto refused = Plan(MakeRequest(0, limits::kPositionMax));
  ASSERT_THAT(refused, IsExhausted("end: got 16777216 pages of 64 positions, want at most "
                                   "55, the capacity of the table cache"));
  EXPECT_EQ(proto::PartsOf(refused.status()).retry_delay_ms, 0);
  ExpectRefused(MakeRequest(0, 55 * 64 + 1), absl::StatusCode::kResourceExhausted,
                "end: got 56 pages");
  ASSERT_OK(plan, Plan(MakeRequest(0, 55 * 64)));
  // A cache full of other pages keeps all of them.
  kernels::TableCache tables(kBudget);
  const auto other = Plan(MakeRequest(100000, 100000 + 55 * 64 - 64));
  for (const auto& next : {other, plan}) {
    ASSERT_THAT(next, IsOk());
    ASSERT_OK(response, Run(*next, tables));
    EXPECT_EQ(response->pages(), next->pages);
    EXPECT_EQ(response->bytes(), next->pages * kPageBytes);
  }
  EXPECT_GT(tables.statistics().evictions, 0);
  const int64_t misses = tables.statistics().misses;
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < 55 * 64; ++i) positions.push_back(i);
  kernels::TokenRows rows;
  ASSERT_THAT(tables.AppendRows(*plan->frequencies, positions, rows), IsOk());
  EXPECT_EQ(tables.statistics().misses, misses);
}

TEST_F(WarmUpTest, StepBuildsSixteenPages) {
  kernels::TableCache tables(kBudget);
  ASSERT_OK(plan, Plan(MakeRequest(0, 40 * 64)));
  v1::WarmUpResponse answer;
  const auto step = WarmUpSteps(*plan, tables);
  for (const int64_t builds : {16, 32, 40}) {
    EXPECT_EQ(step(answer).value(), builds == 40);
    EXPECT_EQ(tables.statistics().builds, builds);
  }
}

TEST_F(WarmUpTest, ErrorOfTheCacheIsTheAnswer) {
  kernels::TableCache tables(
      kBudget, [](const kernels::Frequencies&, int64_t) { return absl::InternalError("no page"); });
  ASSERT_OK(plan, Plan(MakeRequest(0, 1)));
  EXPECT_THAT(Run(*plan, tables), IsInternal("no page"));
}

}  // namespace
}  // namespace rope::server
