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

#include <string>
#include <vector>

#include "client/payload_loans.h"
#include "proto/message_split.h"
#include "rope/rotate.h"
#include "rope/status.h"
#include "rope/v1/rotate.pb.h"

namespace rope::client {

// Payloads below this size are copied: cheaper than the count of a loan.
inline constexpr int64_t kLentBytesMin = 4096;

// Lends nothing where it fails. `request_id` stands in place of the request's own.
Result<grpc::ByteBuffer> EncodeRotate(const RotateRequest& request, const std::string& request_id,
                                      PayloadLoans& loans);
inline Result<grpc::ByteBuffer> EncodeRotate(const RotateRequest& request, PayloadLoans& loans) {
  return EncodeRotate(request, request.request_id, loans);
}

// A RotateResponse whose tensors still lie where they were received.
class ReceivedReply {
 public:
  static Result<ReceivedReply> Parse(const grpc::ByteBuffer& buffer);

  const std::string& request_id() const { return head_.request_id(); }
  // What the reply's own `error` says, or OK.
  Status error() const;
  // Puts the tensors where `views`, those of the request, want them.
  Result<RotateReply> Take(const std::vector<TensorView>& views) const;

 private:
  std::vector<grpc::Slice> slices_;  // hold what the payloads of message_ refer to
  proto::SplitMessage message_;
  v1::RotateResponse head_;
};

inline Result<RotateReply> DecodeRotate(const grpc::ByteBuffer& buffer,
                                        const std::vector<TensorView>& views) {
  const Result<ReceivedReply> reply = ReceivedReply::Parse(buffer);
  if (!reply.ok()) return reply.status();
  return reply->Take(views);
}

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_H_
