#include "client/codec/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/codec/message_call.h"
#include "client/codec/messages.h"
#include "client/codec/preparation.h"
#include "client/memory/arena_memory.h"
#include "grpc/health/v1/health.pb.h"
#include "rope/status.h"
#include "rope/v1/prepare.pb.h"
#include "rope/v1/rotate.pb.h"
#include "tests/support/byte_buffer.h"
#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

using ::grpc::health::v1::HealthCheckResponse;
using ::rope::testing::BytesOf;

// A request with one [tokens, 2] tensor.
RotateRequest RequestFor(const std::vector<float>& data) {
  RotateRequest request;
  request.rope.model = "m";
  request.positions.start = 3;
  request.tensors = {{.role = Role::kK,
                      .layout = "TD",
                      .dtype = DType::kFloat32,
                      .shape = {static_cast<int64_t>(data.size()) / 2, 2},
                      .data = data.data()}};
  return request;
}

std::vector<WantedTensor> WantedBy(const RotateRequest& request) {
  BorrowedSlices borrowed;
  Result<EncodedRotate> encoded = EncodeWhole(request, {}, Route::kRpc, borrowed);
  EXPECT_TRUE(encoded.ok()) << encoded.status().ToString();
  return encoded.ok() ? std::move(encoded->wanted) : std::vector<WantedTensor>();
}

Result<RotateReply> Decode(const grpc::ByteBuffer& buffer, std::vector<WantedTensor> wanted) {
  const Result<ReceivedReply> reply = ReceivedReply::Parse(buffer);
  if (!reply.ok()) return reply.status();
  return reply->ToReply(std::move(wanted), *std::make_shared<OutputPool>(0));
}

Result<RotateReply> Decode(const grpc::ByteBuffer& buffer, const RotateRequest& request) {
  return Decode(buffer, WantedBy(request));
}

v1::RotateResponse ResponseFor(const std::vector<float>& data) {
  v1::RotateResponse response;
  v1::Array& array = *response.add_tensors()->mutable_array();
  array.set_dtype(v1::DTYPE_FP32);
  array.add_shape(static_cast<int64_t>(data.size()) / 2);
  array.add_shape(2);
  array.set_raw(data.data(), data.size() * sizeof(float));
  return response;
}

v1::RotateRequest Encoded(const RotateRequest& request) {
  BorrowedSlices borrowed;
  v1::RotateRequest message;
  {
    const Result<EncodedRotate> buffer = EncodeWhole(request, {}, Route::kRpc, borrowed);
    EXPECT_TRUE(buffer.ok()) << buffer.status().ToString();
    EXPECT_TRUE(buffer.ok() && message.ParseFromString(BytesOf(buffer->message)));
  }
  EXPECT_TRUE(borrowed.AllReturned());
  return message;
}

// Of a request that is encoded whole.
Status StatusOf(const RotateRequest& request) {
  BorrowedSlices borrowed;
  return EncodeWhole(request, {}, Route::kRpc, borrowed).status();
}

TEST(EncodeRotateTest, TwoSourcesOfPositionsAreRefusedByName) {
  RotateRequest request;
  request.positions = {.start = 0, .starts = {5, 6}};
  EXPECT_EQ(StatusOf(request).message(),
            "positions: got start and starts, want exactly one of start, starts, position_ids, "
            "device_ids");
  request.positions = {.start = 0};
  request.reposition = Reposition{.from = {.starts = {1}, .position_ids = {2}}};
  EXPECT_EQ(StatusOf(request).message(),
            "reposition.from: got starts and position_ids, want exactly one of start, starts, "
            "position_ids, device_ids");
}

TEST(EncodeRotateTest, PositionsOnAGpuAreForEnqueueAlone) {
  const int32_t ids = 0;
  RotateRequest request = {.positions = {.position_ids_shape = {1}, .device_ids = &ids}};
  BorrowedSlices borrowed;
  EXPECT_EQ(EncodeRotate(request, {}, Route::kRpc, borrowed).status().message(),
            "positions.device_ids: got positions on a GPU, want Client::Enqueue in process");
  request.positions.device_id_bytes = 3;
  EXPECT_EQ(StatusOf(request).message(), "positions.device_id_bytes: got 3, want 4 or 8");
  request.reposition = Reposition{.from = {.device_ids = &ids}};
  EXPECT_EQ(EncodeRotate(request, {}, Route::kRpc, borrowed).status().message(),
            "reposition.from.device_ids: got positions on a GPU, want reposition.by");
}

