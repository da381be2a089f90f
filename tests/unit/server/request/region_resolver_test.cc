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
    SetDestinations(received_, {.min = overwrite_bytes_min}, plan);
    return plan;
  }
  Destination DestinationOf(const TensorPlan& tensor, int64_t overwrite_bytes_min = kBytes) {
    return PlanOf(tensor, overwrite_bytes_min).tensors[0].destination;
  }

  static RegionPart PartAt(std::shared_ptr<const Region> region, uint64_t offset) {
    return {.region = std::move(region), .id = 1, .offset = offset, .bytes = kBytes};
  }

  Overwritten received_;
  TensorPlan tensor_;
  const SharedMemory memfd_ = SharedMemory::Memfd(4096);
  const SharedMemory posix_ = SharedMemory::Posix(4096);
  const std::shared_ptr<const Region> mapped_ = Region::MapMemfd(memfd_.Dup(), 4096).value();
  const std::shared_ptr<const Region> object_ =
      Region::OpenPosix({posix_.name(), "/rope_test", geteuid()}, 0, 4096).value();
};

TEST_F(DestinationTest, ResultThatFitsTheReceivedBytesOverwritesThem) {
  const Plan plan = PlanOf(tensor_);
  EXPECT_EQ(plan.tensors[0].destination, Destination::kReceivedBytes);
  EXPECT_THAT(plan.tensors[0].overwritten,
              ElementsAre(received_.bytes().data(), received_.bytes().data() + 10));
}

TEST_F(DestinationTest, BytesThatOthersMayReadStay) {
  Plan plan;
  plan.tensors = {tensor_};
  ReceivedBytes shared;
  SetDestinations(shared, {.min = 1}, plan);
  EXPECT_EQ(plan.tensors[0].destination, Destination::kReply);
  EXPECT_TRUE(plan.tensors[0].overwritten.empty());
}

TEST_F(DestinationTest, SmallResultGetsMemoryOfItsOwn) {
  EXPECT_EQ(DestinationOf(tensor_, kBytes + 1), Destination::kReply);
}

TEST_F(DestinationTest, ResultsOfALargeRequestGetMemoryOfTheirOwn) {
  for (const int64_t end : {2 * kBytes, 2 * kBytes + 1}) {
    Plan plan;
    plan.tensors = {tensor_, tensor_};
    SetDestinations(received_, {.min = kBytes, .request_end = end}, plan);
    EXPECT_EQ(plan.tensors[0].destination,
              end > 2 * kBytes ? Destination::kReceivedBytes : Destination::kReply);
  }
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
  from_region.source = PartAt(mapped_, 0);
  for (const TensorPlan& tensor : {narrower, strided, moved, numbers, from_region}) {
    EXPECT_EQ(DestinationOf(tensor, 1), Destination::kReply);
  }
}

TEST_F(DestinationTest, RegionIsWrittenWhereItIsMappedAndCopiedToElsewhere) {
  for (const auto& [region, elsewhere, in_place] :
       {std::tuple(mapped_, Destination::kRegion, Destination::kRegionInPlace),
        std::tuple(object_, Destination::kObject, Destination::kObjectInPlace)}) {
    tensor_.place = PartAt(region, 128);
    tensor_.source = {};
    EXPECT_EQ(DestinationOf(tensor_), elsewhere);
    tensor_.source = PartAt(region, 128 + kBytes);
    EXPECT_EQ(DestinationOf(tensor_), elsewhere);
    tensor_.source = tensor_.place;
    EXPECT_EQ(DestinationOf(tensor_), in_place);
  }
}

TEST_F(DestinationTest, WhatIsCopiedToAnObjectIsComputedPacked) {
  const LayoutStrides strides = StridesInOrder("SD", tensor_.layout, "t").value();
  for (const bool is_object : {false, true}) {
    tensor_.place = PartAt(is_object ? object_ : mapped_, 128);
    tensor_.output_strides = strides;
    const Plan plan = PlanOf(tensor_);
    EXPECT_EQ(plan.tensors[0].store_strides.has_value(), is_object);
    EXPECT_EQ(plan.tensors[0].output_strides.has_value(), !is_object);
  }
}

TEST(DestinationKindTest, EachKindSaysWhatItNeeds) {
  const struct {
    Destination destination;
    bool in_reply;
    bool buffer;
    bool in_place;
  } cases[] = {{Destination::kReply, true, true, false},
               {Destination::kReceivedBytes, true, false, false},
               {Destination::kRegion, false, false, false},
               {Destination::kRegionInPlace, false, false, true},
               {Destination::kObject, false, true, false},
               {Destination::kObjectInPlace, false, true, true}};
  for (const auto& c : cases) {
    EXPECT_EQ(IsInReply(c.destination), c.in_reply);
    EXPECT_EQ(TakesBuffer(c.destination), c.buffer);
    EXPECT_EQ(IsInPlace(c.destination), c.in_place);
  }
}

}  // namespace
}  // namespace rope::server
