#include "client/codec/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/ipc/process_memory.h"
#include "proto/wire/message_split.h"
#include "rope/v1/rotate.pb.h"
#include "tests/support/byte_buffer.h"
#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

using ::rope::testing::BytesOf;

// A buffer cut into slices of at most `slice_bytes`, as received messages are.
grpc::ByteBuffer BufferOf(const std::string& bytes, size_t slice_bytes = 1 << 16) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += slice_bytes) {
    slices.emplace_back(bytes.substr(at, slice_bytes));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

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
  return reply->ToReply(std::move(wanted), *OutputPool::Make(0));
}

Result<RotateReply> Decode(const grpc::ByteBuffer& buffer, const RotateRequest& request) {
  return Decode(buffer, WantedBy(request));
}

v1::RotateResponse ResponseFor(const std::vector<float>& data) {
  v1::RotateResponse response;
  response.set_attention_factor(1.25);
  response.set_attention_factor_applied(true);
  response.set_device("cpu");
  response.mutable_stage_times()->set_execute_us(4);
  response.add_warnings("careful");
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

TEST(EncodeRotateTest, MessageHoldsWhatWasAsked) {
  const std::vector<float> data = {1, 2, 3, 4};
  RotateRequest request = RequestFor(data);
  request.request_id = "id";
  request.operation = Operation::kInverse;
  request.skip_attention_factor = true;
  const v1::RotateRequest message = Encoded(request);
  EXPECT_EQ(message.request_id(), "id");
  EXPECT_EQ(message.rope().model(), "m");
  EXPECT_EQ(message.positions().start(), 3);
  EXPECT_EQ(message.operation(), v1::OPERATION_INVERSE);
  EXPECT_TRUE(message.skip_attention_factor());
  ASSERT_EQ(message.tensors_size(), 1);
  const v1::Tensor& tensor = message.tensors(0);
  EXPECT_EQ(tensor.role(), v1::ROLE_K);
  EXPECT_EQ(tensor.layout(), "TD");
  EXPECT_EQ(tensor.array().dtype(), v1::DTYPE_FP32);
  EXPECT_THAT(tensor.array().shape(), ElementsAre(2, 2));
  ASSERT_EQ(tensor.array().raw().size(), 16u);
  EXPECT_EQ(std::memcmp(tensor.array().raw().data(), data.data(), 16), 0);
}

TEST(EncodeRotateTest, EveryWayToSayPositions) {
  RotateRequest request;
  request.positions = {.starts = {5, 6}};
  v1::Positions positions = Encoded(request).positions();
  EXPECT_FALSE(positions.has_start());
  EXPECT_EQ(positions.starts().dtype(), v1::DTYPE_INT64);
  EXPECT_THAT(positions.starts().shape(), ElementsAre(2));
  request.positions = {.position_ids = {7, 8, 9},
                       .position_ids_shape = {3, 1},
                       .cu_seqlens = {0, 1},
                       .seq_lens = {10}};
  positions = Encoded(request).positions();
  EXPECT_THAT(positions.position_ids().shape(), ElementsAre(3, 1));
  EXPECT_EQ(positions.position_ids().raw().size(), 24u);
  EXPECT_EQ(positions.position_ids().raw()[0], 7);
  EXPECT_THAT(positions.cu_seqlens().shape(), ElementsAre(2));
  EXPECT_THAT(positions.seq_lens(), ElementsAre(10));
}

TEST(EncodeRotateTest, TwoSourcesOfPositionsAreRefusedByName) {
  RotateRequest request;
  request.positions = {.start = 0, .starts = {5, 6}};
  BorrowedSlices borrowed;
  EXPECT_EQ(EncodeWhole(request, {}, Route::kRpc, borrowed).status().message(),
            "positions: got start and starts, want exactly one of start, starts, position_ids");
  request.positions = {.start = 0};
  request.reposition = Reposition{.from = {.starts = {1}, .position_ids = {2}}};
  EXPECT_EQ(EncodeWhole(request, {}, Route::kRpc, borrowed).status().message(),
            "reposition.from: got starts and position_ids, want exactly one of start, starts, "
            "position_ids");
}

TEST(EncodeRotateTest, RepositionContextParallelAndHeadRangesGoAsTheyAre) {
  std::vector<float> data(2);
  RotateRequest request;
  request.operation = Operation::kReposition;
  request.positions = {.start = 5, .cp_size = 4, .cp_rank = 0};
  request.reposition = {.from = {.start = 9}, .from_rope = RopeSpec{.model = "m"}};
  request.tensors = {{.layout = "TD",
                      .shape = {1, 2},
                      .data = data.data(),
                      .head_ranges = {{Role::kQ, 0, 1}, {std::nullopt, 1, 2}, {Role::kK, 2, 3}}}};
  const v1::RotateRequest message = Encoded(request);
  EXPECT_EQ(message.operation(), v1::OPERATION_REPOSITION);
  EXPECT_EQ(message.positions().cp_size(), 4);
  EXPECT_TRUE(message.positions().has_cp_rank());
  EXPECT_EQ(message.reposition().from().start(), 9);
  EXPECT_EQ(message.reposition().from_rope().model(), "m");
  const v1::Tensor& tensor = message.tensors(0);
  EXPECT_EQ(tensor.role(), v1::ROLE_UNSPECIFIED);
  ASSERT_EQ(tensor.head_ranges_size(), 3);
  EXPECT_EQ(tensor.head_ranges(0).role(), v1::ROLE_Q);
  EXPECT_EQ(tensor.head_ranges(1).role(), v1::ROLE_UNSPECIFIED);
  EXPECT_EQ(tensor.head_ranges(2).begin(), 2);
  EXPECT_EQ(tensor.head_ranges(2).end(), 3);
}

TEST(EncodeRotateTest, RowsOutputsAndWhatIsBesideTheRotationGoAsTheyAre) {
  const std::vector<float> data(4);
  const std::vector<double> cos = {0.25, 0.5};
  const std::vector<uint16_t> sin = {1, 2};
  const std::vector<float> weight = {3, 4};
  RotateRequest request = RequestFor(data);
  request.positions = {};
  request.rope.precision = Precision::kHf;
  request.rows = {.cos = ArrayView{DType::kFloat64, {2, 1}, cos.data()},
                  .sin = ArrayView{DType::kBFloat16, {2, 1}, sin.data()}};
  request.output_dtype = DType::kFloat8E5M2;
  request.tensors[0].norm = {.eps = 1e-6, .weight = {.shape = {2}, .data = weight.data()}};
  request.tensors[0].scale = 0.5;
  request.tensors[0].llama4_scaling_beta = 0.1;
  request.tensors[0].fp8_scale = 2;
  request.tensors[0].rotary_offset = 512;
  request.labels = {{"pod", "a"}};
  request.tensors[0].output_layout = "TD";
  request.tensors.push_back({.layout = "TD", .shape = {2, 2}, .data = data.data()});
  const v1::RotateRequest message = Encoded(request);
  EXPECT_FALSE(message.has_positions());
  EXPECT_EQ(message.rope().precision(), v1::PRECISION_HF);
  EXPECT_EQ(message.rows().cos().dtype(), v1::DTYPE_FP64);
  EXPECT_THAT(message.rows().cos().shape(), ElementsAre(2, 1));
  EXPECT_EQ(std::memcmp(message.rows().cos().raw().data(), cos.data(), 16), 0);
  EXPECT_EQ(message.rows().sin().dtype(), v1::DTYPE_BF16);
  EXPECT_EQ(message.rows().sin().raw().size(), 4u);
  EXPECT_FALSE(message.rows().has_angles());
  EXPECT_EQ(message.output().dtype(), v1::DTYPE_FP8_E5M2);
  EXPECT_THAT(message.output().layouts(), ElementsAre("TD", "TD"));
  const v1::Tensor& tensor = message.tensors(0);
  EXPECT_EQ(tensor.norm().eps(), 1e-6);
  EXPECT_THAT(tensor.norm().weight().shape(), ElementsAre(2));
  EXPECT_EQ(std::memcmp(tensor.norm().weight().raw().data(), weight.data(), 8), 0);
  EXPECT_EQ(tensor.scale(), 0.5);
  EXPECT_EQ(tensor.llama4_scaling_beta(), 0.1);
  EXPECT_EQ(tensor.fp8_scales(0), 2);
  EXPECT_EQ(tensor.rotary_offset(), 512);
  EXPECT_EQ(message.labels().at("pod"), "a");
  EXPECT_FALSE(message.tensors(1).has_scale());
  EXPECT_FALSE(message.tensors(1).has_norm());
}

TEST(EncodeRotateTest, MoveByATableAndADifference) {
  const std::vector<float> data(4);
  const std::vector<uint16_t> table(12);
  RotateRequest request = RequestFor(data);
  request.positions = {};
  request.operation = Operation::kReposition;
  request.reposition = Reposition{.by = {-3, 4}, .by_shape = {1, 2}};
  request.rows = {.cos_sin = ArrayView{DType::kBFloat16, {6, 2}, table.data()}};
  v1::RotateRequest message = Encoded(request);
  EXPECT_FALSE(message.reposition().has_from());
  EXPECT_EQ(message.reposition().by().dtype(), v1::DTYPE_INT64);
  EXPECT_THAT(message.reposition().by().shape(), ElementsAre(1, 2));
  EXPECT_EQ(message.reposition().by().raw().size(), 16u);
  EXPECT_THAT(message.rows().cos_sin().shape(), ElementsAre(6, 2));
  EXPECT_EQ(message.rows().cos_sin().raw().size(), 24u);
  request.rows = {.cos = ArrayView{DType::kBFloat16, {6, 1}, table.data(), {2, 1}},
                  .sin = ArrayView{DType::kBFloat16, {6, 1}, table.data() + 1, {2, 1}}};
  message = Encoded(request);
  EXPECT_THAT(message.rows().sin().strides(), ElementsAre(2, 1));
  EXPECT_EQ(message.rows().sin().raw().size(), 22u);  // from the first element to the last
}

TEST(EncodeRotateTest, StridedTensorGoesFromItsFirstElementToItsLast) {
  const std::vector<float> data = {1, 2, -1, -1, 3, 4};
  RotateRequest request = RequestFor(data);
  request.tensors[0].shape = {2, 2};
  request.tensors[0].strides = {4, 1};
  const v1::RotateRequest message = Encoded(request);
  EXPECT_THAT(message.tensors(0).array().strides(), ElementsAre(4, 1));
  ASSERT_EQ(message.tensors(0).array().raw().size(), 24u);
  EXPECT_EQ(std::memcmp(message.tensors(0).array().raw().data(), data.data(), 24), 0);

  request.tensors[0].shape = {0, 2};
  EXPECT_TRUE(Encoded(request).tensors(0).array().raw().empty());
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
    BorrowedSlices borrowed;
    const Status status = EncodeWhole(request, {}, Route::kRpc, borrowed).status();
    EXPECT_EQ(status.message(),
              is_legal ? ""
                       : "output of tensors[1]: got a place that overlaps the output of "
                         "tensors[0], want one of its own");
  }
}