// The others are in the requests of SkewTest, or the Python package's tests rotate by them.
TEST(EncodeRotateTest, FieldsThatNoRecordedRequestHas) {
  const std::vector<float> data(4);
  RotateRequest request = RequestFor(data);
  request.rope.first_layer = 2;
  request.positions = {.start = 5, .cp_size = 4, .cp_rank = 0};
  request.tensors[0].llama4_scaling_beta = 0.1;
  const v1::RotateRequest message = Encoded(request);
  EXPECT_EQ(message.rope().first_layer(), 2);
  EXPECT_EQ(message.positions().cp_size(), 4);
  EXPECT_TRUE(message.positions().has_cp_rank());
  EXPECT_EQ(message.tensors(0).llama4_scaling_beta(), 0.1);
}

TEST(EncodeRotateTest, OutputsThatShareAByteAreRefused) {
  std::vector<float> data(48);
  const struct {
    std::vector<int64_t> shape;
    int64_t begin;  // of the second tensor, in elements
    std::vector<int64_t> strides;
    bool is_legal;
  } cases[] = {
      {{4, 4}, 16, {}, true},           {{4, 4}, 15, {}, false},    {{4, 4}, 0, {}, false},
      {{4, 4}, 4, {8, 1}, true},        {{4, 4}, 3, {8, 1}, false}, {{4, 4}, 12, {8, 1}, true},
      {{2, 2, 2}, 2, {8, 4, 1}, true},  // heads of one tensor in turn
      {{2, 2, 2}, 5, {8, 4, 1}, false}, {{0, 4}, 2, {}, true},
  };
  for (const auto& [shape, begin, strides, is_legal] : cases) {
    SCOPED_TRACE(begin);
    RotateRequest request{.rope = {.model = "m"}, .positions = {.start = 3}};
    for (float* const place : {data.data(), data.data() + begin}) {
      request.tensors.push_back({.layout = shape.size() == 2 ? "TD" : "THD",
                                 .shape = shape,
                                 .data = place,
                                 .output = place,
                                 .strides = strides,
                                 .output_strides = strides});
    }
    EXPECT_EQ(StatusOf(request).message(),
              is_legal ? ""
                       : "output of tensors[1]: got a place that overlaps the output of "
                         "tensors[0], want one of its own");
  }
  // One that reaches past all memory is refused where it is used.
  RotateRequest far{.rope = {.model = "m"}, .positions = {.start = 3}};
  far.tensors.assign(2,
                     {.layout = "TD", .shape = {2, 4}, .data = data.data(), .output = data.data()});
  far.tensors[0].output_strides = {int64_t{1} << 46, 1};
  EXPECT_EQ(StatusOf(far).message(), "");
}

TEST(EncodeRotateTest, LargePayloadIsLentAndSmallOneCopied) {
  const std::vector<float> large(kLentBytesMin / sizeof(float));
  BorrowedSlices borrowed;
  {
    const Result<EncodedRotate> buffer = EncodeWhole(RequestFor(large), {}, Route::kRpc, borrowed);
    ASSERT_TRUE(buffer.ok());
    EXPECT_FALSE(borrowed.AllReturned());
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(buffer->message.Dump(&slices).ok());
    EXPECT_EQ(slices.back().begin(), reinterpret_cast<const uint8_t*>(large.data()));
  }
  EXPECT_TRUE(borrowed.AllReturned());
  const std::vector<float> small(kLentBytesMin / sizeof(float) - 2);
  const Result<EncodedRotate> buffer = EncodeWhole(RequestFor(small), {}, Route::kRpc, borrowed);
  ASSERT_TRUE(buffer.ok());
  EXPECT_TRUE(borrowed.AllReturned());
}

// Staging memory as a connection has it.
Region Staging(int64_t bytes) {
  auto shared = SharedMemory::CreateMemfd(bytes, SharedMemory::Use::kStaging).value();
  return {.memory = std::make_shared<ArenaMemory>(std::move(shared)),
          .ids = std::make_shared<RegionIds>(7),
          .is_staging = true};
}

class StagingTest : public ::testing::Test {
 protected:
  v1::RotateRequest Encode(const RotateRequest& request) {
    encoded_ = EncodeWhole(request, region_, Route::kRpc, borrowed_);
    v1::RotateRequest message;
    EXPECT_TRUE(encoded_->ok()) << encoded_->status().ToString();
    EXPECT_TRUE(message.ParseFromString(BytesOf((*encoded_)->message)));
    return message;
  }
  const std::vector<float>& data() const { return data_; }

