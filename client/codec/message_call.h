// BorrowedSlices: gRPC slices that refer to the caller's tensor memory instead of copying it. It
// counts the slices that gRPC has not released yet.
//
// Threading:  Borrow and the destructor run on one thread; gRPC releases slices on any thread.
// Ownership:  Borrows the bytes. REQUIRES: AllReturned() before the bytes or this object go.
#ifndef ROPE_CLIENT_CODEC_MESSAGE_CALL_H_
#define ROPE_CLIENT_CODEC_MESSAGE_CALL_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <atomic>
#include <string_view>

#include "client/error.h"
#include "kernels/status_macros.h"
#include "rope/status.h"

namespace rope::client {

class BorrowedSlices {
 public:
  BorrowedSlices() = default;
  BorrowedSlices(const BorrowedSlices&) = delete;
  BorrowedSlices& operator=(const BorrowedSlices&) = delete;

  grpc::Slice Borrow(std::string_view bytes) {
    outstanding_.fetch_add(1, std::memory_order_relaxed);
    return grpc::Slice(const_cast<char*>(bytes.data()), bytes.size(), &BorrowedSlices::Return,
                       this);
  }

  bool AllReturned() const { return outstanding_.load(std::memory_order_acquire) == 0; }

 private:
  static void Return(void* borrowed) {
    static_cast<BorrowedSlices*>(borrowed)->outstanding_.fetch_sub(1, std::memory_order_release);
  }

  std::atomic<int> outstanding_ = 0;
};

// Converts small messages to and from the bytes of a call, with the generated serializer and
// parser.
//
// Errors:     INTERNAL: the reply cannot be parsed.

// Copies an encoded message.
inline grpc::ByteBuffer BufferOf(std::string_view message) {
  const grpc::Slice slice(message.data(), message.size());
  return grpc::ByteBuffer(&slice, 1);
}

inline grpc::ByteBuffer BytesOf(const google::protobuf::Message& message) {
  return BufferOf(message.SerializeAsString());
}

inline Status ReadMessage(const Result<grpc::ByteBuffer>& buffer,
                          google::protobuf::Message& message) {
  if (!buffer.ok()) return buffer.status();
  grpc::Slice joined;
  if (buffer->DumpToSingleSlice(&joined).ok() &&
      message.ParseFromArray(joined.begin(), static_cast<int>(joined.size()))) {
    return {};
  }
  return MakeError(Reason::kInternal, "reply", "malformed bytes", message.GetTypeName());
}

template <typename Reply>
Result<Reply> MessageOf(const Result<grpc::ByteBuffer>& buffer) {
  Reply reply;
  ROPE_RETURN_IF_ERROR(ReadMessage(buffer, reply));
  return reply;
}

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_MESSAGE_CALL_H_