TEST(EncodeRotateTest, NoTokensIsLegal) {
  RotateRequest request = RequestFor({});
  request.positions = {.position_ids_shape = {0}};
  const v1::RotateRequest message = Encoded(request);
  EXPECT_TRUE(message.tensors(0).array().raw().empty());
  EXPECT_TRUE(message.positions().has_position_ids());
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

// A tensor without elements has no place in the region, so all results come in the message.
TEST_F(StagingTest, TensorWithoutElementsBesideAStagedOneIsLegal) {
  RotateRequest request = RequestFor(data());
  request.tensors.push_back(request.tensors[0]);
  request.tensors[1].shape = {0, 2};
  const v1::RotateRequest message = Encode(request);
  EXPECT_TRUE(message.tensors(0).array().has_region());
  EXPECT_FALSE(message.tensors(1).array().has_region());
  EXPECT_EQ(message.output().regions_size(), 0);
  EXPECT_EQ((*encoded_)->wanted[0].staged, nullptr);
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

TEST_F(PagesTest, PoolIsNamedByItsPageZero) {
  const auto encoded = EncodeWhole(request_, region_, Route::kRing, borrowed_);
  const v1::RotateRequest message = Sent(encoded);
  EXPECT_FALSE(encoded->idempotent);
  const v1::Tensor& tensor = message.tensors(0);
  EXPECT_THAT(tensor.array().shape(), ElementsAre(2, 1, 1, 4));
  EXPECT_EQ(tensor.array().region().offset(), OffsetOf(pool_));
  EXPECT_EQ(message.output().regions(0).offset(), OffsetOf(pool_));
  const v1::PagedTokens& paged = tensor.paged_tokens();
  EXPECT_EQ(paged.block_size(), 2);
  EXPECT_EQ(paged.page_stride(), 8);
  EXPECT_EQ(paged.token_stride(), 4);
  EXPECT_EQ(paged.head_stride(), 4);
  EXPECT_EQ(paged.pool_elements(), 32);
  EXPECT_EQ(paged.slots().dtype(), v1::DTYPE_INT64);
  EXPECT_THAT(paged.slots().shape(), ElementsAre(2, 1));
  EXPECT_EQ(paged.slots().raw()[0], 6);
  EXPECT_FALSE(paged.has_pages());
  EXPECT_FALSE(paged.has_target_slots());
}

// Layers in turn in one pool, whose results go to another one.
TEST_F(PagesTest, PoolsMayOverlap) {
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
  request_.tensors[0].paged->pool_elements = 0;
  EXPECT_THAT(Refusal(region_).message(), StartsWith("tensors[0].paged_tokens.pool_elements: got"));
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

// In process a request is a message with addresses.
class InProcessTest : public ::testing::Test {
 protected:
  static uint64_t AddressOf(const void* data) {
    return static_cast<uint64_t>(proto::ProcessMemoryOffset(data));
  }
  EncodedRotate Encode(const RotateRequest& request) {
    Result<EncodedRotate> encoded = EncodeWhole(request, region_, Route::kInProcess, borrowed_);
    EXPECT_TRUE(encoded.ok()) << encoded.status().ToString();
    return *std::move(encoded);
  }

  const Region region_ = {.ids = std::make_shared<RegionIds>(7),
                          .process_outputs = OutputPool::Make(0)};
  BorrowedSlices borrowed_;
  std::vector<float> data_ = {1, 2, 3, 4};
};

TEST_F(InProcessTest, ElementsOfAWholeRequestArePayloads) {
  const std::vector<float> weight = {3, 4};
  RotateRequest request = RequestFor(data_);
  request.request_id = "mine";
  request.positions = {.position_ids = {7, 8}};
  request.rows = {.angles = ArrayView{.shape = {2, 1}, .data = weight.data()}};
  request.tensors[0].norm = {.eps = 1e-6, .weight = {.shape = {2}, .data = weight.data()}};
  const EncodedRotate encoded = Encode(request);
  ASSERT_TRUE(encoded.call.has_value());
  const v1::RotateRequest& head = *encoded.call->head;
  EXPECT_EQ(head.request_id(), "mine");
  EXPECT_EQ(head.rope().model(), "m");
  EXPECT_EQ(head.rows().angles().region().offset(), AddressOf(weight.data()));
  ASSERT_EQ(head.tensors_size(), 1);
  EXPECT_EQ(head.tensors(0).array().region().region_id(), 7u);
  EXPECT_EQ(head.tensors(0).array().region().offset(), AddressOf(data_.data()));
  ASSERT_NE(encoded.owned[0], nullptr);
  EXPECT_EQ(head.output().regions(0).offset(), AddressOf(encoded.owned[0].get()));
  EXPECT_EQ(encoded.wanted[0].output, encoded.owned[0].get());
  std::vector<int64_t> positions(2);
  proto::PayloadOf(head.positions().position_ids(), encoded.call->split).CopyTo(positions.data());
  EXPECT_THAT(positions, ElementsAre(7, 8));
  std::vector<float> factors(2);
  proto::PayloadOf(head.tensors(0).norm().weight(), encoded.call->split).CopyTo(factors.data());
  EXPECT_EQ(factors, weight);
}

TEST_F(InProcessTest, ResultThatWouldOverwriteAnInputIsStaged) {
  RotateRequest request = RequestFor(data_);
  request.output_dtype = DType::kBFloat16;
  request.tensors[0].output = data_.data();
  EncodedRotate encoded = Encode(request);
  EXPECT_EQ(encoded.call->head->output().regions(0).offset(), AddressOf(encoded.owned[0].get()));
  const std::vector<uint16_t> rotated = {5, 6, 7, 8};
  std::memcpy(encoded.owned[0].get(), rotated.data(), 8);
  const RotatedTensor tensor = ResultOf(std::move(encoded.wanted[0]));
  EXPECT_EQ(tensor.data, data_.data());
  EXPECT_EQ(std::memcmp(data_.data(), rotated.data(), 8), 0);
}

TEST(EncodeRotateTest, BadTensorsAreRefusedByName) {
  const std::vector<float> data(4);
  const auto message_for = [&](const std::vector<int64_t>& shape, const void* memory,
                               const std::vector<int64_t>& strides = {}) {
    RotateRequest request = RequestFor(data);
    request.tensors[0].shape = shape;
    request.tensors[0].data = memory;
    request.tensors[0].strides = strides;
    BorrowedSlices borrowed;
    const Result<EncodedRotate> buffer = EncodeWhole(request, {}, Route::kRpc, borrowed);
    EXPECT_EQ(buffer.status().code(), StatusCode::kInvalidArgument);
    return buffer.status().message();
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
  const auto message_of = [](const RotateRequest& request) {
    BorrowedSlices borrowed;
    const Result<EncodedRotate> encoded = EncodeWhole(request, {}, Route::kRpc, borrowed);
    EXPECT_EQ(encoded.status().code(), StatusCode::kInvalidArgument);
    return encoded.status().message();
  };
  RotateRequest request = RequestFor(data);
  request.rows = {.angles = ArrayView{.shape = {2, 1}}};
  EXPECT_EQ(message_of(request), "rows.angles.data: got null, want 8 bytes");
  request.rows = {.cos = ArrayView{.shape = {-1}}};
  EXPECT_EQ(message_of(request), "rows.cos.shape[0]: got -1, want a length >= 0");
  request.rows = {.sin = ArrayView{.shape = {1}}};
  EXPECT_EQ(message_of(request), "rows.sin.data: got null, want 4 bytes");
  request.rows.reset();
  request.tensors[0].norm = HeadNorm{.weight = {.shape = {2}}};
  EXPECT_EQ(message_of(request), "tensors[0].norm.weight.data: got null, want 8 bytes");
}

TEST(DecodeRotateTest, ReplyOwnsWhatHasNoOutput) {
  const std::vector<float> rotated = {5, 6, 7, 8};
  const RotateRequest request = RequestFor(rotated);
  ASSERT_OK(reply, Decode(BufferOf(ResponseFor(rotated).SerializeAsString(), 3), request));
  EXPECT_EQ(reply->attention_factor, 1.25);
  EXPECT_TRUE(reply->attention_factor_applied);
  EXPECT_EQ(reply->device, "cpu");
  EXPECT_EQ(reply->stage_times.execute_us, 4);
  EXPECT_THAT(reply->warnings, ElementsAre("careful"));
  ASSERT_EQ(reply->tensors.size(), 1u);
  const RotatedTensor& tensor = reply->tensors[0];
  EXPECT_EQ(tensor.role, Role::kK);
  EXPECT_EQ(tensor.layout, "TD");
  EXPECT_EQ(tensor.bytes, 16);
  EXPECT_EQ(tensor.data, tensor.owned.get());
  EXPECT_EQ(std::memcmp(tensor.data, rotated.data(), 16), 0);
}

TEST(DecodeRotateTest, OutputIsWrittenInPlace) {
  const std::vector<float> rotated = {5, 6, 7, 8};
  std::vector<float> output(4);
  RotateRequest request = RequestFor(rotated);
  request.tensors[0].output = output.data();
  ASSERT_OK(reply, Decode(BufferOf(ResponseFor(rotated).SerializeAsString(), 5), request));
  EXPECT_EQ(output, rotated);
  EXPECT_EQ(reply->tensors[0].data, output.data());
  EXPECT_EQ(reply->tensors[0].owned, nullptr);
}

TEST(DecodeRotateTest, AnswerHasTheLayoutAndTypeThatWereAskedFor) {
  const std::vector<float> data(12);
  RotateRequest request = RequestFor({});
  request.output_dtype = DType::kFloat8E4M3;
  request.tensors[0].layout = "SHD";
  request.tensors[0].shape = {3, 2, 2};
  request.tensors[0].data = data.data();
  request.tensors[0].output_layout = "HSD";
  v1::RotateResponse response;
  v1::Tensor& tensor = *response.add_tensors();
  tensor.add_fp8_scales(0.5);
  tensor.set_saturated(3);
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP8_E4M3);
  for (const int64_t length : {2, 3, 2}) tensor.mutable_array()->add_shape(length);
  tensor.mutable_array()->set_raw("abcdefghijkl");
  ASSERT_OK(reply, Decode(BufferOf(response.SerializeAsString(), 5), request));
  EXPECT_EQ(reply->tensors[0].layout, "HSD");
  EXPECT_EQ(reply->tensors[0].dtype, DType::kFloat8E4M3);
  EXPECT_THAT(reply->tensors[0].shape, ElementsAre(2, 3, 2));
  EXPECT_EQ(reply->tensors[0].fp8_scale, 0.5);
  EXPECT_EQ(reply->tensors[0].saturated, 3);
  EXPECT_EQ(reply->tensors[0].bytes, 12);

  request.tensors[0].output_layout.clear();  // now the result has another shape
  EXPECT_EQ(Decode(BufferOf(response.SerializeAsString()), request).status().code(),
            StatusCode::kInternal);
}

TEST(DecodeRotateTest, FieldOfANewerServerIsSkipped) {
  std::string bytes = ResponseFor({1, 2}).SerializeAsString();
  bytes += "\xd8\x3e\x01";  // unknown field 1003, a varint
  EXPECT_TRUE(Decode(BufferOf(bytes), RequestFor({1, 2})).ok());
}

TEST(DecodeRotateTest, ErrorInTheReplyIsTheStatus) {
  v1::RotateResponse response;
  response.mutable_error()->set_code(11);
  response.mutable_error()->set_message("positions.start: got 9, want 8");
  response.mutable_error()->set_field("positions.start");
  response.mutable_error()->set_may_have_executed(true);
  const Result<RotateReply> reply =
      Decode(BufferOf(response.SerializeAsString()), RequestFor({1, 2}));
  EXPECT_EQ(reply.status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(reply.status().detail().field, "positions.start");
  EXPECT_TRUE(reply.status().detail().may_have_executed);
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
  const std::string truncated = ResponseFor(data).SerializeAsString().substr(0, 30);

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

}  // namespace
}  // namespace rope::client
