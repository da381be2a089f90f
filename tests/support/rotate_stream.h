// TestStream: a RotateStream that numbers its requests and unwraps the answers.
//
// Threading:  One thread writes, one reads.
#ifndef ROPE_TESTS_SUPPORT_ROTATE_STREAM_H_
#define ROPE_TESTS_SUPPORT_ROTATE_STREAM_H_

#include <grpcpp/client_context.h>

#include <cstdint>
#include <memory>

#include "rope/v1/rope_service.grpc.pb.h"

namespace rope::testing {

class TestStream {
 public:
  TestStream(v1::RopeService::Stub& stub, grpc::ClientContext& context)
      : stream_(stub.RotateStream(&context)) {}

  // Sends the request under the next number: 1, 2, ...
  bool Write(const v1::RotateRequest& request) { return Write(request, ++last_); }
  bool Write(const v1::RotateRequest& request, uint64_t sequence) {
    v1::RotateStreamRequest message;
    message.set_sequence(sequence);
    *message.mutable_rotate() = request;
    return stream_->Write(message);
  }
  bool Cancel(uint64_t sequence) {
    v1::RotateStreamRequest message;
    message.set_sequence(sequence);
    message.mutable_cancel();
    return stream_->Write(message);
  }
  // Reads an answer, and its number if `sequence` is not null.
  bool Read(v1::RotateResponse* response, uint64_t* sequence = nullptr) {
    v1::RotateStreamResponse message;
    if (!stream_->Read(&message)) return false;
    if (sequence != nullptr) *sequence = message.sequence();
    response->Swap(message.mutable_rotate());
    return true;
  }
  bool WritesDone() { return stream_->WritesDone(); }
  grpc::Status Finish() { return stream_->Finish(); }

 private:
  const std::unique_ptr<grpc::ClientReaderWriter<v1::RotateStreamRequest, v1::RotateStreamResponse>>
      stream_;
  uint64_t last_ = 0;
};

inline std::unique_ptr<TestStream> OpenStream(v1::RopeService::Stub& stub,
                                              grpc::ClientContext& context) {
  return std::make_unique<TestStream>(stub, context);
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_ROTATE_STREAM_H_
