#include "client/transport/rotate_transport.h"

#include <string>
#include <utility>

namespace rope::client {
namespace {

const std::string& RotateMethod() {
  static const std::string method = RopeMethod("Rotate");
  return method;
}

// `message` of a request, or its ring_message if there is no other.
grpc::ByteBuffer MessageFor(const EncodedRotate& request) {
  return request.ring_message.empty() ? request.message : BufferOf(request.ring_message);
}

Result<ReceivedReply> ReplyIn(const Result<grpc::ByteBuffer>& reply) {
  if (!reply.ok()) return reply.status();
  return ReceivedReply::Parse(*reply);
}

}  // namespace

RotateTransport::RotateTransport(Stub stub, std::shared_ptr<Ring> ring,
                                 std::shared_ptr<const CallbackOwner> owner)
    : stub_(std::move(stub)),
      ring_(std::move(ring)),
      completions_(ring_ == nullptr ? nullptr
                                    : std::make_shared<RingCompletions>(ring_, std::move(owner))) {}

Result<ReceivedReply> RotateTransport::Rotate(EncodedRotate& request,
                                              const BorrowedSlices& borrowed,
                                              const RpcOptions& options) {
  if (ring_ != nullptr && !request.ring_message.empty()) {
    auto reply = ring_->Call(request.ring_message, request.tensor_bytes, options.timeout);
    if (reply.has_value()) return *std::move(reply);
  }
  Result<ReceivedReply> reply = ReplyIn(stub_.Call(RotateMethod(), MessageFor(request), options));
  // gRPC gives the slices back once no ByteBuffer refers to them.
  request.message.Clear();
  stub_.AwaitReturn(borrowed);
  return reply;
}

// A message that is sent again may have been encoded for a link that had a ring.
std::optional<RingCompletions::Ticket> RotateTransport::Reserve(
    const EncodedRotate& request) const {
  if (ring_ == nullptr || request.ring_message.empty()) return std::nullopt;
  return completions_->Reserve();
}

void RotateTransport::Start(const EncodedRotate& request, const RpcOptions& options,
                            grpc::CompletionQueue* queue, void* tag, UnaryAttempt& attempt) const {
  stub_.Start(RotateMethod(), MessageFor(request), options, queue, tag, attempt);
}

Result<ReceivedReply> RotateTransport::ReplyOf(const UnaryAttempt& attempt) {
  return ReplyIn(Stub::ResultOf(attempt));
}

}  // namespace rope::client
