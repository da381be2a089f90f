// RawService: a generated service that gives every call to the server when its headers have come,
// before its message. Messages are raw bytes, on completion queues. The wire format is unchanged: a
// unary call is a stream of one message in each direction.
//
// Threading:  As grpc::Service: set it up before the server starts.
#ifndef ROPE_SERVER_GRPC_RAW_SERVICE_H_
#define ROPE_SERVER_GRPC_RAW_SERVICE_H_

#include <grpcpp/completion_queue.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <string>

#include "google/protobuf/descriptor.h"
#include "kernels/check.h"

namespace rope::server {

using RawStream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

// Asks gRPC for the next call of a method.
using RequestCall =
    std::function<void(grpc::ServerContext*, RawStream*, grpc::ServerCompletionQueue*, void* tag)>;

// `Generated`: the class that protoc generates for a service, for example v1::RopeService.
template <typename Generated>
class RawService final : public Generated::Service {
 public:
  explicit RawService(const google::protobuf::ServiceDescriptor& descriptor)
      : descriptor_(descriptor) {
    for (int i = 0; i < descriptor.method_count(); ++i) {
      this->MarkMethodStreamed(i, nullptr);
      this->MarkMethodRaw(i);
    }
  }

  // REQUIRES: the service has the method, and outlives the result.
  RequestCall RequestOf(const std::string& name) {
    const google::protobuf::MethodDescriptor* const method = descriptor_.FindMethodByName(name);
    ROPE_CHECK(method != nullptr);
    return [this, index = method->index()](grpc::ServerContext* context, RawStream* stream,
                                           grpc::ServerCompletionQueue* queue, void* tag) {
      this->RequestAsyncBidiStreaming(index, context, stream, queue, queue, tag);
    };
  }

 private:
  const google::protobuf::ServiceDescriptor& descriptor_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_RAW_SERVICE_H_
