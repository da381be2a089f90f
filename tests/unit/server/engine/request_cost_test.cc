#include "server/engine/request_cost.h"

#include <gtest/gtest.h>

#include <utility>

#include "server/limits.h"
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

int64_t LengthsOf(const v1::RotateRequest& request) {
  return LengthBytes(*ReceivedRequest(request).MakeRequest());
}

TEST(LengthBytesTest, CountSequencesAndLayers) {
  v1::RotateRequest one;
  AddFloatTensor(one, v1::ROLE_Q, "SHD", {10, 2, 8});
  EXPECT_EQ(LengthsOf(one), 8 * 32);
  v1::RotateRequest batch;
  AddFloatTensor(batch, v1::ROLE_Q, "BSHD", {5, 10, 2, 8});
  EXPECT_EQ(LengthsOf(batch), 5 * 8 * 32);
  v1::RotateRequest packed;
  AddFloatTensor(packed, v1::ROLE_Q, "LTHD", {3, 10, 2, 8});
  *packed.mutable_positions()->mutable_cu_seqlens() = InRegion({7});
  EXPECT_EQ(LengthsOf(packed), 14 * 8 * 32);  // of 8 bytes, or twice as many of 4
  packed.mutable_rope()->set_first_layer(0);
  EXPECT_EQ(LengthsOf(packed), 3 * 14 * 8 * 32);
}

TEST(RegionTensorBytesTest, CountFromTheFirstElementToTheLast) {
  const auto of = [](const v1::RotateRequest& request) {
    return RegionTensorBytes(*ReceivedRequest(request).MakeRequest());
  };
  v1::RotateRequest request;
  v1::Tensor& tensor = AddFloatTensor(request, v1::ROLE_Q, "SHD", {10, 2, 8});
  EXPECT_EQ(of(request), 0);
  tensor.mutable_array()->clear_raw();
  tensor.mutable_array()->mutable_region()->set_region_id(1);
  EXPECT_EQ(of(request), 10 * 2 * 8 * 4);
  for (const int64_t stride : {1000, 8, 1}) tensor.mutable_array()->add_strides(stride);
  EXPECT_GE(of(request), 9 * 1000 * 4);
}

}  // namespace
}  // namespace rope::server
