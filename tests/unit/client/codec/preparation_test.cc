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
#include "tests/support/byte_buffer.h"
#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

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
  return Preparation::Create(request, open_axis).value()->message();
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
  EXPECT_EQ(preparation->message().rotate().tensors(0).norm().weight().raw(),
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
  RotateRequest call{.prepared = PreparedRotation::CreateLocal(request).value(),
                     .request_id = request.request_id,
                     .labels = request.labels,
                     .positions = request.positions,
                     .reposition = request.reposition};
  for (const TensorView& view : request.tensors) call.tensors.push_back({.data = view.data});
  EXPECT_EQ(encoded(call), encoded(request));
}

TEST(PreparationTest, AMessageGivesTheTensorsOfTheRequest) {
  RotateRequest request = RequestFor();
  request.tensors[1].strides = {4, 2, 1};
  request.tensors[1].output_strides = {4, 8, 1};
  request.output_dtype = DType::kFloat8E4M3;
  const v1::PrepareRequest message = MessageOf(request, "B");
  const auto read = Preparation::Create(message).value();
  EXPECT_EQ(read->message().SerializeAsString(), message.SerializeAsString());
  const auto written = Preparation::Create(request, "B").value();
  for (size_t i = 0; i < 2; ++i) {
    const Preparation::Tensor& got = read->tensors()[i];
    const Preparation::Tensor& want = written->tensors()[i];
    EXPECT_EQ(got.bytes, want.bytes);
    EXPECT_EQ(got.view.strides, want.view.strides);
    EXPECT_EQ(got.wanted.role, want.wanted.role);
    EXPECT_EQ(got.wanted.dtype, want.wanted.dtype);
    EXPECT_EQ(got.wanted.shape, want.wanted.shape);
    EXPECT_EQ(got.wanted.strides, want.wanted.strides);
  }
}

TEST(PreparationTest, AMessageThatTheClientCannotAnswerIsRefused) {
  v1::PrepareRequest message = MessageOf(RequestFor());
  message.mutable_rotate()->mutable_output()->set_in_place(true);
  EXPECT_EQ(Preparation::Create(message).status().detail().field, "output.in_place");
  message = MessageOf(RequestFor());
  message.mutable_rotate()->mutable_tensors(1)->mutable_array()->set_dtype(v1::DTYPE_INT32);
  EXPECT_EQ(Preparation::Create(message).status().message(),
            "tensors[1].array.dtype: got DTYPE_INT32, want the dtype of a tensor");
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
      {[](RotateRequest& r) { r.rows = Rows{.cos = ArrayView{}}; }, "rows.cos: got another"},
      {[](RotateRequest& r) { r.tensors.pop_back(); }, "tensors: got 1, want 2"},
      {[](RotateRequest& r) { r.tensors[1].layout = "BSD"; }, "tensors[1]:"},
      {[](RotateRequest& r) { r.tensors[0].scale = 1; }, "tensors[0]:"},
      {[](RotateRequest& r) { r.tensors[0].paged = PagedTokens{.slots = {1}}; }, "tensors[0]:"},
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
  RotateRequest call = Call();
  call.prepared = rotation;
  const std::vector<Preparation::Tensor> tensors = *preparation.TensorsOf(call).value();
  EXPECT_THAT(tensors[0].view.shape, ElementsAre(2, 1, 2));
  EXPECT_EQ(tensors[0].bytes, 16);
  EXPECT_THAT(tensors[1].wanted.shape, ElementsAre(1, 2, 2));
  EXPECT_EQ(CheckPreparedCall(call).ToString(), "OK");
  call.prepared = rotation.WithLength(-1);
  EXPECT_EQ(preparation.TensorsOf(call).status().message(),
            "tensors[0].array.shape[1]: got -1, want a length >= 0");
}

