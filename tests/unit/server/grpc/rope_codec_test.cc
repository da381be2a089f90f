// Messages and errors on the wire.
#include "server/grpc/rope_codec.h"

#include <gmock/gmock.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <cstring>

#include "proto/error.h"
#include "server/engine/engine.h"
#include "server/error.h"
#include "server/grpc/grpc_status.h"
#include "server/limits.h"
#include "tests/support/received_request.h"
#include "tests/support/status_matchers.h"
#include "tests/support/wire_answer.h"

namespace rope::server {
namespace {

using ::rope::testing::BytesOf;
using ::rope::testing::CutIntoPieces;
using ::rope::testing::RawBytes;
using ::rope::testing::SetShape;
using ::rope::testing::ViewsOf;
using ::testing::_;

grpc::ByteBuffer BufferOf(const std::string& bytes, size_t piece = size_t{1} << 30) {
  const std::vector<std::string> pieces = CutIntoPieces(bytes, piece);
  return rope::testing::BufferOf(ViewsOf(pieces));
}

v1::Tensor& AddTensor(v1::RotateRequest& request, int64_t elements) {
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_K);
  tensor.set_layout("D");
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
  SetShape(*tensor.mutable_array(), {elements});
  return tensor;
}

// The payload of the only tensor.
std::string PayloadIn(const Decoded& decoded) {
  EXPECT_EQ(decoded.message().tensors_size(), 1);
  const auto& payload = proto::PayloadOf(decoded.message().tensors(0).array(), decoded.split);
  std::string bytes(static_cast<size_t>(payload.bytes), 0);
  payload.CopyTo(bytes.data());
  return bytes;
}

absl::StatusOr<Decoded> Decode(const std::string& bytes, Arrival& arrival, size_t piece = 1000) {
  grpc::ByteBuffer buffer = BufferOf(bytes, piece);
  return DecodeRequest(buffer, limits::kMiB, arrival);
}

std::unique_ptr<Request> RequestOf(const v1::RotateRequest& sent, size_t piece = 1000) {
  Arrival arrival;
  absl::StatusOr<Decoded> decoded = Decode(sent.SerializeAsString(), arrival, piece);
  EXPECT_THAT(decoded, IsOk());
  return std::make_unique<Request>(std::move(arrival), *std::move(decoded));
}

// malloc caches no larger blocks per thread, and each call allocates one of them.
TEST(RequestTest, IsSmallEnoughForTheListsOfAThread) {
  constexpr size_t kListedBytesMax = 1032;
  EXPECT_LE(sizeof(Request), kListedBytesMax);
}

// A decoded request in the state after its run: every output element is `value`.
std::unique_ptr<Request> Finished(const v1::RotateRequest& sent, BufferPool& pool, float value) {
  std::unique_ptr<Request> request = RequestOf(sent);
  for (const v1::Tensor& tensor : request->call().tensors()) {
    TensorPlan& plan = request->plan.tensors.emplace_back();
    plan.layout.head_dim = tensor.array().shape(0);
    plan.output_letters = "D";
    plan.numbers = !CameAsBytes(tensor.array());
    const auto count = static_cast<size_t>(tensor.array().shape(0));
    request->run.outputs.push_back(pool.Allocate(plan.output_bytes()));
    const std::string bytes = RawBytes(std::vector<float>(count, value));
    if (count > 0) std::memcpy(request->run.outputs.back().data(), bytes.data(), bytes.size());
  }
  return request;
}

TEST(DecodeRequestTest, ManySmallSlicesBecomeOne) {
  v1::RotateRequest sent;
  AddTensor(sent, 3).mutable_array()->set_raw(std::string(10'000, 'x'));
  Arrival arrival;
  const auto fragments = [&](size_t piece) {
    const auto decoded = Decode(sent.SerializeAsString(), arrival, piece);
    EXPECT_THAT(decoded, IsOk());
    EXPECT_EQ(PayloadIn(*decoded), std::string(10'000, 'x'));
    return proto::PayloadOf(decoded->message().tensors(0).array(), decoded->split).fragments.size();
  };
  EXPECT_EQ(fragments(1), 1U);
  EXPECT_EQ(fragments(1000), 1U);
  EXPECT_EQ(fragments(1448), 7U) << "packets of a network";
}

TEST(DecodeRequestTest, LongIdIsNotTakenIntoLogs) {
  v1::RotateRequest sent;
  sent.set_request_id(std::string(129, 'x'));
  Arrival arrival;
  EXPECT_THAT(Decode(sent.SerializeAsString(), arrival), IsOk());
  EXPECT_EQ(arrival.id, "");
}

// A message of a hundred million fields would take seconds.
TEST(DecodeRequestTest, IdOfARefusedMessageIsLookedForInItsFirstFields) {
  const std::string unknown = "\xf8\x7f\x01";  // field 2047
  const std::string id = "\x0a\x04mine";
  for (const int fields : {1000, 2000}) {
    std::string bytes;
    for (int i = 0; i < fields; ++i) bytes += unknown;
    Arrival arrival;
    EXPECT_THAT(Decode(bytes + id, arrival), StatusIs(absl::StatusCode::kUnimplemented, _));
    EXPECT_EQ(arrival.id, fields == 1000 ? "mine" : "");
  }
}

TEST(DecodeSmallRequestTest, RequestKeepsWhatItsPayloadsReferTo) {
  v1::RotateRequest sent;
  sent.set_request_id("mine");
  AddTensor(sent, 3).mutable_array()->set_raw("twelve bytes");
  Arrival arrival;
  ASSERT_OK(decoded, DecodeSmallRequest(sent.SerializeAsString(), arrival));
  EXPECT_EQ(arrival.id, "mine");
  EXPECT_EQ(PayloadIn(*decoded), "twelve bytes");
  EXPECT_EQ(decoded->bytes->Overwritable(decoded->split.payloads[0].fragments[0]), nullptr)
      << "a reply through a ring cannot send the bytes";
}

TEST(EncodeReplyTest, ResultsOverReceivedBytesAreSentFromThereAndOutliveTheirRequest) {
  v1::RotateRequest sent;
  AddTensor(sent, 30).mutable_array()->set_raw(std::string(120, '?'));
  grpc::ByteBuffer reply;
  {
    const std::unique_ptr<Request> owner = RequestOf(sent, 50);
    Request& request = *owner;
    TensorPlan& plan = request.plan.tensors.emplace_back();
    plan.layout.head_dim = 30;
    plan.output_letters = "D";
    plan.input = proto::PayloadOf(request.call().tensors(0).array(), request.decoded.split);
    request.run.outputs.emplace_back();
    for (const std::string_view fragment : plan.input.fragments) {
      char* const place = request.decoded.bytes->Overwritable(fragment);
      ASSERT_EQ(place, fragment.data());
      std::memset(place, '!', fragment.size());
      plan.overwritten.push_back(place);
    }
    reply = EncodeReply(request);
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(reply.Dump(&slices).ok());
    ASSERT_EQ(slices.size(), 1 + plan.input.fragments.size());
    EXPECT_EQ(static_cast<const void*>(slices[1].begin()), plan.input.fragments[0].data());
  }
  v1::RotateResponse response;
  ASSERT_TRUE(response.ParseFromString(BytesOf(reply)));
  EXPECT_EQ(response.tensors(0).array().raw(), std::string(120, '!'));
}

TEST(EncodeReplyTest, RawBytesAreThePooledBuffersThemselves) {
  BufferPool pool(1 << 20);
  v1::RotateRequest sent;
  AddTensor(sent, 256).mutable_array()->set_raw(std::string(1024, 'x'));
  auto request = Finished(sent, pool, 1);
  const char* const data = request->run.outputs[0].data();
  request->stages.queue = 7;
  grpc::ByteBuffer reply = EncodeReply(*request);
  request.reset();
  EXPECT_EQ(pool.kept_bytes(), 0);  // the reply owns it now
  {
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(reply.Dump(&slices).ok());
    bool found = false;
    for (const grpc::Slice& slice : slices) {
      found = found || reinterpret_cast<const char*>(slice.begin()) == data;
    }
    EXPECT_TRUE(found);
  }
  v1::RotateResponse response;
  ASSERT_TRUE(response.ParseFromString(BytesOf(reply)));
  EXPECT_EQ(response.stage_times().queue_us(), 7);
  reply.Clear();
  EXPECT_EQ(pool.kept_bytes(), 4096);
}

TEST(EncodeSmallReplyTest, IsTheReplyInOnePieceAndWithinItsBound) {
  BufferPool pool(0);
  v1::RotateRequest sent;
  AddTensor(sent, 3).mutable_array()->set_raw(std::string(12, 'r'));
  v1::Array& typed = *AddTensor(sent, 2).mutable_array();
  for (const double number : {1, 2}) typed.add_numbers(number);
  AddTensor(sent, 0);
  AddTensor(sent, 5).mutable_array()->set_raw(std::string(20, 'r'));
  const std::string whole = BytesOf(EncodeReply(*Finished(sent, pool, 0.5F)));
  const auto request = Finished(sent, pool, 0.5F);
  EXPECT_EQ(EncodeSmallReply(*request), whole);
  EXPECT_LE(static_cast<int64_t>(whole.size()),
            ReplyBytes(request->plan) + ReplyTextBytesMax(*request));
}

// A character that no header may hold has three in a percent-encoded text.
TEST(GrpcStatusTest, LongErrorsFitIntoTrailers) {
  grpc::ServerContext context;
  const std::string longest(1 << 20, '\x01');
  proto::ErrorParts parts = {.field = longest,
                             .got = longest,
                             .want = longest,
                             .retry_delay_ms = INT64_MAX,
                             .may_have_executed = true,
                             .reason = Reason::kPositionOutOfRange};
  const grpc::Status status = ToGrpcStatus(MakeError(parts), context);
  EXPECT_LE(static_cast<int64_t>(status.error_message().size()), limits::kErrorBytesMax);
  EXPECT_LT(status.error_message().size() * 3 + status.error_details().size() * 4 / 3, 8192U - 512);
}

}  // namespace
}  // namespace rope::server