  const Region region_ = Staging(1 << 20);
  BorrowedSlices borrowed_;
  std::optional<Result<EncodedRotate>> encoded_;
  const std::vector<float> data_ = std::vector<float>(kStagedBytesMin / 4, 1.5f);
};

TEST_F(StagingTest, ResultOfTheSameShapeAndTypeTakesTheCopysPlace) {
  const v1::RotateRequest message = Encode(RequestFor(data()));
  EXPECT_EQ(message.tensors(0).array().region().region_id(), 7u);
  EXPECT_EQ(message.tensors(0).array().region().offset(), 0u);
  EXPECT_TRUE(message.tensors(0).array().raw().empty());
  EXPECT_EQ(message.output().regions(0).offset(), 0u);
  EXPECT_EQ(std::memcmp(region_.memory->shared()->data(), data().data(), kStagedBytesMin), 0);
  EXPECT_EQ(region_.memory->used_bytes(), kStagedBytesMin);
  EXPECT_TRUE((*encoded_)->idempotent);
  EXPECT_TRUE((*encoded_)->uses_region);
  encoded_.reset();
  EXPECT_EQ(region_.memory->used_bytes(), 0);
}

TEST_F(StagingTest, OtherResultsHaveAPlaceOfTheirOwn) {
  const int64_t tokens = static_cast<int64_t>(data().size()) / 2;
  RotateRequest narrow = RequestFor(data());
  narrow.output_dtype = DType::kBFloat16;
  RotateRequest reordered = RequestFor(data());
  reordered.tensors[0].layout = "THD";
  reordered.tensors[0].shape = {tokens / 4, 4, 2};
  reordered.tensors[0].output_layout = "HTD";
  RotateRequest strided = RequestFor(data());
  strided.tensors[0].shape = {2, tokens / 2, 2};
  strided.tensors[0].layout = "SHD";
  strided.tensors[0].strides = {2, 4, 1};
  for (const RotateRequest& request : {narrow, reordered, strided}) {
    const v1::RotateRequest message = Encode(request);
    EXPECT_EQ(message.tensors(0).array().region().offset(), 0u);
    const uint64_t output = message.output().regions(0).offset();
    EXPECT_EQ(output, static_cast<uint64_t>(kStagedBytesMin));
    EXPECT_EQ((*encoded_)->wanted[0].staged, region_.memory->shared()->data() + output);
    encoded_.reset();
  }
}

TEST_F(StagingTest, AnswerIsCopiedToWhereItIsWanted) {
  Encode(RequestFor(data()));
  auto* staged = reinterpret_cast<float*>(region_.memory->shared()->data());
  std::fill_n(staged, data().size(), 4.0f);
  v1::RotateResponse response = ResponseFor(data());
  response.mutable_tensors(0)->mutable_array()->clear_raw();
  ASSERT_OK(reply, Decode(BufferOf(response.SerializeAsString()), std::move((*encoded_)->wanted)));
  encoded_.reset();
  std::fill_n(staged, data().size(), 5.0f);  // as the next request would
  const auto* values = static_cast<const float*>(reply->tensors[0].data);
  EXPECT_EQ(std::vector<float>(values, values + data().size()),
            std::vector<float>(data().size(), 4.0f));
}

TEST_F(StagingTest, TensorsOfOneRequestShareARunOrAreAllSent) {
  RotateRequest request = RequestFor(data());
  request.tensors.push_back(request.tensors[0]);
  request.tensors[1].shape = {3, 2};
  const v1::RotateRequest message = Encode(request);
  EXPECT_EQ(message.tensors(1).array().region().offset(), static_cast<uint64_t>(kStagedBytesMin));
  EXPECT_EQ(message.output().regions_size(), 2);
  EXPECT_EQ(region_.memory->used_bytes(), kStagedBytesMin + 64);

  const std::byte* rest = region_.memory->Allocate((1 << 20) - 2 * kStagedBytesMin).value();
  EXPECT_NE(rest, nullptr);
  Result<EncodedRotate> second = EncodeWhole(request, region_, Route::kRpc, borrowed_);
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(second->uses_region);
  EXPECT_EQ(second->staged.data(), nullptr);
  second->message.Clear();
  EXPECT_TRUE(borrowed_.AllReturned());
}

