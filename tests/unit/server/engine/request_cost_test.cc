#include "server/engine/request_cost.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "server/engine/limits.h"
#include "tests/support/received_request.h"

namespace rope::server {
namespace {

using ::rope::testing::AddFloatTensor;
using ::rope::testing::ReceivedRequest;
using ::rope::testing::SetShape;

v1::Array InRegion(const std::vector<int64_t>& shape) {
  v1::Array array;
  array.set_dtype(v1::DTYPE_INT64);
  SetShape(array, shape);
  array.mutable_region()->set_region_id(1);
  return array;
}

int64_t PlanningOf(const v1::RotateRequest& request) {
  return PlanningBytes(*ReceivedRequest(request).MakeRequest());
}

TEST(PlanningBytesTest, PositionsOfTheTokensCount) {
  v1::RotateRequest request;
  AddFloatTensor(request, v1::ROLE_Q, "SHD", {10, 2, 8});
  EXPECT_EQ(PlanningOf(request), 10 * 8);
}

TEST(PlanningBytesTest, ArraysInRegionsCountAsWhatTheyClaim) {
  v1::RotateRequest request;
  AddFloatTensor(request, v1::ROLE_Q, "SHD", {1, 2, 8});
  *request.mutable_positions()->mutable_position_ids() = InRegion({int64_t{1} << 25});
  EXPECT_GE(PlanningOf(request), int64_t{1} << 28);
}

TEST(PlanningBytesTest, ClaimsPastAllBoundsCountAsMuchAndNoLess) {
  v1::RotateRequest request;
  AddFloatTensor(request, v1::ROLE_Q, "SHD", {0, 2, 8});
  SetShape(*request.mutable_tensors(0)->mutable_array(), {int64_t{1} << 62, 2, 8});
  *request.mutable_rows()->mutable_angles() = InRegion({int64_t{1} << 62, int64_t{1} << 62});
  *request.mutable_rows()->mutable_cos() = InRegion({int64_t{1} << 62, int64_t{1} << 62});
  EXPECT_GT(PlanningOf(request), int64_t{1} << 50);
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

TEST(PlanningBytesTest, StridedTensorInSeveralFragmentsCounts) {
  v1::RotateRequest request;
  v1::Tensor& tensor = AddFloatTensor(request, v1::ROLE_Q, "SHD", {1, 2, 8});
  constexpr int64_t kRawBytes = 2 * 8 * 4;
  EXPECT_EQ(PlanningBytes(*ReceivedRequest(request, 16).MakeRequest()), 8);
  for (const int64_t stride : {16, 8, 1}) tensor.mutable_array()->add_strides(stride);
  EXPECT_EQ(PlanningOf(request), 8);
  EXPECT_EQ(PlanningBytes(*ReceivedRequest(request, 16).MakeRequest()), 8 + kRawBytes);
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
