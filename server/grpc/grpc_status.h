// Converts absl::Status to rope.v1.Error, and to grpc::Status with the Error in its details.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_GRPC_GRPC_STATUS_H_
#define ROPE_SERVER_GRPC_GRPC_STATUS_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "rope/v1/rotate.pb.h"

namespace rope::server {

// The error with its text and parts cut to limits::kErrorBytesMax and limits::kErrorPartBytesMax.
v1::Error ErrorOf(const absl::Status& status);

// Adds the grpc-retry-pushback-ms trailer to `context` if the status carries a retry delay.
grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContext& context);

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_GRPC_STATUS_H_
