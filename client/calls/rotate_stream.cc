// RotateStream: the public handle of a stream.
#include <memory>
#include <utility>

#include "client/transport/fork.h"
#include "rope/async.h"

namespace rope::client {

RotateStream::RotateStream(std::shared_ptr<StreamConnection> connection)
    : connection_(DestroyedHereOnly(std::move(connection))), forks_(ForkCount()) {}

RotateStream& RotateStream::operator=(RotateStream&& other) noexcept {
  if (this != &other) {
    if (connection_ != nullptr && !is_of_parent()) connection_->Abandon();
    connection_ = std::move(other.connection_);
    forks_ = other.forks_;
  }
  return *this;
}

RotateStream::~RotateStream() {
  if (connection_ != nullptr && !is_of_parent()) connection_->Abandon();
}

bool RotateStream::is_of_parent() const {
  return forks_ != ForkCount();
}

Status RotateStream::Rotate(const RotateRequest& request, RotateCallback callback,
                            uint64_t* sequence) {
  if (is_of_parent()) return MadeByParent();
  return connection_->Rotate(request, std::move(callback), sequence);
}

void RotateStream::CancelRequest(uint64_t sequence) {
  if (!is_of_parent()) connection_->CancelRequest(sequence);
}

std::future<Result<RotateReply>> RotateStream::RotateFuture(const RotateRequest& request) {
  auto promise = std::make_shared<std::promise<Result<RotateReply>>>();
  const Status status = Rotate(
      request, [promise](Result<RotateReply> reply) { promise->set_value(std::move(reply)); });
  if (!status.ok()) promise->set_value(status);
  return promise->get_future();
}

Status RotateStream::Finish() {
  if (is_of_parent()) return MadeByParent();
  return connection_->Finish();
}

void RotateStream::Cancel() {
  if (!is_of_parent()) connection_->Cancel();
}

}  // namespace rope::client