// A pool of 4 pages of 2 tokens, in memory that is shared.
class PagesTest : public ::testing::Test {
 protected:
  PagesTest() {
    request_.tensors = {{.role = Role::kK,
                         .layout = "BSHD",
                         .dtype = DType::kFloat8E4M3,
                         .shape = {2, 1, 1, 4},
                         .data = pool_,
                         .output = pool_,
                         .paged = PagedTokens{.block_size = 2,
                                              .page_stride = 8,
                                              .token_stride = 4,
                                              .head_stride = 4,
                                              .pool_elements = 32,
                                              .slots = {6, 1}}}};
  }
  Status Refusal(const Region& region) {
    return EncodeWhole(request_, region, Route::kRpc, borrowed_).status();
  }
  v1::RotateRequest Sent(const Result<EncodedRotate>& encoded) {
    v1::RotateRequest message;
    EXPECT_TRUE(encoded.ok()) << encoded.status().ToString();
    EXPECT_TRUE(message.ParseFromString(encoded->ring_message));
    return message;
  }
  uint64_t OffsetOf(const void* data) { return static_cast<uint64_t>(*memory_->OffsetOf(data, 1)); }

  const std::shared_ptr<ArenaMemory> memory_ = std::make_shared<ArenaMemory>(
      SharedMemory::CreateMemfd(1 << 16, SharedMemory::Use::kArena).value());
  const Region region_ = {.memory = memory_, .ids = std::make_shared<RegionIds>(9)};
  std::byte* const pool_ = memory_->Allocate(64).value();
  BorrowedSlices borrowed_;
  RotateRequest request_ = {.rope = {.model = "m"}, .positions = {.start = 3}};
};

// Layers in turn in one pool, whose results go to another one.
TEST_F(PagesTest, PoolsMayOverlap) {
  EXPECT_FALSE(EncodeWhole(request_, region_, Route::kRing, borrowed_)->idempotent) << "in place";
  std::byte* const target = memory_->Allocate(64).value();
  TensorView& first = request_.tensors[0];
  first.paged->slots.clear();
  first.paged->pages = {3, 0};
  first.paged->target_slots = {0, 2};
  first.paged->pool_elements = 28;
  first.output = target;
  TensorView second = first;
  second.data = pool_ + 4;
  second.output = target + 4;
  request_.tensors.push_back(second);
  const auto encoded = EncodeWhole(request_, region_, Route::kRing, borrowed_);
  const v1::RotateRequest message = Sent(encoded);
  EXPECT_TRUE(encoded->idempotent);
  EXPECT_EQ(message.tensors(1).array().region().offset(), OffsetOf(pool_) + 4);
  EXPECT_EQ(message.output().regions(1).offset(), OffsetOf(target) + 4);
  EXPECT_THAT(message.tensors(1).paged_tokens().pages().shape(), ElementsAre(2, 1));
  EXPECT_EQ(message.tensors(1).paged_tokens().target_slots().raw()[8], 2);
}

TEST_F(PagesTest, OtherMemoryIsRefused) {
  constexpr char kShared[] =
      "want memory that the server shares (arena, imported memory or in process)";
  for (const Region& region : {Region(), Staging(1 << 20)}) {
    EXPECT_EQ(Refusal(region).message(),
              "tensors[0].data: got pages in other memory, " + std::string(kShared));
  }
  std::vector<std::byte> own(64);
  request_.tensors[0].output = own.data();
  EXPECT_THAT(Refusal(region_).message(), StartsWith("tensors[0].output: got pages in other"));
  request_.tensors[0].output = nullptr;
  EXPECT_EQ(Refusal(region_).message(),
            "tensors[0].output: got null, want the pool of pages, or another one");
  request_.tensors[0].output = pool_;
  request_.tensors.push_back(
      {.layout = "BSD", .shape = {2, 1, 2}, .data = own.data(), .output = own.data()});
  EXPECT_EQ(
      Refusal(region_).message(),
      "tensors[1].output: got a result beside pages in other memory, " + std::string(kShared));
  std::byte* const shared = memory_->Allocate(64).value();
  request_.tensors[1].data = shared;
  request_.tensors[1].output = shared + 4;
  EXPECT_EQ(Refusal(region_).message(),
            "tensors: got a result that overlaps a tensor, beside one of pages, want none");
  request_.tensors[0].paged->pool_elements = 0;
  EXPECT_THAT(Refusal(region_).message(), StartsWith("tensors[0].paged_tokens.pool_elements: got"));
}

