#include "server/health.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rope_codec.h"

namespace rope::server {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

std::set<std::string> WithWhole(const std::vector<std::string>& services) {
  std::set<std::string> all(services.begin(), services.end());
  all.insert("");
  return all;
}

}  // namespace

// One Watch stream. All its state is guarded by the mutex of its Health, because states change on
// other threads than the stream's own.
class Health::WatchCall {
 public:
  static void Arm(Health& health, grpc::ServerCompletionQueue& queue) {
    auto call = std::unique_ptr<WatchCall>(new WatchCall(health, queue));  // owned by itself below
    WatchCall& armed = *call.release();
    armed.context_.AsyncNotifyWhenDone(&armed.done_);
    health.service_.RequestWatch(&armed.context_, &armed.request_, &armed.writer_, &queue, &queue,
                                 &armed.received_);
  }

  // Sends the state if it differs from what was sent last; called whenever it may have changed.
  void Update() ABSL_EXCLUSIVE_LOCKS_REQUIRED(health_.mutex_) {
    if (writing_ || finished_) return;
    if (health_.shut_down_ || gone_) {
      finished_ = true;
      writer_.Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "server: draining"), &ended_);
      return;
    }
    const auto status = health_.StatusOf(request_.service());
    if (sent_ == status) return;
    sent_ = status;
    writing_ = true;
    HealthCheckResponse response;
    response.set_status(status);
    writer_.Write(response, &written_);
  }

 private:
  WatchCall(Health& health, grpc::ServerCompletionQueue& queue)
      : health_(health), queue_(queue), writer_(&context_) {}

  void OnReceived(bool ok) {
    if (!ok) {
      delete this;
      return;
    }
    Arm(health_, queue_);
    proto::WriterMutexLock lock(&health_.mutex_);
    health_.watches_.insert(this);
    Update();
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

  // Both the last step and gRPC's done notification are back.
  void Release() {
    if (open_.fetch_sub(1) == 1) delete this;
  }

  Health& health_;
  grpc::ServerCompletionQueue& queue_;
  grpc::ServerContext context_;
  HealthCheckRequest request_;
  grpc::ServerAsyncWriter<HealthCheckResponse> writer_;
  std::optional<HealthCheckResponse::ServingStatus> sent_;
  bool writing_ = false;
  bool finished_ = false;
  bool gone_ = false;
  std::atomic<int> open_{2};
  CallEvent<WatchCall> received_{this, &WatchCall::OnReceived};
  CallEvent<WatchCall> written_{this, &WatchCall::OnWritten};
  CallEvent<WatchCall> ended_{this, &WatchCall::OnEnded};
  CallEvent<WatchCall> done_{this, &WatchCall::OnDone};
};

Health::Health(const std::vector<std::string>& services, CallsInFlight& in_flight)
    : services_(WithWhole(services)) {
  check_.in_flight = &in_flight;
  check_.request = [this](grpc::ServerContext* context, grpc::ByteBuffer* request,
                          grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>* writer,
                          grpc::ServerCompletionQueue* queue, void* tag) {
    service_.RequestCheck(context, request, writer, queue, queue, tag);
  };
  check_.handler = [this](UnaryCall& call) {
    const auto response = Check(call.request());
    call.Finish(response.status(), response.ok() ? EncodeMessage(*response) : grpc::ByteBuffer());
  };
}

Health::~Health() = default;

void Health::Arm(grpc::ServerCompletionQueue& queue) {
  UnaryCall::Arm(check_, queue);
  WatchCall::Arm(*this, queue);
}

void Health::SetServing(bool serving) {
  proto::WriterMutexLock lock(&mutex_);
  serving_ = serving;
  for (WatchCall* watch : watches_) watch->Update();
}

void Health::SetFaulted(const std::string& service) {
  proto::WriterMutexLock lock(&mutex_);
  faulted_.insert(service);
  for (WatchCall* watch : watches_) watch->Update();
}

void Health::Shutdown() {
  proto::WriterMutexLock lock(&mutex_);
  shut_down_ = true;
  for (WatchCall* watch : watches_) watch->Update();
}

absl::StatusOr<HealthCheckResponse> Health::Check(const grpc::ByteBuffer& bytes) const {
  HealthCheckRequest request;
  if (absl::Status status = DecodeMessage(bytes, request); !status.ok()) return status;
  proto::WriterMutexLock lock(&mutex_);
  HealthCheckResponse response;
  response.set_status(StatusOf(request.service()));
  if (response.status() != HealthCheckResponse::SERVICE_UNKNOWN) return response;
  return absl::NotFoundError(
      absl::StrCat("service: got \"", request.service(), "\", want one that this server has"));
}

HealthCheckResponse::ServingStatus Health::StatusOf(const std::string& service) const {
  if (!services_.contains(service)) return HealthCheckResponse::SERVICE_UNKNOWN;
  return serving_ && !faulted_.contains(service) ? HealthCheckResponse::SERVING
                                                 : HealthCheckResponse::NOT_SERVING;
}

}  // namespace rope::server
