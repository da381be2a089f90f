#include "server/engine/request_cost.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "server/engine/limits.h"

namespace rope::server {
namespace {

TEST(PlanningBytesTest, PositionsAndRowsOfTheTokensCount) {
  Plan plan;
  Layout& layout = plan.tensors.emplace_back().layout;
  layout.token_axes = {{'B', 10}, {'S', 0}};
  layout.head_dim = 8;
  v1::RotateRequest values;
  EXPECT_EQ(PlanningBytes(values, plan), 10 * 8);
  values.mutable_positions()->mutable_position_ids();
  EXPECT_EQ(PlanningBytes(values, plan), 2 * 10 * 8);
  values.mutable_reposition()->mutable_from()->mutable_position_ids();
  EXPECT_EQ(PlanningBytes(values, plan), 3 * 10 * 8);
  values.Clear();
  values.mutable_rows()->mutable_cos();
  EXPECT_EQ(PlanningBytes(values, plan), 10 * 8 + 2 * 10 * 4 * 4);
  values.mutable_rows()->mutable_angles();
  EXPECT_EQ(PlanningBytes(values, plan), 10 * 8 + 16 * 10 * 4 * 4);
}

TEST(RunningBytesTest, OnlyResultsThatTakeABufferCount) {
  for (const auto& [destination, bytes] :
       {std::pair(Destination::kReply, 64), std::pair(Destination::kReceivedBytes, 0),
        std::pair(Destination::kRegion, 0), std::pair(Destination::kRegionInPlace, 0),
        std::pair(Destination::kObject, 64), std::pair(Destination::kObjectInPlace, 64)}) {
    Plan plan;
    TensorPlan& tensor = plan.tensors.emplace_back();
    tensor.layout.pre = 4;
    tensor.layout.head_dim = 4;
    tensor.destination = destination;
    EXPECT_EQ(RunningBytes({}, plan), bytes) << static_cast<int>(destination);
  }
}

TEST(RunningBytesTest, SliceOfATensorThatIsGatheredCounts) {
  Plan plan;
  TensorPlan& tensor = plan.tensors.emplace_back();
  tensor.layout.pre = int64_t{1} << 20;
  tensor.layout.head_dim = 4;
  tensor.destination = Destination::kRegion;
  tensor.strides = LayoutStrides{.token_axes = {4}, .head = 4, .channel = 1, .extent = 4};
  EXPECT_EQ(RunningBytes({}, plan), 0);
  tensor.strides->channel = 2;
  EXPECT_EQ(RunningBytes({}, plan), limits::kSliceBytesMax);
  tensor.layout.pre = 10;
  EXPECT_EQ(RunningBytes({}, plan), 10 * 16);
}

TEST(PlannedBytesTest, RowsOfOneTokenCountIfTheyAreMoreThanTwoPages) {
  Plan plan;
  plan.tokens = 1000;
  auto frequencies = std::make_shared<kernels::Frequencies>();
  frequencies->inv_freq.assign(64, 1);
  plan.row_sets.push_back({{}, {{0, plan.tokens, frequencies, nullptr}}});
  EXPECT_EQ(PlannedBytes(plan), 0);
  plan.mrope = std::make_shared<const kernels::Mrope>();
  constexpr int64_t kPage = 64 * 2 * 64 * 4;
  EXPECT_EQ(PlannedBytes(plan), 3 * kPage);
  plan.row_sets.push_back(plan.row_sets.front());
  EXPECT_EQ(PlannedBytes(plan), 2 * 3 * kPage);
  frequencies->eager = kernels::DType::kBFloat16;
  EXPECT_EQ(PlannedBytes(plan), 4 * 2 * 3 * kPage) << "they take longer than their bytes say";
  plan.rotates = false;
  EXPECT_EQ(PlannedBytes(plan), 0);
}

}  // namespace
}  // namespace rope::server
