// The descriptions of google.rpc's ErrorInfo, BadRequest and RetryInfo, which errors carry under
// these names, made from the wire-compatible messages of rope/v1/status_details.proto.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_GRPC_GOOGLE_RPC_POOL_H_
#define ROPE_SERVER_GRPC_GOOGLE_RPC_POOL_H_

#include <google/protobuf/descriptor.h>

#include <memory>

namespace rope::server {

// The file of these messages, where google.rpc has them too.
inline constexpr char kErrorDetailsFile[] = "google/rpc/error_details.proto";

// A pool with kErrorDetailsFile and the file that it imports. It is no part of the generated pool,
// which a program may fill with the originals, and it shares nothing with that.
std::unique_ptr<const google::protobuf::DescriptorPool> MakeGoogleRpcPool();

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_GOOGLE_RPC_POOL_H_