TEST_F(PagesTest, PreparedCallSendsItsSlotsAlone) {
  RotateRequest call{.prepared = PreparedState::RotationOf(std::make_shared<const PreparedState>(
                         Preparation::Create(request_, {}).value(), "prepared")),
                     .positions = {.start = 3}};
  call.tensors = {{.data = pool_, .output = pool_, .paged = PagedTokens{.slots = {2, 5}}}};
  const auto encoded = EncodeRotate(call, region_, Route::kRing, borrowed_);
  const v1::PagedTokens paged = Sent(encoded).tensors(0).paged_tokens();
  EXPECT_EQ(paged.slots().raw()[0], 2);
  EXPECT_EQ(paged.slots().raw()[8], 5);
  EXPECT_EQ(paged.page_stride(), 0);
}

TEST_F(PagesTest, RowsInTheRegionAreNamed) {
  request_.rows = {.cos_sin = ArrayView{.shape = {2, 4}, .data = memory_->Allocate(32).value()}};
  const auto encoded = EncodeWhole(request_, region_, Route::kRing, borrowed_);
  const v1::Array rows = Sent(encoded).rows().cos_sin();
  EXPECT_EQ(rows.region().region_id(), 9u);
  EXPECT_EQ(rows.region().offset(), OffsetOf(request_.rows->cos_sin->data));
  EXPECT_THAT(rows.shape(), ElementsAre(2, 4));
  EXPECT_TRUE(rows.raw().empty());
}

TEST(EncodeRotateTest, BadTensorsAreRefusedByName) {
  const std::vector<float> data(4);
  const auto message_for = [&](const std::vector<int64_t>& shape, const void* memory,
                               const std::vector<int64_t>& strides = {}) {
    RotateRequest request = RequestFor(data);
    request.tensors[0].shape = shape;
    request.tensors[0].data = memory;
    request.tensors[0].strides = strides;
    EXPECT_EQ(StatusOf(request).code(), StatusCode::kInvalidArgument);
    return StatusOf(request).message();
  };
  EXPECT_EQ(message_for({2, 2}, nullptr), "tensors[0].data: got null, want 16 bytes");
  EXPECT_EQ(message_for({2, -1}, data.data()),
            "tensors[0].array.shape[1]: got -1, want a length >= 0");
  EXPECT_THAT(message_for({int64_t{1} << 40, int64_t{1} << 40}, data.data()),
              HasSubstr("tensors[0].array.shape: got more than"));
  EXPECT_EQ(message_for({2, 2}, data.data(), {2, -1}),
            "tensors[0].array.strides[1]: got -1, want a distance >= 0");
  EXPECT_THAT(message_for({3, 2}, data.data(), {int64_t{1} << 62, 1}),
              HasSubstr("tensors[0].array.strides: got more than"));
}

TEST(EncodeRotateTest, BadArraysBesideTheTensorsAreRefusedByName) {
  const std::vector<float> data(4);
  const auto refuses = [](const char* error) {
    return StatusIs(StatusCode::kInvalidArgument, error);
  };
  RotateRequest request = RequestFor(data);
  request.rows = {.angles = ArrayView{.shape = {2, 1}}};
  EXPECT_THAT(StatusOf(request), refuses("rows.angles.data: got null, want 8 bytes"));
  request.rows = {.cos = ArrayView{.shape = {-1}}};
  EXPECT_THAT(StatusOf(request), refuses("rows.cos.shape[0]: got -1, want a length >= 0"));
  request.rows = {.sin = ArrayView{.shape = {1}}};
  EXPECT_THAT(StatusOf(request), refuses("rows.sin.data: got null, want 4 bytes"));
  request.rows.reset();
  request.tensors[0].norm = HeadNorm{.weight = {.shape = {2}}};
  EXPECT_THAT(StatusOf(request), refuses("tensors[0].norm.weight.data: got null, want 8 bytes"));
}

TEST(DecodeRotateTest, TimesOfStagesAreRead) {
  const std::vector<float> data = {1, 2};
  v1::RotateResponse response = ResponseFor(data);
  response.mutable_stage_times()->set_queue_us(3);
  response.mutable_stage_times()->set_execute_us(4);
  ASSERT_OK(reply, Decode(BufferOf(response.SerializeAsString()), RequestFor(data)));
  EXPECT_EQ(reply->stage_times.queue_us, 3);
  EXPECT_EQ(reply->stage_times.execute_us, 4);
}

