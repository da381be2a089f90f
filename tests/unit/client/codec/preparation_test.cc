#include "client/codec/preparation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "client/codec/codec.h"
#include "client/codec/message_call.h"
#include "rope/v1/prepare.pb.h"
#include "tests/support/byte_buffer.h"

namespace rope::client {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

RotateRequest RequestFor() {
  static const std::vector<float> data(8);
  RotateRequest request{.request_id = "mine",
                        .labels = {{"a", "b"}},
                        .rope = {.model = "m"},
                        .positions = {.start = 3},
                        .operation = Operation::kReposition,
                        .reposition = Reposition{.from = {.start = 1}}};
  request.tensors = {
      {.layout = "BSD", .shape = {2, 2, 2}, .data = data.data()},
      {.role = Role::kK, .layout = "BSD", .shape = {2, 2, 2}, .output_layout = "SBD"}};
  return request;
}

v1::PrepareRequest MessageOf(const RotateRequest& request, const std::string& open_axis = {}) {
  v1::PrepareRequest message;
  const auto bytes = Preparation::Create(request, open_axis).value()->Message();
  EXPECT_TRUE(message.ParseFromString(::rope::testing::BytesOf(bytes.value())));
  return message;
}

TEST(PreparationTest, MessageHasNoValues) {
  const v1::PrepareRequest message = MessageOf(RequestFor(), "B");
  EXPECT_EQ(message.open_axis(), "B");
  const v1::RotateRequest& rotate = message.rotate();
  EXPECT_EQ(rotate.rope().model(), "m");
  EXPECT_EQ(rotate.operation(), v1::OPERATION_REPOSITION);
  EXPECT_THAT(rotate.output().layouts(), ElementsAre("BSD", "SBD"));
  EXPECT_TRUE(rotate.request_id().empty());
  EXPECT_EQ(rotate.labels_size(), 0);
  EXPECT_FALSE(rotate.has_positions());
  EXPECT_TRUE(rotate.has_reposition());
  EXPECT_FALSE(rotate.reposition().has_from());
  ASSERT_EQ(rotate.tensors_size(), 2);
  EXPECT_EQ(rotate.tensors(1).role(), v1::ROLE_K);
  EXPECT_THAT(rotate.tensors(1).array().shape(), ElementsAre(2, 2, 2));
  EXPECT_EQ(rotate.tensors(0).array().dtype(), v1::DTYPE_FP32);
  EXPECT_TRUE(rotate.tensors(0).array().raw().empty());
}

TEST(PreparationTest, WeightsOfNormsAreCopied) {
  std::vector<float> weight = {1, 2};
  RotateRequest request = RequestFor();
  request.tensors[0].norm = HeadNorm{.eps = 1, .weight = {.shape = {2}, .data = weight.data()}};
  const auto preparation = Preparation::Create(request).value();
  const std::vector<float> before = weight;
  weight = {7, 8};
  v1::PrepareRequest message;
  ASSERT_TRUE(message.ParseFromString(::rope::testing::BytesOf(preparation->Message().value())));
  EXPECT_EQ(message.rotate().tensors(0).norm().weight().raw(),
            std::string(reinterpret_cast<const char*>(before.data()), 8));
}

TEST(PreparationTest, WithItsValuesItIsTheWholeRequest) {
  RotateRequest request = RequestFor();
  request.tensors[1].data = request.tensors[0].data;
  const auto encoded = [](const RotateRequest& either) {
    BorrowedSlices borrowed;
    const auto message = EncodeWhole(either, {}, Route::kRpc, borrowed);
    return ::rope::testing::BytesOf(message.value().message);
  };
  EXPECT_EQ(encoded(Preparation::Create(request).value()->With(request)), encoded(request));
}

TEST(PreparationTest, AShapeWithoutASizeIsRefused) {
  RotateRequest request = RequestFor();
  request.tensors[1].shape = {2, -1, 2};
  EXPECT_EQ(Preparation::Create(request).status().message(),
            "tensors[1].array.shape[1]: got -1, want a length >= 0");
}

// Calls with a prepared rotation.
class PreparedCallTest : public ::testing::Test {
 protected:
  static PreparedRotation RotationOf(const std::string& open_axis) {
    return PreparedState::RotationOf(std::make_shared<const PreparedState>(
        Preparation::Create(RequestFor(), open_axis).value(), "id"));
  }
  RotateRequest Call() const {
    RotateRequest call{.prepared = RotationOf(""), .positions = {.start = 3}};
    call.tensors.resize(2);
    return call;
  }
};

TEST_F(PreparedCallTest, ValuesAreAccepted) {
  RotateRequest call = Call();
  call.request_id = "mine";
  call.labels = {{"a", "b"}};
  call.reposition = Reposition{.from = {.start = 1}};
  EXPECT_EQ(CheckPreparedCall(call).ToString(), "OK");
}

TEST_F(PreparedCallTest, EveryOtherFieldIsRefusedByName) {
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
      {[](RotateRequest& r) { r.rows = Rows{}; }, "rows:"},
      {[](RotateRequest& r) { r.tensors.pop_back(); }, "tensors: got 1, want 2"},
      {[](RotateRequest& r) { r.tensors[1].layout = "BSD"; }, "tensors[1]:"},
      {[](RotateRequest& r) { r.tensors[0].scale = 1; }, "tensors[0]:"},
      {[](RotateRequest& r) { r.prepared = r.prepared->WithLength(1); },
       "prepared: got length 1, want an open axis"},
  };
  for (const auto& [change, field] : cases) {
    RotateRequest call = Call();
    change(call);
    EXPECT_THAT(CheckPreparedCall(call).message(), StartsWith(field));
  }
}

TEST_F(PreparedCallTest, ALengthChangesTheOpenAxisOfEveryTensor) {
  const PreparedRotation rotation = RotationOf("S").WithLength(1);
  const Preparation& preparation = *PreparedState::Of(rotation)->preparation;
  const auto tensors = preparation.TensorsOf(1).value();
  EXPECT_THAT(tensors[0].view.shape, ElementsAre(2, 1, 2));
  EXPECT_EQ(tensors[0].bytes, 16);
  EXPECT_THAT(tensors[1].wanted.shape, ElementsAre(1, 2, 2));
  EXPECT_EQ(preparation.TensorsOf(-1).status().message(),
            "tensors[0].array.shape[1]: got -1, want a length >= 0");
  RotateRequest call = Call();
  call.prepared = rotation;
  EXPECT_EQ(CheckPreparedCall(call).ToString(), "OK");
  EXPECT_THAT(preparation.With(call).tensors[1].shape, ElementsAre(2, 1, 2));
}

TEST(ReadPreparedTest, AnAnswerWithoutAnIdIsUnreadable) {
  EXPECT_EQ(ReadPrepared(nullptr, BytesOf(v1::PrepareResponse())).status().code(),
            StatusCode::kInternal);
}

}  // namespace
}  // namespace rope::client
