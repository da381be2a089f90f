// Converts the structs of the public headers to and from the messages of proto/rope/v1, except
// tensors.
//
// Threading:  Functions only.
#ifndef ROPE_CLIENT_CODEC_MESSAGES_H_
#define ROPE_CLIENT_CODEC_MESSAGES_H_

#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rope/client.h"
#include "rope/v1/config.pb.h"
#include "rope/v1/describe.pb.h"
#include "rope/v1/rope_service.pb.h"

namespace rope::client {

v1::DType ToMessage(DType dtype);
// The error of alternatives of which more than one is given; OK for at most one. `given` pairs each
// alternative's name with whether it is set.
Status CheckOneOf(absl::string_view field, absl::Span<const std::pair<const char*, bool>> given);

// INVALID_ARGUMENT: the spec has two sources; the message begins with `field`.
// REQUIRES: `message` is empty.
Status SetRope(const RopeSpec& spec, absl::string_view field, v1::RopeSpec& message);
// INVALID_ARGUMENT: as SetRope.
Result<v1::DescribeRequest> ToMessage(const DescribeRequest& request);
Result<v1::FingerprintRequest> ToMessage(const FingerprintRequest& request);

// INTERNAL: a config that this library cannot read.
Result<DescribeReply> FromMessage(const v1::DescribeResponse& message);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_MESSAGES_H_
