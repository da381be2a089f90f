#include "client/codec/prepared_message.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "client/codec/codec.h"
#include "client/codec/preparation.h"
#include "client/memory/arena_memory.h"
#include "rope/v1/rotate.pb.h"
#include "tests/support/byte_buffer.h"

namespace rope::client {
namespace {

// Requests with an id "prepared", as they are sent.
class PreparedMessageTest : public ::testing::Test {
 protected:
  PreparedMessageTest() {
    for (const std::vector<float>* data : {&q_, &k_}) {
      request_.tensors.push_back({.layout = "TD", .shape = {2, 2}, .data = data->data()});
    }
  }

  Result<EncodedRotate> Encode(const Region& region = {}, Route route = Route::kRpc) {
    RotateRequest call{.prepared = PreparedState::RotationOf(std::make_shared<const PreparedState>(
                           Preparation::Create(request_, open_axis_).value(), "prepared")),
                       .request_id = request_.request_id,
                       .labels = request_.labels,
                       .positions = request_.positions};
    if (request_.reposition.has_value()) {
      call.reposition = Reposition{.from = request_.reposition->from};
    }
    for (const TensorView& tensor : request_.tensors) {
      call.tensors.push_back({.data = tensor.data, .output = tensor.output});
    }
    if (!open_axis_.empty()) call.prepared = call.prepared->WithLength(2);
    return EncodeRotate(call, region, route, borrowed_);
  }
  v1::RotateRequest Sent() {
    const Result<EncodedRotate> encoded = Encode();
    EXPECT_TRUE(encoded.ok()) << encoded.status().ToString();
    v1::RotateRequest message;
    EXPECT_TRUE(message.ParseFromString(::rope::testing::BytesOf(encoded->message)));
    return message;
  }
  // What is expected of the request, beside positions.
  v1::RotateRequest Expected() const {
    v1::RotateRequest expected;
    expected.set_prepared_id("prepared");
    for (const std::vector<float>* data : {&q_, &k_}) {
      expected.add_tensors()->mutable_array()->set_raw(data->data(), data->size() * sizeof(float));
    }
    return expected;
  }
  static void ExpectEqual(const v1::RotateRequest& got, const v1::RotateRequest& want) {
    EXPECT_EQ(got.ShortDebugString(), want.ShortDebugString());
  }

  const std::vector<float> q_ = {1, 2, 3, 4};
  const std::vector<float> k_ = {5, 6, 7, 8};
  RotateRequest request_ = {.rope = {.model = "m"}, .positions = {.start = 300}};
  std::string open_axis_;
  BorrowedSlices borrowed_;
};

TEST_F(PreparedMessageTest, AStartAndTheElements) {
  v1::RotateRequest expected = Expected();
  expected.mutable_positions()->set_start(300);
  ExpectEqual(Sent(), expected);
  request_.positions.start = 0;
  expected.mutable_positions()->set_start(0);
  ExpectEqual(Sent(), expected);
}

TEST_F(PreparedMessageTest, EveryOtherValue) {
  request_.request_id = "mine";
  request_.labels = {{"a", "b"}};
  request_.positions = {.position_ids = {7, 8}, .seq_lens = {9}};
  request_.reposition = Reposition{.from = {.start = 5}, .from_rope = RopeSpec{.model = "n"}};
  v1::RotateRequest expected = Expected();
  expected.set_request_id("mine");
  expected.mutable_labels()->insert({"a", "b"});
  v1::Array& ids = *expected.mutable_positions()->mutable_position_ids();
  ids.set_dtype(v1::DTYPE_INT64);
  ids.add_shape(2);
  ids.set_raw(request_.positions.position_ids.data(), 16);
  expected.mutable_positions()->add_seq_lens(9);
  expected.mutable_reposition()->mutable_from()->set_start(5);
  ExpectEqual(Sent(), expected);
}

TEST_F(PreparedMessageTest, ShapesOnlyWithAnOpenAxis) {
  open_axis_.push_back('T');
  v1::RotateRequest expected = Expected();
  expected.mutable_positions()->set_start(300);
  for (v1::Tensor& tensor : *expected.mutable_tensors()) {
    tensor.mutable_array()->add_shape(2);
    tensor.mutable_array()->add_shape(2);
  }
  ExpectEqual(Sent(), expected);
}

TEST_F(PreparedMessageTest, TwoSourcesOfPositionsAreRefusedByName) {
  request_.positions.starts = {1};
  EXPECT_EQ(Encode().status().message(),
            "positions: got start and starts, want exactly one of start, starts, position_ids");
}

TEST_F(PreparedMessageTest, MissingDataIsRefusedByName) {
  request_.tensors[1].data = nullptr;
  EXPECT_EQ(Encode().status().message(), "tensors[1].data: got null, want 16 bytes");
}

TEST_F(PreparedMessageTest, TensorsInARegionAreNamedAndGoThroughTheRing) {
  auto memory = std::make_shared<ArenaMemory>(
      SharedMemory::CreateMemfd(1 << 16, SharedMemory::Use::kArena).value());
  const Region region = {.memory = memory, .ids = std::make_shared<RegionIds>(9)};
  for (TensorView& view : request_.tensors) {
    view.output = memory->Allocate(16).value();
    view.data = view.output;
  }
  const Result<EncodedRotate> encoded = Encode(region, Route::kRing);
  ASSERT_TRUE(encoded.ok()) << encoded.status().ToString();
  EXPECT_FALSE(encoded->idempotent);
  EXPECT_TRUE(encoded->wanted[1].in_region);
  v1::RotateRequest message;
  ASSERT_TRUE(message.ParseFromString(encoded->ring_message));
  v1::RotateRequest expected;
  expected.set_prepared_id("prepared");
  expected.mutable_positions()->set_start(300);
  for (const TensorView& view : request_.tensors) {
    v1::RegionSpan& span = *expected.add_tensors()->mutable_array()->mutable_region();
    span.set_region_id(9);
    span.set_offset(static_cast<uint64_t>(*memory->OffsetOf(view.data, 16)));
    *expected.mutable_output()->add_regions() = span;
  }
  ExpectEqual(message, expected);
}

}  // namespace
}  // namespace rope::client
