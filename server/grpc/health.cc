#include "server/grpc/health.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/error.h"
#include "server/grpc/grpc_status.h"
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
// Its read, its last step and gRPC's done notification release the stream.
class Health::WatchCall final : public QueueCall {
 public:
  WatchCall(Health& health, std::shared_ptr<CallArming> arming)
      : QueueCall(health.watch_, std::move(arming), /*releases=*/3), health_(health) {}

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
    StartWrite(EncodeMessage(response));
  }

 private:
  void OnArrived() override {
    auto place = TakePlace(account(), Resource::kWatches);
    if (place.ok()) {
      place_ = *std::move(place);
      return StartRead();
    }
    {
      proto::WriterMutexLock lock(&health_.mutex_);
      End(place.status());
    }
    Release();  // nothing is read
  }

  void OnRead(bool ok) override {
    const absl::Status status =
        ok ? DecodeShortMessage(message_, request_) : InvalidField("request", "no message", "one");
    {
      proto::WriterMutexLock lock(&health_.mutex_);
      if (status.ok() && !finished_) {
        health_.watches_.insert(this);
        Update();
      } else {
        End(status);
      }
    }
    Release();
  }

  void OnWritten(bool ok) override {
    proto::WriterMutexLock lock(&health_.mutex_);
    writing_ = false;
    if (!ok) gone_ = true;
    Update();
  }

  void OnDone() override {
    {
      proto::WriterMutexLock lock(&health_.mutex_);
      gone_ = true;
      health_.watches_.erase(this);
      Update();
    }
    Release();
  }

  void EndRead(const absl::Status& status) override {
    proto::WriterMutexLock lock(&health_.mutex_);
    End(status);
  }

  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(health_.mutex_) {
    if (!std::exchange(finished_, true)) StartFinish(status);
  }

  Health& health_;
  HealthCheckRequest request_;
  Place place_;
  std::optional<HealthCheckResponse::ServingStatus> sent_ ABSL_GUARDED_BY(health_.mutex_);
  bool writing_ ABSL_GUARDED_BY(health_.mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(health_.mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(health_.mutex_) = false;
};

Health::Health(const std::vector<std::string>& services, const QueueCall::Parts& parts)
    : services_(services.begin(), services.end()),
      watch_{service_.RequestOf("Watch"), parts},
      check_{{service_.RequestOf("Check"), parts}, [this](ServiceCall& call) {
               const auto response = Check(call.request());
               call.Finish(response.status(),
                           response.ok() ? EncodeMessage(*response) : grpc::ByteBuffer());
             }} {}

void Health::Arm(CallQueue& queue) {
  CallArming::Start<UnaryCall>(queue, check_.request, check_);
  CallArming::Start<WatchCall>(queue, watch_.request, *this, /*wanted=*/1);
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
