// Encodes rotate requests and decodes their replies. Tensor bytes never enter a protobuf message:
// encoding lends them to gRPC, decoding copies them once, from the received slices to the output.
//
// With a region, tensors and rows in it are named by offset instead of sent. The results stay in
// the region if all outputs of the request lie there and none overlaps an input (except in place).
// With a staging region, the tensors of a request (kStagedBytesMin or more) are first copied to the
// region, and the results are copied from it to their outputs. The caller's tensors do not change
// until then, so a staged request may be sent again. In process, everything is in the region, and
// results that would overwrite an input are staged.
//
// Threading:  Functions only.
// Errors:     Encoding: as messages.h; INVALID_ARGUMENT: a tensor of pages outside the region, or
//             with a result outside it; tensors on a device and in host memory together, or for
//             a region of the other kind. Decoding: INTERNAL if the reply is not a RotateResponse
//             that answers the request (no output is written then); else the status in the reply's
//             `error`.
#ifndef ROPE_CLIENT_CODEC_CODEC_H_
#define ROPE_CLIENT_CODEC_CODEC_H_

#include <google/protobuf/arena.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/codec/message_call.h"
#include "client/codec/messages.h"
#include "client/memory/arena_memory.h"
#include "client/memory/output_pool.h"
#include "client/memory/region.h"
#include "proto/wire/message_split.h"
#include "rope/rotate.h"
#include "rope/status.h"
#include "rope/v1/rotate.pb.h"

namespace rope::client {

// Smaller payloads are copied: copying them costs less than counting a borrowed slice.
inline constexpr int64_t kLentBytesMin = 4096;

// The path that the request will take.
enum class Route { kRpc, kRing, kInProcess };

// An RPC with fewer tensor bytes sends them: that costs less than two copies and a region span.
// Requests for a ring are staged whatever their size.
inline constexpr int64_t kStagedBytesMin = 64 << 10;

// The message of a call as a receiver has it, for an engine in this process.
struct CallMessage {
  std::unique_ptr<google::protobuf::Arena> arena;
  v1::RotateRequest* head = nullptr;  // on `arena`
  proto::SplitMessage split = {};     // payloads of `head`, on `arena`
};

// An encoded request, and what is needed to decode its reply.
struct EncodedRotate {
  grpc::ByteBuffer message;  // for an RPC; empty if one of the next two is set
  std::string ring_message;  // the whole message, if it may go through a ring; else empty
  std::optional<CallMessage> call = {};  // in process
  std::vector<WantedTensor> wanted;
  int64_t tensor_bytes = 0;  // of all inputs
  bool uses_region = false;  // names a region, so it is valid on that region's connection only
  bool idempotent = true;    // running it twice has the same effect as running it once
  StagedRun staged = {};     // REQUIRES: kept until the reply has been decoded
  // The lease of the region id in the message. REQUIRES: kept until the call has ended.
  RegionIds::Lease region_id = nullptr;
  // In process: memory of the results that are not written to an output of the caller, empty for
  // the others. REQUIRES: kept until ResultOf.
  std::vector<OutputMemory> owned = {};
};

// Encodes `request`: by its id if it has `prepared`, else whole. On error nothing is lent.
// INVALID_ARGUMENT also: as CheckPreparedCall.
Result<EncodedRotate> EncodeRotate(const RotateRequest& request, const Region& region, Route route,
                                   BorrowedSlices& borrowed);
// The same, whole. REQUIRES: with `prepared`, EncodeRotate has accepted the request.
Result<EncodedRotate> EncodeWhole(const RotateRequest& request, const Region& region, Route route,
                                  BorrowedSlices& borrowed);

// What an asynchronous call keeps of its request, to encode it again after the caller's has gone.
// It borrows the memory of tensors, and of rows in the region, and owns copies of everything else.
struct KeptRequest {
  RotateRequest request;
  std::deque<std::string> arrays;  // of the request; they stay where they are
};
// INVALID_ARGUMENT: an array without data, or with a shape whose size in bytes is not defined.
Result<std::unique_ptr<const KeptRequest>> Keep(const RotateRequest& request, const Region& region);

// The tensor of a reply whose result is where `wanted` says: in its output, or staged for it.
RotatedTensor ResultOf(WantedTensor wanted);

// A parsed RotateResponse whose tensors still lie in the received slices. A moved-from object may
// only be destroyed or assigned to.
class ReceivedReply {
 public:
  static Result<ReceivedReply> Parse(const grpc::ByteBuffer& buffer);
  // Parses bytes received through a ring, whose replies contain no tensor bytes. Copies what it
  // needs.
  static Result<ReceivedReply> ParseSmall(std::string_view bytes);

  const std::string& request_id() const { return head_->request_id(); }
  // The status in the reply's `error`, or OK.
  Status error() const;
  // Copies the tensors to their outputs. Tensors without an output get memory from `pool`.
  Result<RotateReply> ToReply(std::vector<WantedTensor> wanted, OutputPool& pool) const;

 private:
  std::vector<grpc::Slice> slices_;  // keep the bytes alive to which message_'s payloads refer
  proto::SplitMessage message_;
  std::unique_ptr<google::protobuf::Arena> arena_ = std::make_unique<google::protobuf::Arena>();
  v1::RotateResponse* head_ =
      google::protobuf::Arena::CreateMessage<v1::RotateResponse>(arena_.get());
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_CODEC_H_
