// Codes rope.v1.Error into a gRPC status. The grpc-status-details-bin trailer holds a
// google.rpc.Status whose only detail is the Error, so grpcurl and every gRPC client can show it.
//
// Threading:  Functions only.
#ifndef ROPE_PROTO_WIRE_ERROR_DETAILS_H_
#define ROPE_PROTO_WIRE_ERROR_DETAILS_H_

#include <optional>
#include <string>
#include <string_view>

#include "rope/v1/rotate.pb.h"

namespace rope::proto {

// Fills field, got and want from a message of the form "field: got X, want Y". They stay empty for
// any other message.
v1::Error MakeError(int code, std::string_view message);

// Bytes for grpc::Status::error_details().
std::string EncodeStatusDetails(const v1::Error& error);

// The Error contained in such bytes; nullopt if there is none.
std::optional<v1::Error> DecodeStatusDetails(std::string_view bytes);

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_ERROR_DETAILS_H_
