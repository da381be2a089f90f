#include <gtest/gtest.h>

#include <vector>

#include "client/codec/messages.h"
#include "grpc/health/v1/health.pb.h"
#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

using ::grpc::health::v1::HealthCheckResponse;

Result<ServingStatus> StatusIn(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return ServingStatusOf(grpc::ByteBuffer(&slice, 1));
}

void ExpectMalformed(const std::string& bytes) {
  const Result<ServingStatus> status = StatusIn(bytes);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status, StatusIs(StatusCode::kInternal,
                               HasSubstr("reply: got malformed bytes, want grpc.health")));
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
  ExpectMalformed("\x08");                      // no value
  ExpectMalformed("\x1a\x05xx");                // 2 of 5 bytes
  ExpectMalformed("\x0b");                      // a group
  ExpectMalformed(std::string("\x00\x01", 2));  // field 0
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

}  // namespace
}  // namespace rope::client