// Strides that were prepared say nothing of an array that is packed, and the other way round.
TEST_F(PreparedCallTest, StridesOfACallReplaceThosePreparedAndItGoesWhole) {
  const std::vector<float> data(32);
  RotateRequest call = Call();
  call.reposition = Reposition{.from = {.start = 1}};
  for (TensorView& tensor : call.tensors) tensor.data = data.data();
  call.tensors[0].strides = {16, 4, 1};
  BorrowedSlices borrowed;
  v1::RotateRequest message;
  ASSERT_OK(encoded, EncodeRotate(call, {}, Route::kRpc, borrowed));
  ASSERT_TRUE(message.ParseFromString(::rope::testing::BytesOf(encoded->message)));
  EXPECT_TRUE(message.prepared_id().empty());
  EXPECT_EQ(message.rope().model(), "m");
  EXPECT_THAT(message.tensors(0).array().strides(), ElementsAre(16, 4, 1));
  EXPECT_EQ(message.tensors(1).array().strides_size(), 0);
}

TEST(ReadPreparedTest, AnAnswerWithoutAnIdIsUnreadable) {
  EXPECT_EQ(ReadPrepared(nullptr, BytesOf(v1::PrepareResponse())).status().code(),
            StatusCode::kInternal);
}

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

// Their types and shapes are prepared, their elements are values.
TEST_F(PreparedMessageTest, RowsAndSlots) {
  auto memory = std::make_shared<ArenaMemory>(
      SharedMemory::CreateMemfd(1 << 16, SharedMemory::Use::kArena).value());
  const Region region = {.memory = memory, .ids = std::make_shared<RegionIds>(9)};
  const PagedTokens paged = {
      .page_stride = 2, .token_stride = 2, .head_stride = 2, .pool_elements = 8, .slots = {3, 1}};
  const ArrayView table = {.shape = {2, 2}, .data = q_.data()};
  RotateRequest request = {.rope = {.pairing = Pairing::kHalf}, .rows = Rows{.cos_sin = table}};
  request.tensors = {{.layout = "TD", .shape = {2, 2}, .paged = paged}};
  const v1::RotateRequest prepared = MessageOf(request).rotate();
  EXPECT_THAT(prepared.rows().cos_sin().shape(), ElementsAre(2, 2));
  EXPECT_TRUE(prepared.rows().cos_sin().raw().empty());
  EXPECT_EQ(prepared.tensors(0).paged_tokens().slots().dtype(), v1::DTYPE_INT64);
  EXPECT_THAT(prepared.tensors(0).paged_tokens().slots().shape(), ElementsAre(2));
  EXPECT_TRUE(prepared.tensors(0).paged_tokens().slots().raw().empty());

  std::byte* const pool = memory->Allocate(32).value();
  RotateRequest call = {.prepared = PreparedState::RotationOf(std::make_shared<const PreparedState>(
                            Preparation::Create(request).value(), "prepared")),
                        .positions = {.start = 300},
                        .rows = request.rows};
  call.tensors = {{.data = pool, .output = pool, .paged = PagedTokens{.slots = {0, 2}}}};
  ASSERT_OK(encoded, EncodeRotate(call, region, Route::kRing, borrowed_));
  v1::RotateRequest expected;
  expected.set_prepared_id("prepared");
  expected.mutable_positions()->set_start(300);
  expected.mutable_rows()->mutable_cos_sin()->set_raw(q_.data(), 16);
  v1::Tensor& tensor = *expected.add_tensors();
  tensor.mutable_paged_tokens()->mutable_slots()->set_raw(call.tensors[0].paged->slots.data(), 16);
  tensor.mutable_array()->mutable_region()->set_region_id(9);
  tensor.mutable_array()->mutable_region()->set_offset(
      static_cast<uint64_t>(*memory->OffsetOf(pool, 32)));
  *expected.mutable_output()->add_regions() = tensor.array().region();
  v1::RotateRequest message;
  ASSERT_TRUE(message.ParseFromString(encoded->ring_message));
  ExpectEqual(message, expected);

  call.rows->cos_sin->shape = {1, 2};
  EXPECT_THAT(CheckPreparedCall(call).message(), StartsWith("rows.cos_sin: got another array"));
  call.rows.reset();
  EXPECT_THAT(CheckPreparedCall(call).message(), StartsWith("rows.cos_sin: got nothing"));
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
  ASSERT_OK(encoded, Encode(region, Route::kRing));
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
