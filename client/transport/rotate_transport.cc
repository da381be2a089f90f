#include "client/transport/rotate_transport.h"

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "proto/mutex.h"

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

class RpcAttempt final : public RotateAttempt,
                         private EventHandler,
                         public std::enable_shared_from_this<RpcAttempt> {
 public:
  RpcAttempt(const Stub& stub, const EncodedRotate& request, const RpcOptions& options,
             grpc::CompletionQueue* queue, RotateTransport::OnReply on_reply)
      : stub_(stub),
        message_(MessageFor(request)),
        options_(options),
        queue_(queue),
        on_reply_(std::move(on_reply)) {}

  void Start() override {
    self_ = shared_from_this();  // until OnEvent
    grpc::ByteBuffer message;
    message.Swap(&message_);  // gRPC alone refers to the bytes from here on
    const proto::MutexLock lock(&mu_);
    stub_.Start(RotateMethod(), message, options_, queue_, static_cast<EventHandler*>(this), *rpc_);
  }

  void Cancel() override {
    const proto::MutexLock lock(&mu_);
    if (rpc_.has_value()) rpc_->context.TryCancel();
  }

 private:
  // Destroys the RPC before the reply is passed on: it may hold slices of the request.
  void OnEvent(bool) override {
    const std::shared_ptr<RpcAttempt> self = std::move(self_);
    Result<ReceivedReply> reply = TakeReply();
    on_reply_(std::move(reply));
  }

  Result<ReceivedReply> TakeReply() {
    const proto::MutexLock lock(&mu_);
    Result<ReceivedReply> reply = ReplyIn(Stub::ResultOf(*rpc_));
    rpc_.reset();
    return reply;
  }

  const Stub stub_;
  grpc::ByteBuffer message_;  // until Start
  const RpcOptions options_;
  grpc::CompletionQueue* const queue_;
  const RotateTransport::OnReply on_reply_;
  std::shared_ptr<RpcAttempt> self_;
  proto::Mutex mu_;
  std::optional<UnaryAttempt> rpc_ ABSL_GUARDED_BY(mu_){std::in_place};  // null: it has ended
};

class RingAttempt final : public RotateAttempt {
 public:
  RingAttempt(std::shared_ptr<RingCompletions> completions, const RingCompletions::Ticket& ticket,
              std::string_view message, std::chrono::microseconds timeout,
              RotateTransport::OnReply on_reply)
      : completions_(std::move(completions)),
        ticket_(ticket),
        message_(message),
        timeout_(timeout),
        on_reply_(std::move(on_reply)) {}

  void Start() override { completions_->Submit(ticket_, message_, timeout_, std::move(on_reply_)); }
  void Cancel() override { completions_->Cancel(ticket_); }

 private:
  const std::shared_ptr<RingCompletions> completions_;
  const RingCompletions::Ticket ticket_;
  const std::string_view message_;  // valid until Start
  const std::chrono::microseconds timeout_;
  RotateTransport::OnReply on_reply_;
};

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

std::shared_ptr<RotateAttempt> RotateTransport::NewAttempt(const EncodedRotate& request,
                                                           const RpcOptions& options,
                                                           grpc::CompletionQueue* queue,
                                                           OnReply on_reply) {
  // A message that is sent again may have been encoded for a link that had a ring.
  if (ring_ != nullptr && !request.ring_message.empty()) {
    if (const auto ticket = completions_->Reserve()) {
      return std::make_shared<RingAttempt>(completions_, *ticket, request.ring_message,
                                           options.timeout, std::move(on_reply));
    }
  }
  return std::make_shared<RpcAttempt>(stub_, request, options, queue, std::move(on_reply));
}

}  // namespace rope::client
