#include "server/grpc/grpc_status.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/wire/error_details.h"
#include "server/error.h"

namespace rope::server {

grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContext& context) {
  if (status.ok()) return grpc::Status::OK;
  const int64_t retry_delay_ms = RetryDelayMs(status);
  if (retry_delay_ms > 0) {
    context.AddTrailingMetadata("grpc-retry-pushback-ms", absl::StrCat(retry_delay_ms));
  }
  const std::string message = ShortMessage(status.message());
  v1::Error error = proto::MakeError(status.raw_code(), message);
  error.set_retry_delay_ms(retry_delay_ms);
  error.set_may_have_executed(MayHaveExecuted(status));
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()), message,
                      proto::EncodeStatusDetails(error));
}

}  // namespace rope::server
