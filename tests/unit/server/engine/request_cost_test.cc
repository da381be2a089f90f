#include "server/engine/request_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <utility>

#include "kernels/tables/table_cache.h"
#include "server/limits.h"
#include "tests/support/received_request.h"

namespace rope::server {
namespace {

using ::rope::testing::AddFloatTensor;
using ::rope::testing::ReceivedRequest;
using ::rope::testing::SetShape;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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

// A plan with these positions, whose rows come from the table cache.
Plan PlanAt(std::vector<int64_t> positions, bool cacheable = true) {
  Plan plan;
  plan.tokens = static_cast<int64_t>(positions.size());
  auto frequencies = std::make_shared<kernels::Frequencies>();
  frequencies->cacheable = cacheable;
  plan.row_sets.push_back({{}, {{0, plan.tokens, frequencies, nullptr}}});
  plan.positions[0] = std::move(positions);
  return plan;
}

// The tokens at which slices of the plan end.
std::vector<int64_t> EndsOf(const Plan& plan) {
  const auto& ends = plan.building.slice_ends;
  return ends == nullptr ? std::vector<int64_t>() : *ends;
}

std::vector<int64_t> Scattered(int64_t count) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < count; ++i) positions.push_back(i * 10 * kernels::kPageRows);
  return positions;
}

TEST(BoundBuildingTest, PrefillFitsOneSlice) {
  std::vector<int64_t> positions(4096);
  std::iota(positions.begin(), positions.end(), 1000);
  Plan plan = PlanAt(std::move(positions));
  BoundBuilding(plan);
  EXPECT_THAT(EndsOf(plan), IsEmpty());
}

TEST(BoundBuildingTest, ScatteredPositionsEndSlicesAfterSoManyPages) {
  Plan plan = PlanAt(Scattered(150));
  BoundBuilding(plan);
  EXPECT_THAT(EndsOf(plan), ElementsAre(64, 128));
  EXPECT_EQ(plan.building.rows, 150 * kernels::kPageRows);
}

TEST(BoundBuildingTest, ScatteredPositionsBehindARunAreBoundToo) {
  std::vector<int64_t> positions(60 * kernels::kPageRows);
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<int64_t> scattered = Scattered(200);
  positions.insert(positions.end(), scattered.begin(), scattered.end());
  Plan plan = PlanAt(std::move(positions));
  BoundBuilding(plan);
  EXPECT_THAT(EndsOf(plan), SizeIs(3));
}

TEST(BoundBuildingTest, RowsOfOneRequestCountOneByOne) {
  Plan plan = PlanAt(std::vector<int64_t>(2 * limits::kSliceRowsMax + 1, 5), /*cacheable=*/false);
  BoundBuilding(plan);
  EXPECT_THAT(EndsOf(plan), ElementsAre(limits::kSliceRowsMax, 2 * limits::kSliceRowsMax));
}

TEST(BoundBuildingTest, NoTokensBuildNothing) {
  Plan plan = PlanAt({});
  BoundBuilding(plan);
  EXPECT_THAT(EndsOf(plan), IsEmpty());
  EXPECT_EQ(plan.building.rows, 0);
}

}  // namespace
}  // namespace rope::server
