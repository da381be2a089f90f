// Codes an error into messages: rope.v1.Error, and the grpc-status-details-bin trailer, which holds
// a google.rpc.Status with the Error and, for clients without our schema, google.rpc's ErrorInfo,
// BadRequest and RetryInfo.
//
// Threading:  Functions only.
#ifndef ROPE_PROTO_WIRE_ERROR_DETAILS_H_
#define ROPE_PROTO_WIRE_ERROR_DETAILS_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "rope/v1/rotate.pb.h"

namespace rope::proto {

// The parts of an error (proto/error.h), its code and its text.
v1::Error ErrorMessageOf(const absl::Status& status);

// Bytes for grpc::Status::error_details(). About three times as long as the error.
std::string EncodeStatusDetails(const v1::Error& error);

// The Error contained in such bytes; nullopt if there is none.
std::optional<v1::Error> DecodeStatusDetails(std::string_view bytes);

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_ERROR_DETAILS_H_
