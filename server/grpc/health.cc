#include "server/grpc/health.h"

#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/error.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/limits.h"
#include "server/grpc/rope_codec.h"
#include "server/request/request.h"

namespace rope::server {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

}  // namespace

// One Watch stream. The mutex of its Health guards all its state, because SetServing, SetFaulted
// and Shutdown call Update on other threads. gRPC is called under that mutex; it never calls back.
//
//   armed -> arrived (headers) -> read: enters `watches_` -> writes a status at each change
//         -> End: at Shutdown, or when the client has gone
//
// The stream deletes itself when its read, its last step and gRPC's done notification are back.
class Health::WatchCall final : private Transfers::Transfer {
 public:
  static void Arm(Health& health, grpc::ServerCompletionQueue& queue) {
    auto call = std::unique_ptr<WatchCall>(new WatchCall(health, queue));  // owned by itself below
    WatchCall& armed = *call.release();
    armed.context_.AsyncNotifyWhenDone(&armed.done_);
    health.watch_(&armed.context_, &armed.stream_, &queue, &armed.arrived_);
  }

  // Sends the status if it differs from the one sent last. Called whenever it may have changed.
  void Update() ABSL_EXCLUSIVE_LOCKS_REQUIRED(health_.mutex_) {
    if (writing_ || finished_) return;
    if (health_.shut_down_ || gone_) {
      End(MakeError({.reason = Reason::kDraining}, "server: draining"));
      return;
    }
    const auto status = health_.StatusOf(request_.service());
    if (sent_ == status) return;
    sent_ = status;
    writing_ = true;
    HealthCheckResponse response;
    response.set_status(status);
    stream_.Write(EncodeMessage(response), &written_);
  }

 private:
  WatchCall(Health& health, grpc::ServerCompletionQueue& queue)
      : Transfers::Transfer(/*may_idle=*/false),
        open_call_(*health.check_.in_flight),
        health_(health),
        queue_(queue),
        stream_(&context_) {}

  void OnArrived(bool ok) {
    if (!ok) {
      delete this;
      return;
    }
    health_.receiving_.Enter(*this, SessionOfPeer(context_.peer()));
    stream_.Read(&message_, &read_);
    Arm(health_, queue_);
  }

  void OnRead(bool ok) {
    health_.receiving_.Leave(*this);
    const absl::Status status =
        ok ? DecodeShortMessage(message_, request_) : InvalidField("request", "no message", "one");
    {
      proto::WriterMutexLock lock(&health_.mutex_);
      read_seen_ = true;
      if (status.ok() && !finished_) {
        health_.watches_.insert(this);
        Update();
      } else {
        End(status);
      }
    }
    Release();
  }

  void OnWritten(bool ok) {
    proto::WriterMutexLock lock(&health_.mutex_);
    writing_ = false;
    if (!ok) gone_ = true;
    Update();
  }

  void OnEnded(bool) { Release(); }

  void OnDone(bool) {
    {
      proto::WriterMutexLock lock(&health_.mutex_);
      gone_ = true;
      health_.watches_.erase(this);
      Update();
    }
    Release();
  }

  void EndTransfer(const absl::Status& status) override {
    proto::WriterMutexLock lock(&health_.mutex_);
    if (!read_seen_) End(status);
  }
  void AbortTransfer() override { context_.TryCancel(); }

  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(health_.mutex_) {
    if (std::exchange(finished_, true)) return;
    stream_.Finish(ToGrpcStatus(status, context_), &ended_);
  }

  void Retain() override { open_.fetch_add(1); }
  // Deletes the call with the last reference: read, last step, done notification, retained reads.
  void Release() override {
    if (open_.fetch_sub(1) == 1) delete this;
  }

  const CallsInFlight::Open open_call_;  // first, because it ends last
  Health& health_;
  grpc::ServerCompletionQueue& queue_;
  grpc::ServerContext context_;
  RawStream stream_;
  grpc::ByteBuffer message_;
  HealthCheckRequest request_;
  std::optional<HealthCheckResponse::ServingStatus> sent_ ABSL_GUARDED_BY(health_.mutex_);
  bool read_seen_ ABSL_GUARDED_BY(health_.mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(health_.mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(health_.mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(health_.mutex_) = false;
  std::atomic<int> open_{3};  // read, ended and done
  CallEvent<WatchCall> arrived_{this, &WatchCall::OnArrived};
  CallEvent<WatchCall> read_{this, &WatchCall::OnRead};
  CallEvent<WatchCall> written_{this, &WatchCall::OnWritten};
  CallEvent<WatchCall> ended_{this, &WatchCall::OnEnded};
  CallEvent<WatchCall> done_{this, &WatchCall::OnDone};
};

Health::Health(const std::vector<std::string>& services, CallsInFlight& in_flight,
               Transfers& receiving)
    : services_(services.begin(), services.end()),
      receiving_(receiving),
      service_(*HealthCheckRequest::descriptor()->file()->FindServiceByName("Health")),
      watch_(service_.RequestOf("Watch")) {
  check_.request = service_.RequestOf("Check");
  check_.handler = [this](UnaryCall& call) {
    const auto response = Check(call.request());
    call.Finish(response.status(), response.ok() ? EncodeMessage(*response) : grpc::ByteBuffer());
  };
  check_.in_flight = &in_flight;
  check_.receiving = &receiving;
}

void Health::Arm(grpc::ServerCompletionQueue& queue) {
  UnaryCall::Arm(check_, queue, limits::kArmedCalls);
  WatchCall::Arm(*this, queue);
}

void Health::UpdateWatches() {
  for (WatchCall* watch : watches_) watch->Update();
}

void Health::SetServing(bool serving) {
  proto::WriterMutexLock lock(&mutex_);
  serving_ = serving;
  UpdateWatches();
}

bool Health::serving() const {
  proto::ReaderMutexLock lock(&mutex_);
  return serving_;
}

void Health::SetFaulted(const std::string& service) {
  proto::WriterMutexLock lock(&mutex_);
  faulted_.insert(service);
  UpdateWatches();
}

void Health::Shutdown() {
  proto::WriterMutexLock lock(&mutex_);
  shut_down_ = true;
  UpdateWatches();
}

absl::StatusOr<HealthCheckResponse> Health::Check(grpc::ByteBuffer& bytes) const {
  HealthCheckRequest request;
  if (absl::Status status = DecodeShortMessage(bytes, request); !status.ok()) return status;
  proto::ReaderMutexLock lock(&mutex_);
  HealthCheckResponse response;
  response.set_status(StatusOf(request.service()));
  if (response.status() != HealthCheckResponse::SERVICE_UNKNOWN) return response;
  return MakeError(Reason::kServiceNotFound, "service", absl::StrCat("\"", request.service(), "\""),
                   "one that this server has");
}

HealthCheckResponse::ServingStatus Health::StatusOf(const std::string& service) const {
  const bool is_known = service.empty() || services_.contains(service);
  if (!is_known) return HealthCheckResponse::SERVICE_UNKNOWN;
  return serving_ && !faulted_.contains(service) ? HealthCheckResponse::SERVING
                                                 : HealthCheckResponse::NOT_SERVING;
}

}  // namespace rope::server
