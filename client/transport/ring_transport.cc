#include "client/transport/ring_transport.h"

#include <string_view>

namespace rope::client {
namespace {

using std::chrono::microseconds;

class RingAttempt final : public RotateAttempt {
 public:
  RingAttempt(std::shared_ptr<RingCompletions> completions, const RingCompletions::Ticket& ticket,
              std::string_view message, microseconds timeout, RotateTransport::OnReply on_reply)
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
  const microseconds timeout_;
  RotateTransport::OnReply on_reply_;
};

}  // namespace

Result<ReceivedReply> RingTransport::Rotate(EncodedRotate& request, const BorrowedSlices& borrowed,
                                            const RpcOptions& options) {
  if (!request.ring_message.empty()) {
    auto reply = ring_->Call(request.ring_message, request.tensor_bytes, options.timeout);
    if (reply.has_value()) return *std::move(reply);
  }
  return rpc_.Rotate(request, borrowed, options);
}

std::shared_ptr<RotateAttempt> RingTransport::NewAttempt(const EncodedRotate& request,
                                                         const RpcOptions& options,
                                                         grpc::CompletionQueue* queue,
                                                         OnReply on_reply) {
  if (!request.ring_message.empty()) {
    if (const auto ticket = completions_->Reserve()) {
      return std::make_shared<RingAttempt>(completions_, *ticket, request.ring_message,
                                           options.timeout, std::move(on_reply));
    }
  }
  return rpc_.NewAttempt(request, options, queue, std::move(on_reply));
}

}  // namespace rope::client
