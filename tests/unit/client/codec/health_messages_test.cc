#include "client/codec/health_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grpc/health/v1/health.pb.h"

namespace rope::client {
namespace {

using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;
using ::testing::HasSubstr;

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
  EXPECT_EQ(status.status().code(), StatusCode::kInternal);
  EXPECT_THAT(status.status().message(), HasSubstr("reply: got malformed bytes, want grpc.health"));
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
    const Result<ServingStatus> status = StatusIn(response.SerializeAsString());
    ASSERT_TRUE(status.ok()) << status.status().ToString();
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
  const Result<ServingStatus> status =
      ServingStatusOf(Status(StatusCode::kUnavailable, "connection lost"));
  EXPECT_EQ(status.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.status().message(), "connection lost");
}

}  // namespace
}  // namespace rope::client
