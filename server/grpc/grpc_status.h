// Converts absl::Status to grpc::Status, with rope.v1.Error in the status details.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_GRPC_GRPC_STATUS_H_
#define ROPE_SERVER_GRPC_GRPC_STATUS_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace rope::server {

// Adds the grpc-retry-pushback-ms trailer to `context` if the status carries a retry delay.
grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContext& context);

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_GRPC_STATUS_H_
