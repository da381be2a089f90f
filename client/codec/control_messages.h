// Codes the messages of grpc.health.v1.Health/Check without the classes of their schema. A program
// may link another copy of it beside this library; two copies in one descriptor pool end it.
//
// Threading:  Functions only.
// Errors:     INTERNAL: the reply cannot be parsed.
#ifndef ROPE_CLIENT_CODEC_CONTROL_MESSAGES_H_
#define ROPE_CLIENT_CODEC_CONTROL_MESSAGES_H_

#include <grpcpp/support/byte_buffer.h>

#include <string>

#include "rope/client.h"
#include "rope/describe.h"
#include "rope/status.h"
#include "rope/v1/tables.pb.h"

namespace rope::client {

// The HealthCheckRequest of `service`; empty: the server as a whole.
grpc::ByteBuffer HealthRequestOf(const std::string& service);

// The status in a HealthCheckResponse. Skips unknown fields; a number without a name is kUnknown.
Result<ServingStatus> ServingStatusOf(const Result<grpc::ByteBuffer>& reply);

// Converts requests for tables and their replies to and from the messages of proto/rope/v1.
//
// Errors:     INVALID_ARGUMENT: as SetRope (messages.h); a range beside a list of positions.
//             INTERNAL: an array whose bytes do not match its shape.

Result<v1::GetTablesRequest> ToMessage(const TablesRequest& request);
Result<TablesReply> FromMessage(const v1::GetTablesResponse& message);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_CONTROL_MESSAGES_H_
