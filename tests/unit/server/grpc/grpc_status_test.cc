#include "server/grpc/grpc_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/wire/error_details.h"
#include "server/error.h"
#include "server/limits.h"

namespace rope::server {
namespace {

TEST(GrpcStatusTest, OkHasNoDetails) {
  grpc::ServerContext context;
  const grpc::Status status = ToGrpcStatus(absl::OkStatus(), context);
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(status.error_details().empty());
}

TEST(GrpcStatusTest, EveryCodeKeepsItsNumber) {
  for (int code = 1; code <= 16; ++code) {
    grpc::ServerContext context;
    const grpc::Status status =
        ToGrpcStatus(absl::Status(static_cast<absl::StatusCode>(code), "m"), context);
    EXPECT_EQ(static_cast<int>(status.error_code()), code);
    EXPECT_EQ(status.error_message(), "m");
  }
}

TEST(GrpcStatusTest, DetailsNameTheField) {
  grpc::ServerContext context;
  const grpc::Status status = ToGrpcStatus(InvalidField("a.b", 3, "less"), context);
  const auto error = proto::DecodeStatusDetails(status.error_details());
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), 3);
  EXPECT_EQ(error->field(), "a.b");
  EXPECT_EQ(error->got(), "3");
  EXPECT_EQ(error->want(), "less");
  EXPECT_EQ(error->retry_delay_ms(), 0);
  EXPECT_FALSE(error->may_have_executed());
}

TEST(GrpcStatusTest, DetailsCarryTheRetryDelay) {
  grpc::ServerContext context;
  const grpc::Status status = ToGrpcStatus(RetryLater("queue: full", 20), context);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto error = proto::DecodeStatusDetails(status.error_details());
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->retry_delay_ms(), 20);
}

TEST(GrpcStatusTest, LongMessagesFitIntoTrailers) {
  grpc::ServerContext context;
  const grpc::Status status =
      ToGrpcStatus(InvalidField("layout", std::string(1 << 20, 'x'), "something shorter"), context);
  EXPECT_LE(static_cast<int64_t>(status.error_message().size()), limits::kErrorBytesMax);
  EXPECT_LT(status.error_message().size() * 3 + status.error_details().size() * 4 / 3, 8192U - 512);
}

}  // namespace
}  // namespace rope::server
