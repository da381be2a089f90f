#include "client/codec/control_messages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "grpc/health/v1/health.pb.h"
#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;

std::string TextOf(const grpc::ByteBuffer& buffer) {
  grpc::Slice joined;
  EXPECT_TRUE(buffer.DumpToSingleSlice(&joined).ok());
  return {reinterpret_cast<const char*>(joined.begin()), joined.size()};
}

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

TEST(HealthMessagesTest, RequestHasTheBytesOfTheGeneratedSerializer) {
  for (const std::string& service :
       {std::string(), std::string("rope.v1.RopeService"), std::string(300, 'x')}) {
    HealthCheckRequest request;
    request.set_service(service);
    EXPECT_EQ(TextOf(HealthRequestOf(service)), request.SerializeAsString()) << service;
  }
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

TEST(HealthMessagesTest, LastStatusCountsAndUnknownFieldsAreSkipped) {
  EXPECT_EQ(*StatusIn("\x08\x01\x08\x02"), ServingStatus::kNotServing);
  // Fields 2 (varint), 3 (length), 4 (fixed32), 5 (fixed64), and a length as number 1.
  const std::string others(
      "\x10\x07\x1a\x02"
      "ab\x25zzzz\x29zzzzzzzz\x0a\x01x");
  EXPECT_EQ(*StatusIn(others + "\x08\x01"), ServingStatus::kServing);
  EXPECT_EQ(*StatusIn("\x08\x01" + others), ServingStatus::kServing);
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

TEST(HealthMessagesTest, FailedCallKeepsItsStatus) {
  EXPECT_THAT(ServingStatusOf(Status(StatusCode::kUnavailable, "connection lost")),
              StatusIs(StatusCode::kUnavailable, "connection lost"));
}

TEST(ControlMessagesTest, TablesRequestKeepsEveryField) {
  TablesRequest request;
  request.rope.model = "m";
  request.positions = {.begin = 3, .end = 9};
  TableReposition& move = request.reposition.emplace();
  move.from.position_ids = {1, 2};
  move.from_rope.emplace().model = "n";
  move.from_seq_len = 70;
  request.dtype = DType::kBFloat16;
  request.seq_len = 80;
  request.head_dim = 64;
  request.skip_attention_factor = true;
  request.role = Role::kK;
  const v1::GetTablesRequest message = ToMessage(request).value();
  EXPECT_EQ(message.rope().model(), "m");
  EXPECT_EQ(message.positions().range().begin(), 3);
  EXPECT_EQ(message.positions().range().end(), 9);
  const v1::Array& from = message.reposition().from().position_ids();
  EXPECT_THAT(from.shape(), ElementsAre(2));
  EXPECT_EQ(from.dtype(), v1::DTYPE_INT64);
  int64_t second = 0;
  std::memcpy(&second, from.raw().data() + 8, 8);
  EXPECT_EQ(second, 2);
  EXPECT_EQ(message.reposition().from_rope().model(), "n");
  EXPECT_EQ(message.reposition().from_seq_len(), 70);
  EXPECT_EQ(message.dtype(), v1::DTYPE_BF16);
  EXPECT_EQ(message.seq_len(), 80);
  EXPECT_EQ(message.head_dim(), 64);
  EXPECT_TRUE(message.skip_attention_factor());
  EXPECT_EQ(message.role(), v1::ROLE_K);
}

TEST(ControlMessagesTest, LayoutsHaveTheNumbersOfTheSchema) {
  TablesRequest request;
  const std::pair<TableLayout, v1::TableLayout> layouts[] = {
      {TableLayout::kCosSin, v1::TABLE_LAYOUT_COS_SIN},
      {TableLayout::kCosSinCache, v1::TABLE_LAYOUT_COS_SIN_CACHE},
      {TableLayout::kDuplicated, v1::TABLE_LAYOUT_DUPLICATED},
      {TableLayout::kComplex, v1::TABLE_LAYOUT_COMPLEX}};
  for (const auto& [layout, number] : layouts) {
    request.layout = layout;
    EXPECT_EQ(ToMessage(request)->layout(), number);
  }
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

TEST(ControlMessagesTest, TablesReplyHasTheArraysOfItsLayout) {
  v1::GetTablesResponse message = WithTable(v1::DTYPE_FP16, {2, 3}, 12);
  message.set_config_id("id");
  message.set_attention_factor(1.5);
  message.set_attention_factor_applied(true);
  message.set_seq_len(7);
  message.set_depends_on_seq_len(true);
  message.add_warnings("w");
  const TablesReply reply = FromMessage(message).value();
  EXPECT_EQ(reply.table.dtype, DType::kFloat16);
  EXPECT_THAT(reply.table.shape, ElementsAre(2, 3));
  EXPECT_EQ(reply.table.data, std::vector<std::byte>(12, std::byte{'x'}));
  EXPECT_TRUE(reply.cos.shape.empty());
  EXPECT_EQ(reply.config_id, "id");
  EXPECT_EQ(reply.attention_factor, 1.5);
  EXPECT_TRUE(reply.attention_factor_applied);
  EXPECT_EQ(reply.seq_len, 7);
  EXPECT_TRUE(reply.depends_on_seq_len);
  EXPECT_THAT(reply.warnings, ElementsAre("w"));
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