TEST(DecodeRotateTest, WrongRepliesAreRefusedBeforeAnythingIsWritten) {
  const std::vector<float> data = {1, 2, 3, 4};
  std::vector<float> output(4, -1);
  RotateRequest request = RequestFor(data);
  request.tensors[0].output = output.data();

  v1::RotateResponse other_shape = ResponseFor(data);
  other_shape.mutable_tensors(0)->mutable_array()->set_shape(0, 4);
  v1::RotateResponse other_type = ResponseFor(data);
  other_type.mutable_tensors(0)->mutable_array()->set_dtype(v1::DTYPE_FP16);
  v1::RotateResponse too_long = ResponseFor(data);
  too_long.mutable_tensors(0)->mutable_array()->mutable_raw()->push_back('x');
  v1::RotateResponse no_bytes = ResponseFor(data);
  no_bytes.mutable_tensors(0)->mutable_array()->clear_raw();
  v1::RotateResponse two = ResponseFor(data);
  *two.add_tensors() = two.tensors(0);
  const std::string truncated = ResponseFor(data).SerializeAsString().substr(0, 20);

  for (const std::string& bytes :
       {other_shape.SerializeAsString(), other_type.SerializeAsString(),
        too_long.SerializeAsString(), no_bytes.SerializeAsString(), two.SerializeAsString(),
        truncated, std::string("garbage"), std::string()}) {
    const Result<RotateReply> reply = Decode(BufferOf(bytes), request);
    EXPECT_EQ(reply.status().code(), StatusCode::kInternal);
    EXPECT_EQ(reply.status().detail().reason, Reason::kInternal);
    EXPECT_THAT(reply.status().message(), HasSubstr("reply: "));
  }
  EXPECT_THAT(output, ElementsAre(-1, -1, -1, -1));
}

Result<ServingStatus> StatusIn(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return ServingStatusOf(grpc::ByteBuffer(&slice, 1));
}

TEST(HealthMessagesTest, EveryStatusOfTheSchemaIsRead) {
  const auto* numbers = HealthCheckResponse::ServingStatus_descriptor();
  ASSERT_EQ(numbers->value_count(), 4);
  for (int i = 0; i < numbers->value_count(); ++i) {
    HealthCheckResponse response;
    response.set_status(HealthCheckResponse::ServingStatus(numbers->value(i)->number()));
    ASSERT_OK(status, StatusIn(response.SerializeAsString()));
    const std::string& name = numbers->value(i)->name();
    EXPECT_EQ(Name(*status), name == "SERVICE_UNKNOWN" ? "UNKNOWN" : name);
  }
}

