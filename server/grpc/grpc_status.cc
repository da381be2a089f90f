#include "server/grpc/grpc_status.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/wire/error_details.h"
#include "server/error.h"

namespace rope::server {

v1::Error ErrorOf(const absl::Status& status) {
  v1::Error error = proto::ErrorMessageOf(status);
  error.set_message(ShortText(error.message(), limits::kErrorBytesMax));
  for (std::string* part : {error.mutable_field(), error.mutable_got(), error.mutable_want()}) {
    *part = ShortText(*part, limits::kErrorPartBytesMax);
  }
  return error;
}

grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContext& context) {
  if (status.ok()) return grpc::Status::OK;
  const v1::Error error = ErrorOf(status);
  if (error.retry_delay_ms() > 0) {
    context.AddTrailingMetadata("grpc-retry-pushback-ms", absl::StrCat(error.retry_delay_ms()));
  }
  return grpc::Status(static_cast<grpc::StatusCode>(error.code()), error.message(),
                      proto::EncodeStatusDetails(error));
}

}  // namespace rope::server
