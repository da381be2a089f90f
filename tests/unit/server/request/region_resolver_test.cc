#include "server/request/region_resolver.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "tests/support/matchers.h"
#include "tests/support/shared_memory.h"

namespace rope::server {
namespace {

using ::rope::testing::SharedMemory;

constexpr int64_t kBytes = 64;

// One fragment that may be overwritten.
class Overwritten final : public ReceivedBytes {
 public:
  char* Overwritable(std::string_view part) override {
    return bytes_.data() + (part.data() - bytes_.data());
  }
  std::string_view bytes() const { return bytes_; }

 private:
  std::string bytes_ = std::string(kBytes, 'x');
};

// A packed tensor of 4 tokens of 4 floats that came in the message.
class DestinationTest : public ::testing::Test {
 protected:
  DestinationTest() {
    tensor_.layout = *ParseLayout("SD", {4, 4}, 4, "t");
    tensor_.input = {.fragments = {received_.bytes().substr(0, 10), received_.bytes().substr(10)},
                     .bytes = kBytes};
  }

  Plan PlanOf(const TensorPlan& tensor, int64_t overwrite_bytes_min = kBytes) {
    Plan plan;
    plan.tensors = {tensor};
    SetDestinations(received_, overwrite_bytes_min, plan);
    return plan;
  }
  bool TakesBuffer(const TensorPlan& tensor, int64_t overwrite_bytes_min) {
    return PlanOf(tensor, overwrite_bytes_min).tensors[0].TakesBuffer();
  }

  RegionPart PartAt(uint64_t offset) const {
    return {.region = region_, .id = 1, .offset = offset, .bytes = kBytes};
  }

  Overwritten received_;
  TensorPlan tensor_;
  const SharedMemory memfd_ = SharedMemory::Memfd(4096);
  const std::shared_ptr<const Region> region_ = Region::MapMemfd(memfd_.Dup(), 4096).value();
};

TEST_F(DestinationTest, ResultThatFitsTheReceivedBytesOverwritesThem) {
  const Plan plan = PlanOf(tensor_);
  EXPECT_TRUE(plan.tensors[0].IsInReply());
  EXPECT_THAT(plan.tensors[0].overwritten,
              ElementsAre(received_.bytes().data(), received_.bytes().data() + 10));
}

TEST_F(DestinationTest, BytesThatOthersMayReadStay) {
  Plan plan;
  plan.tensors = {tensor_};
  ReceivedBytes shared;
  SetDestinations(shared, 1, plan);
  EXPECT_TRUE(plan.tensors[0].TakesBuffer());
}

TEST_F(DestinationTest, ResultThatDoesNotFitTheReceivedBytesGetsMemoryOfItsOwn) {
  TensorPlan narrower = tensor_;
  narrower.output_dtype = kernels::DType::kFloat8E4M3;
  TensorPlan strided = tensor_;
  strided.strides = StridesInOrder("SD", tensor_.layout, "t").value();
  TensorPlan moved = tensor_;
  moved.output_strides = strided.strides;
  TensorPlan numbers = tensor_;
  numbers.typed.resize(kBytes);
  TensorPlan from_region = tensor_;
  from_region.source = PartAt(0);
  for (const TensorPlan& tensor : {narrower, strided, moved, numbers, from_region}) {
    EXPECT_TRUE(TakesBuffer(tensor, 1));
  }
}

}  // namespace
}  // namespace rope::server