TEST(HealthMessagesTest, NumberWithoutANameIsUnknown) {
  EXPECT_EQ(*StatusIn("\x08\x63"), ServingStatus::kUnknown);
  EXPECT_EQ(*StatusIn("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), ServingStatus::kUnknown);
}

TEST(HealthMessagesTest, MalformedReplyIsInternal) {
  const std::string no_value = "\x08";
  const std::string two_of_five_bytes = "\x1a\x05xx";
  const std::string group = "\x0b";
  const std::string field_0("\x00\x01", 2);
  for (const std::string& bytes : {no_value, two_of_five_bytes, group, field_0}) {
    EXPECT_THAT(
        StatusIn(bytes),
        StatusIs(StatusCode::kInternal, HasSubstr("reply: got malformed bytes, want grpc.health")));
  }
}

TEST(ControlMessagesTest, FieldsThatNoRecordedRequestHas) {
  TablesRequest request;
  TableReposition& move = request.reposition.emplace();
  move.from_rope.emplace().model = "n";
  move.from_seq_len = 70;
  request.seq_len = 80;
  request.head_dim = 64;
  request.skip_attention_factor = true;
  request.role = Role::kK;
  const v1::GetTablesRequest message = ToMessage(request).value();
  EXPECT_EQ(message.reposition().from_rope().model(), "n");
  EXPECT_EQ(message.reposition().from_seq_len(), 70);
  EXPECT_EQ(message.seq_len(), 80);
  EXPECT_EQ(message.head_dim(), 64);
  EXPECT_TRUE(message.skip_attention_factor());
  EXPECT_EQ(message.role(), v1::ROLE_K);
}

TEST(ControlMessagesTest, TwoSourcesOfPositionsAreRefused) {
  TablesRequest request;
  request.positions = {.begin = 0, .end = 1, .position_ids = {5}};
  EXPECT_EQ(ToMessage(request).status().code(), StatusCode::kInvalidArgument);
  request.positions.end = 0;
  request.reposition.emplace().from = {.begin = 0, .end = 1, .position_ids = {5}};
  EXPECT_THAT(ToMessage(request).status().message(), HasSubstr("reposition.from: got a range"));
}

v1::GetTablesResponse WithTable(v1::DType dtype, const std::vector<int64_t>& shape, size_t bytes) {
  v1::GetTablesResponse message;
  v1::Array& table = *message.mutable_table();
  table.set_dtype(dtype);
  for (const int64_t length : shape) table.add_shape(length);
  table.set_raw(std::string(bytes, 'x'));
  return message;
}

TEST(ControlMessagesTest, ArrayThatDoesNotFitItsShapeIsAnError) {
  const v1::GetTablesResponse bad[] = {
      WithTable(v1::DTYPE_FP16, {2, 3}, 11), WithTable(v1::DTYPE_INT32, {1}, 4),
      WithTable(v1::DTYPE_FP32, {-1}, 0),
      WithTable(v1::DTYPE_FP64, {int64_t{1} << 40, int64_t{1} << 40}, 8)};
  for (const v1::GetTablesResponse& message : bad) {
    EXPECT_EQ(FromMessage(message).status().code(), StatusCode::kInternal);
  }
}

// A request whose arrays can be freed, as a caller may once RotateAsync has returned.
struct Caller {
  std::vector<float> data = std::vector<float>(8, 1.f);
  std::unique_ptr<std::vector<float>> cos = std::make_unique<std::vector<float>>(2, 0.5f);
  std::unique_ptr<std::vector<float>> sin = std::make_unique<std::vector<float>>(2, 0.25f);
  std::unique_ptr<std::vector<float>> weight = std::make_unique<std::vector<float>>(4, 2.f);
  RotateRequest request;

  Caller() {
    request.request_id = "mine";
    request.positions.start = 7;
    request.tensors = {{.layout = "SD", .shape = {2, 4}, .data = data.data()}};
  }
  void AddRows() {
    request.rows = Rows{.cos = ArrayView{.shape = {1, 2}, .data = cos->data()},
                        .sin = ArrayView{.shape = {1, 2}, .data = sin->data()}};
  }
  void AddNorm() {
    request.tensors[0].norm = HeadNorm{.eps = 1, .weight = {.shape = {4}, .data = weight->data()}};
  }
  void FreeArrays() {
    cos.reset();
    sin.reset();
    weight.reset();
  }
};

float First(const ArrayView& view) {
  return *static_cast<const float*>(view.data);
}

TEST(KeptRequestTest, RowsAndWeightsOutliveTheCallersRequest) {
  Caller caller;
  caller.AddRows();
  caller.AddNorm();
  const auto kept = Keep(caller.request, {}).value();
  caller.FreeArrays();
  caller.request = {};
  const RotateRequest& request = kept->request;
  EXPECT_EQ(request.request_id, "mine");
  EXPECT_EQ(request.positions.start, 7);
  EXPECT_EQ(request.tensors[0].data, caller.data.data());
  EXPECT_EQ(First(*request.rows->cos), 0.5f);
  EXPECT_EQ(First(*request.rows->sin), 0.25f);
  EXPECT_EQ(First(request.tensors[0].norm->weight), 2.f);
}

TEST(KeptRequestTest, RowsInTheRegionAreBorrowed) {
  Caller caller;
  caller.AddRows();
  const Region process = {.ids = std::make_shared<RegionIds>(7),
                          .process_outputs = std::make_shared<OutputPool>(0)};
  const auto kept = Keep(caller.request, process).value();
  EXPECT_EQ(kept->request.rows->cos->data, caller.cos->data());
}

v1::RopeSpec MessageOf(const RopeSpec& spec) {
  return ToMessage(DescribeRequest{.rope = spec}).value().rope();
}

TEST(MessagesTest, TwoSourcesAreRefusedByName) {
  const TableReposition reposition = {.from_rope = RopeSpec{.model = "m", .config = RopeConfig{}}};
  EXPECT_EQ(ToMessage(TablesRequest{.reposition = reposition}).status().message(),
            "reposition.from_rope: got model and config, want exactly one of model, config_id, "
            "config, config_json");
  const DescribeRequest request = {.rope = {.config_id = "1", .config_json = "{}"}};
  EXPECT_EQ(ToMessage(request).status().code(), StatusCode::kInvalidArgument);
}

TEST(MessagesTest, PrecisionOfTheConfigIsSentUnlessTheSpecHasAnother) {
  RopeSpec spec = {.config = RopeConfig{.head_dim = 64, .precision = Precision::kHf}};
  EXPECT_EQ(MessageOf(spec).config().head_dim(), 64);
  EXPECT_EQ(MessageOf(spec).precision(), v1::PRECISION_HF);
  spec.precision = Precision::kExact;
  EXPECT_EQ(MessageOf(spec).precision(), v1::PRECISION_EXACT);
  EXPECT_EQ(MessageOf({.config = RopeConfig{}}).precision(), v1::PRECISION_UNSPECIFIED);
}

TEST(MessagesTest, ReplyWithAConfigOfAnUnknownTypeIsInternal) {
  v1::DescribeResponse response;
  response.mutable_config()->set_rope_type("spiral");
  EXPECT_THAT(FromMessage(response),
              StatusIs(StatusCode::kInternal,
                       StartsWith("reply: config.rope_type: got \"spiral\", want one of")));
}

RotateRequest RequestToPrepare() {
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
  RotateRequest request = RequestToPrepare();
  request.tensors[0].norm = HeadNorm{.eps = 1, .weight = {.shape = {2}, .data = weight.data()}};
  const auto preparation = Preparation::Create(request).value();
  const std::vector<float> before = weight;
  weight = {7, 8};
  EXPECT_EQ(preparation->message().rotate().tensors(0).norm().weight().raw(),
            std::string(reinterpret_cast<const char*>(before.data()), 8));
}

TEST(PreparationTest, AShapeWithoutASizeIsRefused) {
  RotateRequest request = RequestToPrepare();
  request.tensors[1].shape = {2, -1, 2};
  EXPECT_EQ(Preparation::Create(request).status().message(),
            "tensors[1].array.shape[1]: got -1, want a length >= 0");
  RotateRequest call{.prepared = RotationOf(RequestToPrepare(), "S").WithLength(-1)};
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
    RotateRequest call{.prepared = RotationOf(RequestToPrepare()), .positions = {.start = 3}};
    call.tensors.resize(2);
    change(call);
    EXPECT_THAT(CheckPreparedCall(call).message(), StartsWith(field));
  }
}

TEST(PreparedCallTest, RowsAreThosePrepared) {
  const std::vector<float> table(4);
  RotateRequest request = RequestToPrepare();
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
  RotateRequest request = RequestToPrepare();
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

TEST(PreparedCallTest, StridesOfACallAreSent) {
  const std::vector<float> data(32);
  RotateRequest call{.prepared = RotationOf(RequestToPrepare()), .positions = {.start = 3}};
  call.tensors = {{.data = data.data(), .strides = {16, 4, 1}}, {.data = data.data()}};
  BorrowedSlices borrowed;
  ASSERT_OK(encoded, EncodeRotate(call, {}, Route::kRpc, borrowed));
  v1::RotateRequest message;
  ASSERT_TRUE(message.ParseFromString(BytesOf(encoded->message)));
  EXPECT_THAT(message.tensors(0).array().strides(), ElementsAre(16, 4, 1));
  EXPECT_EQ(message.rope().model(), "m") << "a whole request";
}

TEST(ReadPreparedTest, AnAnswerWithoutAnIdIsUnreadable) {
  EXPECT_EQ(ReadPrepared(nullptr, client::BytesOf(v1::PrepareResponse())).status().code(),
            StatusCode::kInternal);
}

TEST(StatusTest, NumberThatGrpcLacksIsUnknown) {
  EXPECT_STREQ(Name(static_cast<StatusCode>(99)), "UNKNOWN");
}

TEST(ResultTest, ValueOfAnErrorThrowsAndSaysWhatFailed) {
  Result<int> result = Status(StatusCode::kInternal, "broken", {.reason = Reason::kInternal});
  EXPECT_FALSE(result.ok());
  try {
    static_cast<void>(*result);
    FAIL() << "no exception";
  } catch (const BadResult& error) {
    EXPECT_STREQ(error.what(), "rope::Result without a value: INTERNAL: broken");
    EXPECT_EQ(error.status().detail().reason, Reason::kInternal);
  }
}

}  // namespace
}  // namespace rope::client
