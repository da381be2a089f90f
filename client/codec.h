// Rotate requests and replies to and from bytes. Tensor bytes are lent on the way out and copied
// once, to where the caller wants them, on the way in; they are never part of a protobuf message.
//
// Threading:  Functions only.
// Errors:     Encoding, INVALID_ARGUMENT: a tensor without memory, or of a size that is no number
//             of bytes (all else is for the server to judge). Decoding, INTERNAL: not a
//             RotateResponse to this request, and nothing was written; or what the reply's own
//             `error` says.
#ifndef ROPE_CLIENT_CODEC_H_
#define ROPE_CLIENT_CODEC_H_

#include <grpcpp/support/byte_buffer.h>

#include "client/payload_loans.h"
#include "rope/client.h"
#include "rope/status.h"

namespace rope::client {

// Payloads below this size are copied: cheaper than the count of a loan.
inline constexpr int64_t kLentBytesMin = 4096;

// Lends nothing where it fails.
Result<grpc::ByteBuffer> EncodeRotate(const RotateRequest& request, PayloadLoans& loans);

Result<RotateReply> DecodeRotate(const grpc::ByteBuffer& buffer, const RotateRequest& request);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_H_
