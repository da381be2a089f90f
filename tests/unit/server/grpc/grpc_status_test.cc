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
  EXPECT_EQ(error->reason(), v1::REASON_INVALID_FIELD);
  EXPECT_EQ(error->retry_delay_ms(), 0);
  EXPECT_FALSE(error->may_have_executed());
}

TEST(GrpcStatusTest, DetailsCarryTheRetryDelay) {
  grpc::ServerContext context;
  const grpc::Status status =
      ToGrpcStatus(RetryLater(Reason::kQueueFull, "queue", "10 requests", "at most 9"), context);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto error = proto::DecodeStatusDetails(status.error_details());
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->retry_delay_ms(), 20);
}

// A character that no header may hold has three in a percent-encoded text.
TEST(GrpcStatusTest, LongErrorsFitIntoTrailers) {
  grpc::ServerContext context;
  const std::string longest(1 << 20, '\x01');
  proto::ErrorParts parts = {.reason = Reason::kPositionOutOfRange,
                             .field = longest,
                             .got = longest,
                             .want = longest,
                             .retry_delay_ms = INT64_MAX,
                             .may_have_executed = true};
  const grpc::Status status = ToGrpcStatus(MakeError(parts), context);
  EXPECT_LE(static_cast<int64_t>(status.error_message().size()), limits::kErrorBytesMax);
  EXPECT_LT(status.error_message().size() * 3 + status.error_details().size() * 4 / 3, 8192U - 512);
}

}  // namespace
}  // namespace rope::server
