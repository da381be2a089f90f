#include "server/grpc/grpc_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/error.h"
#include "server/error.h"
#include "server/limits.h"

namespace rope::server {
namespace {

TEST(GrpcStatusTest, EveryCodeKeepsItsNumber) {
  for (int code = 1; code <= 16; ++code) {
    grpc::ServerContext context;
    const grpc::Status status =
        ToGrpcStatus(absl::Status(static_cast<absl::StatusCode>(code), "m"), context);
    EXPECT_EQ(static_cast<int>(status.error_code()), code);
    EXPECT_EQ(status.error_message(), "m");
  }
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
