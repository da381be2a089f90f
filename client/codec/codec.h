// Rotate requests and replies to and from bytes. Tensor bytes are lent on the way out and copied
// once, to where the caller wants them, on the way in; they are never part of a protobuf message.
//
// Where a region is given, tensors whose memory lies in it are named instead of sent. Their results
// stay there too if those of all tensors do, and none of them lies across an input. Where the
// region is for staging, the tensors of a request (of kStagedBytesMin and more) are copied there
// first, and their results from there to where they are wanted; the tensors themselves stay as they
// are, so that such a request may be sent again.
//
// Threading:  Functions only.
// Errors:     Encoding, as rotate_messages.h. Decoding, INTERNAL: not a
//             RotateResponse to this request, and nothing was written; or what the reply's own
//             `error` says.
#ifndef ROPE_CLIENT_CODEC_CODEC_H_
#define ROPE_CLIENT_CODEC_CODEC_H_

#include <google/protobuf/arena.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/codec/borrowed_slices.h"
#include "client/codec/rotate_messages.h"
#include "client/memory/output_pool.h"
#include "client/memory/region.h"
#include "client/memory/staged_run.h"
#include "proto/wire/message_split.h"
#include "rope/rotate.h"
#include "rope/status.h"
#include "rope/v1/rotate.pb.h"

namespace rope::client {

// Payloads below this size are copied: cheaper than the count of a loan.
inline constexpr int64_t kLentBytesMin = 4096;

// How a request travels.
enum class Route { kRpc, kRing };

// Requests of an RPC with fewer bytes of tensors are sent: their bytes cost less than two copies
// and a place. Through a ring goes whatever is staged.
inline constexpr int64_t kStagedBytesMin = 64 << 10;

// A request on its way, and what has to come back.
struct EncodedRotate {
  grpc::ByteBuffer message;  // empty beside ring_message
  std::string ring_message;  // where it may go through a ring: all of it; else empty
  std::vector<WantedTensor> wanted;
  int64_t tensor_bytes = 0;  // of all that go in
  bool uses_region = false;  // the message holds only on the connection whose region it names
  bool idempotent = true;    // running it twice is as good as once
  StagedRun staged = {};     // REQUIRES: stays until the reply has been taken
  // Of what the message names. REQUIRES: stays until the call has ended.
  RegionIds::Lease region_id = nullptr;
};

// Messages of one call: what small ones hold fits into the first block, and is allocated and freed
// together.
class MessageArena {
 public:
  MessageArena() : arena_(block_.data(), block_.size()) {}

  // An empty one, for as long as the arena.
  template <typename Message>
  Message& Make() {
    return *google::protobuf::Arena::CreateMessage<Message>(&arena_);
  }

 private:
  alignas(std::max_align_t) std::array<char, 2048> block_;
  google::protobuf::Arena arena_;
};

// The same bytes for an RPC.
inline grpc::ByteBuffer BufferOf(std::string_view message) {
  const grpc::Slice slice(message.data(), message.size());
  return grpc::ByteBuffer(&slice, 1);
}

// Lends nothing where it fails. `request_id` stands in place of the request's own.
Result<EncodedRotate> EncodeRotate(const RotateRequest& request, const std::string& request_id,
                                   const Region& region, Route route, BorrowedSlices& borrowed);
inline Result<EncodedRotate> EncodeRotate(const RotateRequest& request, const Region& region,
                                          Route route, BorrowedSlices& borrowed) {
  return EncodeRotate(request, request.request_id, region, route, borrowed);
}

// A RotateResponse whose tensors still lie where they were received. Nothing may be asked of one
// that was moved from.
class ReceivedReply {
 public:
  static Result<ReceivedReply> Parse(const grpc::ByteBuffer& buffer);
  // Of bytes that came through a ring, where no reply has bytes of tensors. Keeps none of them.
  static Result<ReceivedReply> ParseSmall(std::string_view bytes);

  const std::string& request_id() const { return head().request_id(); }
  // What the reply's own `error` says, or OK.
  Status error() const;
  // Puts the tensors where they are wanted, those that nobody brought memory for in some of `pool`.
  Result<RotateReply> ToReply(std::vector<WantedTensor> wanted, OutputPool& pool) const;

 private:
  const v1::RotateResponse& head() const { return *head_; }

  std::vector<grpc::Slice> slices_;  // hold what the payloads of message_ refer to
  proto::SplitMessage message_;
  std::unique_ptr<MessageArena> memory_ = std::make_unique<MessageArena>();
  v1::RotateResponse* head_ = &memory_->Make<v1::RotateResponse>();
};

inline Result<RotateReply> DecodeRotate(const grpc::ByteBuffer& buffer,
                                        std::vector<WantedTensor> wanted, OutputPool& pool) {
  const Result<ReceivedReply> reply = ReceivedReply::Parse(buffer);
  if (!reply.ok()) return reply.status();
  return reply->ToReply(std::move(wanted), pool);
}

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_CODEC_H_
