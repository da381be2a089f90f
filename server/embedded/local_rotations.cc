#include "server/embedded/local_rotations.h"

#include <new>

#include "client/codec/codec.h"
#include "client/codec/message_call.h"
#include "client/codec/preparation.h"
#include "client/error.h"
#include "server/error.h"

namespace rope::embedded {

using client::RotateReply;
using client::RotateRequest;

absl::Duration TimeLeft(SteadyTime deadline) {
  return absl::FromChrono(deadline - std::chrono::steady_clock::now());
}

LocalService::Cancelled NotCancelled() {
  return std::make_shared<std::atomic<bool>>(false);
}

LocalRotations::LocalRotations(std::shared_ptr<LocalService> service, int64_t pooled_bytes)
    : service_(std::move(service)),
      region_({.ids = std::make_shared<client::RegionIds>(service_->region_id()),
               .process_outputs = client::OutputPool::Make(pooled_bytes)}),
      devices_({.ids = std::make_shared<client::RegionIds>(service_->device_region_id()),
                .is_device = true,
                .process_outputs = region_.process_outputs}) {}

Result<RotateReply> LocalRotations::Rotate(const RotateRequest& request, SteadyTime deadline,
                                           const LocalService::Cancelled& cancelled,
                                           const std::optional<DeviceQueue>& queue) {
  try {
    return RotateWithin(request, deadline, cancelled, queue);
  } catch (const std::bad_alloc&) {  // encoding it, or memory for its results
    return client::ToStatus(server::OutOfMemory());
  }
}

// An id that the engine has forgotten: nothing has run, and the request goes whole.
Result<RotateReply> LocalRotations::RotateWithin(const RotateRequest& request, SteadyTime deadline,
                                                 const LocalService::Cancelled& cancelled,
                                                 const std::optional<DeviceQueue>& queue) {
  Result<RotateReply> reply =
      RotateOnce(request, /*is_forgotten=*/false, deadline, cancelled, queue);
  const bool by_id = request.prepared.has_value();
  if (reply.ok() || !by_id || !client::IsForgotten(reply.status())) return reply;
  reply = RotateOnce(request, /*is_forgotten=*/true, deadline, cancelled, queue);
  if (reply.ok()) PrepareAgain(*request.prepared, deadline);
  return reply;
}

Result<RotateReply> LocalRotations::RotateOnce(const RotateRequest& request, bool is_forgotten,
                                               SteadyTime deadline,
                                               const LocalService::Cancelled& cancelled,
                                               const std::optional<DeviceQueue>& queue) {
  client::BorrowedSlices none;
  const client::Region& region = queue.has_value() ? devices_ : region_;
  const auto encode = is_forgotten ? &client::EncodeWhole : &client::EncodeRotate;
  Result<client::EncodedRotate> encoded = encode(request, region, client::Route::kInProcess, none);
  if (!encoded.ok()) return encoded.status();
  Result<RotateReply> reply = service_->Rotate(
      *std::move(encoded->call), std::move(encoded->wanted), TimeLeft(deadline), cancelled, queue);
  if (!reply.ok()) return reply;
  for (size_t i = 0; i < encoded->owned.size(); ++i) {
    client::RotatedTensor& tensor = reply->tensors[i];
    if (tensor.data == encoded->owned[i].get()) tensor.owned = std::move(encoded->owned[i]);
  }
  return reply;
}

// The answer is not read: its id is the same.
void LocalRotations::PrepareAgain(const client::PreparedRotation& rotation, SteadyTime deadline) {
  grpc::ByteBuffer message =
      client::BytesOf(client::PreparedState::Of(rotation)->preparation->message());
  static_cast<void>(
      service_->Call(server::Method::kPrepare, message, TimeLeft(deadline), NotCancelled()));
}

void CallbackThread::Add(Call call) {
  const proto::MutexLock lock(&mutex_);
  if (!thread_.joinable()) {
    thread_ = std::thread([self = shared_from_this()] { self->Run(); });
  }
  calls_.push_back(std::move(call));
  changed_.Signal();
}

void CallbackThread::Run() {
  id_.store(std::this_thread::get_id());
  while (true) {
    Call call;
    {
      const proto::MutexLock lock(&mutex_);
      while (calls_.empty() && !closed_) changed_.Wait(&mutex_);
      if (calls_.empty()) break;
      call = std::move(calls_.front());
      calls_.pop_front();
      running_ = call.cancelled;
    }
    Answer(std::move(call));
    const proto::MutexLock lock(&mutex_);
    running_ = nullptr;
  }
  id_.store({});  // the system may give it to another thread
}

void CallbackThread::Answer(Call call) {
  Result<RotateReply> reply = client::CancelledByCaller(/*may_have_executed=*/false);
  if (call.request == nullptr) {
    reply = call.refused;
  } else if (!call.cancelled->load()) {
    reply = rotations_->Rotate(call.request->request, call.deadline, call.cancelled);
  }
  call.request.reset();
  call.lease.reset();
  call.callback(std::move(reply));
}

void CallbackThread::Close() {
  std::thread ended;
  {
    const proto::MutexLock lock(&mutex_);
    closed_ = true;
    for (const Call& call : calls_) call.cancelled->store(true);
    if (running_ != nullptr) running_->store(true);
    changed_.SignalAll();
    ended = std::move(thread_);
  }
  if (!ended.joinable()) return;
  if (IsCurrent()) return ended.detach();
  ended.join();
}

}  // namespace rope::embedded
