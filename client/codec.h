// Rotate requests and replies to and from bytes. Tensor bytes are lent on the way out and copied
// once, to where the caller wants them, on the way in; they are never part of a protobuf message.
//
// Where a region is given, tensors whose memory lies in the arena are named instead of sent. Their
// results stay there too if those of all tensors do, and none of them lies across an input.
//
// Threading:  Functions only.
// Errors:     Encoding, as rotate_messages.h. Decoding, INTERNAL: not a
//             RotateResponse to this request, and nothing was written; or what the reply's own
//             `error` says.
#ifndef ROPE_CLIENT_CODEC_H_
#define ROPE_CLIENT_CODEC_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "client/arena_memory.h"
#include "client/output_pool.h"
#include "client/payload_loans.h"
#include "client/rotate_messages.h"
#include "proto/message_split.h"
#include "rope/rotate.h"
#include "rope/status.h"
#include "rope/v1/rotate.pb.h"

namespace rope::client {

// Payloads below this size are copied: cheaper than the count of a loan.
inline constexpr int64_t kLentBytesMin = 4096;

// A request on its way, and what has to come back.
struct EncodedRotate {
  grpc::ByteBuffer message;
  std::vector<WantedTensor> wanted;
  bool uses_region = false;  // the message holds only on the connection whose region it names
  bool idempotent = true;    // running it twice is as good as once
};

// The arena, as the connection names it that the message is for.
struct ArenaRegion {
  const ArenaMemory* arena = nullptr;
  uint64_t id = 0;  // 0: the server knows none
};

// Lends nothing where it fails. `request_id` stands in place of the request's own.
Result<EncodedRotate> EncodeRotate(const RotateRequest& request, const std::string& request_id,
                                   const ArenaRegion& region, PayloadLoans& loans);
inline Result<EncodedRotate> EncodeRotate(const RotateRequest& request, const ArenaRegion& region,
                                          PayloadLoans& loans) {
  return EncodeRotate(request, request.request_id, region, loans);
}

// A RotateResponse whose tensors still lie where they were received.
class ReceivedReply {
 public:
  static Result<ReceivedReply> Parse(const grpc::ByteBuffer& buffer);

  const std::string& request_id() const { return head_.request_id(); }
  // What the reply's own `error` says, or OK.
  Status error() const;
  // Puts the tensors where they are wanted, those that nobody brought memory for in some of `pool`.
  Result<RotateReply> Take(std::vector<WantedTensor> wanted, OutputPool& pool) const;

 private:
  std::vector<grpc::Slice> slices_;  // hold what the payloads of message_ refer to
  proto::SplitMessage message_;
  v1::RotateResponse head_;
};

inline Result<RotateReply> DecodeRotate(const grpc::ByteBuffer& buffer,
                                        std::vector<WantedTensor> wanted, OutputPool& pool) {
  const Result<ReceivedReply> reply = ReceivedReply::Parse(buffer);
  if (!reply.ok()) return reply.status();
  return reply->Take(std::move(wanted), pool);
}

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_H_
