// RotateStream: the public handle of a StreamCall.
#include <memory>
#include <utility>

#include "client/calls/stream_call.h"
#include "rope/async.h"

namespace rope::client {

RotateStream::RotateStream(std::shared_ptr<StreamCall> call) : call_(std::move(call)) {}

RotateStream& RotateStream::operator=(RotateStream&& other) noexcept {
  if (this != &other) {
    if (call_ != nullptr) call_->Abandon();
    call_ = std::move(other.call_);
  }
  return *this;
}

RotateStream::~RotateStream() {
  if (call_ != nullptr) call_->Abandon();
}

Status RotateStream::Rotate(const RotateRequest& request, RotateCallback callback,
                            uint64_t* sequence) {
  return call_->Rotate(request, std::move(callback), sequence);
}

void RotateStream::CancelRequest(uint64_t sequence) {
  call_->CancelRequest(sequence);
}

std::future<Result<RotateReply>> RotateStream::RotateFuture(const RotateRequest& request) {
  auto promise = std::make_shared<std::promise<Result<RotateReply>>>();
  const Status status = call_->Rotate(
      request, [promise](Result<RotateReply> reply) { promise->set_value(std::move(reply)); });
  if (!status.ok()) promise->set_value(status);
  return promise->get_future();
}

Status RotateStream::Finish() {
  return call_->Finish();
}

void RotateStream::Cancel() {
  call_->Cancel();
}

}  // namespace rope::client
