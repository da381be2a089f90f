// Converts small messages to and from the bytes of a call, with the generated serializer and
// parser.
//
// Threading:  Functions only.
// Errors:     INTERNAL: the reply cannot be parsed.
#ifndef ROPE_CLIENT_CODEC_MESSAGE_CALL_H_
#define ROPE_CLIENT_CODEC_MESSAGE_CALL_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/strings/str_cat.h"
#include "client/error.h"
#include "rope/status.h"

namespace rope::client {

inline grpc::ByteBuffer BytesOf(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

template <typename Reply>
Result<Reply> MessageOf(const Result<grpc::ByteBuffer>& buffer) {
  if (!buffer.ok()) return buffer.status();
  grpc::Slice joined;
  Reply reply;
  if (!buffer->DumpToSingleSlice(&joined).ok() ||
      !reply.ParseFromArray(joined.begin(), static_cast<int>(joined.size()))) {
    return MakeError(Reason::kInternal, "reply", "malformed bytes", reply.GetTypeName());
  }
  return reply;
}

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_MESSAGE_CALL_H_
