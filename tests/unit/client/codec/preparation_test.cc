#include "client/codec/preparation.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/codec/codec.h"
#include "client/codec/message_call.h"
#include "client/memory/arena_memory.h"
#include "rope/v1/prepare.pb.h"
#include "rope/v1/rotate.pb.h"
#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

RotateRequest RequestFor() {
  static const std::vector<float> data(8);
  RotateRequest request{.rope = {.model = "m"}};
  request.tensors = {
      {.layout = "BSD", .shape = {2, 2, 2}, .data = data.data()},
      {.role = Role::kK, .layout = "BSD", .shape = {2, 2, 2}, .output_layout = "SBD"}};
  return request;
}

PreparedRotation RotationOf(const RotateRequest& request, const std::string& open_axis = {}) {
  return PreparedState::RotationOf(std::make_shared<const PreparedState>(
      Preparation::Create(request, open_axis).value(), "prepared"));
}

TEST(PreparationTest, WeightsOfNormsAreCopied) {
  std::vector<float> weight = {1, 2};
  RotateRequest request = RequestFor();
  request.tensors[0].norm = HeadNorm{.eps = 1, .weight = {.shape = {2}, .data = weight.data()}};
  const auto preparation = Preparation::Create(request).value();
  const std::vector<float> before = weight;
  weight = {7, 8};
  EXPECT_EQ(preparation->message().rotate().tensors(0).norm().weight().raw(),
            std::string(reinterpret_cast<const char*>(before.data()), 8));
}

TEST(PreparationTest, AShapeWithoutASizeIsRefused) {
  RotateRequest request = RequestFor();
  request.tensors[1].shape = {2, -1, 2};
  EXPECT_EQ(Preparation::Create(request).status().message(),
            "tensors[1].array.shape[1]: got -1, want a length >= 0");
  RotateRequest call{.prepared = RotationOf(RequestFor(), "S").WithLength(-1)};
  call.tensors.resize(2);
  EXPECT_EQ(PreparedState::Of(*call.prepared)->preparation->TensorsOf(call).status().message(),
            "tensors[0].array.shape[1]: got -1, want a length >= 0");
}

TEST(PreparedCallTest, EveryOtherFieldIsRefusedByName) {
  const struct {
    std::function<void(RotateRequest&)> change;
    std::string field;
  } cases[] = {
      {[](RotateRequest& r) { r.rope.model = "m"; }, "rope:"},
      {[](RotateRequest& r) { r.operation = Operation::kInverse; }, "operation:"},
      {[](RotateRequest& r) { r.reposition = Reposition{.from_rope = RopeSpec{}}; },
       "reposition.from_rope:"},
      {[](RotateRequest& r) { r.skip_attention_factor = true; }, "skip_attention_factor:"},
      {[](RotateRequest& r) { r.output_dtype = DType::kFloat32; }, "output_dtype:"},
      {[](RotateRequest& r) { r.channel_order = Pairing::kHalf; }, "channel_order:"},
      {[](RotateRequest& r) { r.rows = Rows{.cos = ArrayView{}}; }, "rows.cos: got another"},
      {[](RotateRequest& r) { r.tensors.pop_back(); }, "tensors: got 1, want 2"},
      {[](RotateRequest& r) { r.tensors[1].layout = "BSD"; }, "tensors[1]:"},
      {[](RotateRequest& r) { r.tensors[0].scale = 1; }, "tensors[0]:"},
      {[](RotateRequest& r) { r.tensors[0].paged = PagedTokens{.slots = {1}}; }, "tensors[0]:"},
      {[](RotateRequest& r) { r.prepared = r.prepared->WithLength(1); },
       "prepared: got length 1, want an open axis"},
  };
  for (const auto& [change, field] : cases) {
    RotateRequest call{.prepared = RotationOf(RequestFor()), .positions = {.start = 3}};
    call.tensors.resize(2);
    change(call);
    EXPECT_THAT(CheckPreparedCall(call).message(), StartsWith(field));
  }
}

TEST(PreparedCallTest, RowsAreThosePrepared) {
  const std::vector<float> table(4);
  RotateRequest request = RequestFor();
  request.rope = {.pairing = Pairing::kHalf};
  request.rows = Rows{.cos_sin = ArrayView{.shape = {2, 2}, .data = table.data()}};
  RotateRequest call{.prepared = RotationOf(request), .rows = request.rows};
  call.tensors.resize(2);
  EXPECT_EQ(CheckPreparedCall(call).ToString(), "OK");
  call.rows->cos_sin->shape = {1, 2};
  EXPECT_THAT(CheckPreparedCall(call).message(), StartsWith("rows.cos_sin: got another array"));
  call.rows.reset();
  EXPECT_THAT(CheckPreparedCall(call).message(), StartsWith("rows.cos_sin: got nothing"));
}

TEST(PreparedCallTest, InARegionItGoesThroughTheRingAndInPlaceIsNotIdempotent) {
  const auto memory = std::make_shared<ArenaMemory>(
      SharedMemory::CreateMemfd(1 << 16, SharedMemory::Use::kArena).value());
  const Region region = {.memory = memory, .ids = std::make_shared<RegionIds>(9)};
  RotateRequest request = RequestFor();
  request.tensors.resize(1);
  RotateRequest call{.prepared = RotationOf(request), .positions = {.start = 300}};
  std::byte* const data = memory->Allocate(32).value();
  call.tensors = {{.data = data, .output = data}};
  BorrowedSlices borrowed;
  ASSERT_OK(encoded, EncodeRotate(call, region, Route::kRing, borrowed));
  EXPECT_FALSE(encoded->idempotent);
  v1::RotateRequest message;
  ASSERT_TRUE(message.ParseFromString(encoded->ring_message));
  EXPECT_EQ(message.prepared_id(), "prepared");
  EXPECT_EQ(message.tensors(0).array().region().region_id(), 9u);
}

TEST(ReadPreparedTest, AnAnswerWithoutAnIdIsUnreadable) {
  EXPECT_EQ(ReadPrepared(nullptr, BytesOf(v1::PrepareResponse())).status().code(),
            StatusCode::kInternal);
}

}  // namespace
}  // namespace rope::client
