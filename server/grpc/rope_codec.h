// Between bytes and Request: by gRPC, where no tensor byte is copied on the way in or out, and in
// one piece (Small), where all are, for rings.
//
// Threading:  Functions only.
// Ownership:  A decoded request keeps the received slices alive, or a copy of a small message; an
//             encoded reply owns its output buffers and gives them back to the pool from whichever
//             thread drops the last slice, or is a copy.
// Errors:     INVALID_ARGUMENT, UNIMPLEMENTED, RESOURCE_EXHAUSTED: as proto::Split; a message that
//             the generated parser refuses; one larger than `message_bytes_max` (names the flag).
#ifndef ROPE_SERVER_GRPC_ROPE_CODEC_H_
#define ROPE_SERVER_GRPC_ROPE_CODEC_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "server/request/prepared_requests.h"
#include "server/request/request.h"

namespace rope::server {

// Fills split, received_bytes and either message or prepared of `request`, and clears `bytes`. The
// request's id is set where it can be read at all, whatever else is wrong with the message.
absl::Status DecodeRequest(grpc::ByteBuffer& bytes, int64_t message_bytes_max,
                           PreparedRequests& prepared, Request& request);

// The same of a message in one piece.
absl::Status DecodeSmallRequest(std::string_view bytes, int64_t message_bytes_max,
                                PreparedRequests& prepared, Request& request);

// Any other request of the service, which has no payloads worth keeping apart: strict in the same
// way.
absl::Status DecodeMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message);

grpc::ByteBuffer EncodeMessage(const google::protobuf::Message& message);

// A slice that owns the buffer; gRPC may drop it on any thread, also after the call has ended.
grpc::Slice SliceOf(PooledBuffer buffer);

// The reply to a request that has run. Takes its outputs, or refers to its received bytes where
// results are there. REQUIRES: DecodeRequest made those.
grpc::ByteBuffer EncodeReply(Request& request);

// The same in one piece. RESOURCE_EXHAUSTED: it has more than `bytes_max`; says how many, or how
// many its outputs alone have. REQUIRES: no result is in received bytes.
absl::StatusOr<std::string> EncodeSmallReply(Request& request, int64_t bytes_max);

// The reply that says why a request was not answered otherwise; for streams and rings.
grpc::ByteBuffer EncodeError(const std::string& request_id, const absl::Status& status);
std::string EncodeSmallError(const std::string& request_id, const absl::Status& status);

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_ROPE_CODEC_H_
