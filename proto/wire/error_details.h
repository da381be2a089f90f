// rope.v1.Error inside a gRPC status: the grpc-status-details-bin trailer holds a google.rpc.Status
// whose one detail is the Error, so that grpcurl and every gRPC client can show it.
//
// Threading:  Functions only.
#ifndef ROPE_PROTO_WIRE_ERROR_DETAILS_H_
#define ROPE_PROTO_WIRE_ERROR_DETAILS_H_

#include <optional>
#include <string>
#include <string_view>

#include "rope/v1/rotate.pb.h"

namespace rope::proto {

// Fills field, got and want from a message of the form "field: got X, want Y"; other messages leave
// them empty.
v1::Error MakeError(int code, std::string_view message);

// Bytes for grpc::Status::error_details().
std::string EncodeStatusDetails(const v1::Error& error);

// The Error in such bytes; nullopt where there is none.
std::optional<v1::Error> DecodeStatusDetails(std::string_view bytes);

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_ERROR_DETAILS_H_
