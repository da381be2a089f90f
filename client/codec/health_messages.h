// Codes the messages of grpc.health.v1.Health/Check without generated classes. A program may link
// another copy of that schema beside this library; two copies in one descriptor pool end it.
//
// Threading:  Functions only.
// Errors:     INTERNAL: the reply cannot be parsed.
#ifndef ROPE_CLIENT_CODEC_HEALTH_MESSAGES_H_
#define ROPE_CLIENT_CODEC_HEALTH_MESSAGES_H_

#include <grpcpp/support/byte_buffer.h>

#include <string>

#include "rope/describe.h"
#include "rope/status.h"

namespace rope::client {

// The HealthCheckRequest of `service`; empty: the server as a whole.
grpc::ByteBuffer HealthRequestOf(const std::string& service);

// The status in a HealthCheckResponse. Skips unknown fields; a number without a name is kUnknown.
Result<ServingStatus> ServingStatusOf(const Result<grpc::ByteBuffer>& reply);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_HEALTH_MESSAGES_H_
