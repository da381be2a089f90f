// Decodes the bytes of a request and encodes its reply. The functions for gRPC copy no tensor byte
// on the way in or out. The functions for rings (Small) take a message in one piece and copy it.
//
// Threading:  Functions only.
// Ownership:  A decoded message keeps the received slices alive, or its copy of a small message. An
//             encoded reply owns its output buffers, and returns them to the pool on the thread
//             that drops the last slice. A small reply is a copy.
// Errors:     INVALID_ARGUMENT, UNIMPLEMENTED, RESOURCE_EXHAUSTED: as proto::Split.
//             INVALID_ARGUMENT: the generated parser refuses the message. RESOURCE_EXHAUSTED: the
//             message is larger than `message_bytes_max` (the error names the flag).
#ifndef ROPE_SERVER_GRPC_ROPE_CODEC_H_
#define ROPE_SERVER_GRPC_ROPE_CODEC_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "proto/wire/message_split.h"
#include "proto/wire/stream_message.h"
#include "server/request/request.h"

namespace rope::server {

// Takes the client's id. An id that is too long is ignored here and refused later, and the error is
// sent under an id of the server.
void TakeId(std::string id, Arrival& arrival);

// Clears `bytes`. Sets the id of `arrival` if the message has one that can be read, even if the
// rest of the message is invalid.
absl::StatusOr<Decoded> DecodeRequest(grpc::ByteBuffer& bytes, int64_t message_bytes_max,
                                      Arrival& arrival);

// As DecodeRequest, for a RotateStreamRequest; nullopt: it is a cancellation. Sets
// `message.sequence` if it can be read, even if the rest is invalid.
// INVALID_ARGUMENT: no sequence number; neither a request nor a cancellation.
absl::StatusOr<std::optional<Decoded>> DecodeStreamRequest(grpc::ByteBuffer& bytes,
                                                           int64_t message_bytes_max,
                                                           proto::StreamMessage& message,
                                                           Arrival& arrival);

// As DecodeRequest, for a message of a ring, which is in one piece and always short enough.
absl::StatusOr<Decoded> DecodeSmallRequest(std::string bytes, Arrival& arrival);

// The slices of a received message. They are freed by the ByteBuffer that they came in: ~Slice
// itself, as the last owner of received memory, ends the process in gRPC 1.51 while the
// ResourceQuota is full (it wakes the quota without the ExecCtx that ~ByteBuffer has).
class ReceivedSlices final : public ReceivedBytes {
 public:
  // Clears `bytes`.
  absl::Status Take(grpc::ByteBuffer& bytes);
  const std::vector<grpc::Slice>& slices() const { return slices_; }
  // grpc::Slice shows the memory as const. It is writable, and no other code reads it.
  char* Overwritable(std::string_view part) override { return const_cast<char*>(part.data()); }

 private:
  grpc::ByteBuffer owner_;  // outlives slices_
  std::vector<grpc::Slice> slices_;
};

// The payloads of a message, which refer to the received slices.
struct ReceivedPayloads {
  ReceivedSlices received;
  proto::SplitMessage split;
};

// Decodes any other request of the service, with the same strict checks. Clears `bytes`.
absl::Status DecodeMessage(grpc::ByteBuffer& bytes, google::protobuf::Message& message,
                           ReceivedPayloads& payloads);
// Decodes a message of gRPC's standard services, which contains a name. RESOURCE_EXHAUSTED:
// more than 1 KiB, or an allocation failed.
absl::Status DecodeShortMessage(grpc::ByteBuffer& bytes, google::protobuf::Message& message);

grpc::ByteBuffer EncodeMessage(const google::protobuf::Message& message);

// Returns a slice that owns the buffer. gRPC may drop it on any thread, even after the call has
// ended.
grpc::Slice SliceOf(PooledBuffer buffer);

// Encodes the reply to a request that has run; with a sequence, as a RotateStreamResponse. Takes
// the request's outputs, or refers to its received bytes if results overwrote them. REQUIRES: the
// request came from DecodeRequest or DecodeStreamRequest.
grpc::ByteBuffer EncodeReply(Request& request, std::optional<uint64_t> sequence = std::nullopt);

// Encodes the reply in one piece, without a sequence. REQUIRES: no result overwrote received bytes.
std::string EncodeSmallReply(Request& request);

// A reply that carries an error, for streams and rings.
v1::RotateResponse ErrorReply(const std::string& request_id, const absl::Status& status);

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_ROPE_CODEC_H_
