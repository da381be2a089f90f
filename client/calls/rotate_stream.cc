// RotateStream: the public handle of a stream.
#include <memory>
#include <utility>

#include "rope/async.h"

namespace rope::client {

RotateStream::RotateStream(std::shared_ptr<StreamConnection> connection)
    : connection_(std::move(connection)) {}

RotateStream& RotateStream::operator=(RotateStream&& other) noexcept {
  if (this != &other) {
    if (connection_ != nullptr) connection_->Abandon();
    connection_ = std::move(other.connection_);
  }
  return *this;
}

RotateStream::~RotateStream() {
  if (connection_ != nullptr) connection_->Abandon();
}

Status RotateStream::Rotate(const RotateRequest& request, RotateCallback callback,
                            uint64_t* sequence) {
  return connection_->Rotate(request, std::move(callback), sequence);
}

void RotateStream::CancelRequest(uint64_t sequence) {
  connection_->CancelRequest(sequence);
}

std::future<Result<RotateReply>> RotateStream::RotateFuture(const RotateRequest& request) {
  auto promise = std::make_shared<std::promise<Result<RotateReply>>>();
  const Status status = connection_->Rotate(
      request, [promise](Result<RotateReply> reply) { promise->set_value(std::move(reply)); },
      nullptr);
  if (!status.ok()) promise->set_value(status);
  return promise->get_future();
}

Status RotateStream::Finish() {
  return connection_->Finish();
}

void RotateStream::Cancel() {
  connection_->Cancel();
}

}  // namespace rope::client
