#include "server/embedded/local_service.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/error.h"
#include "client/transport/fork.h"
#include "kernels/status_macros.h"
#include "proto/mutex.h"
#include "server/clients/limits.h"
#include "server/clients/peers.h"
#include "server/grpc/queue_call.h"
#include "server/limits.h"
#include "server/request/request.h"
#include "server/telemetry/process.h"

namespace rope::embedded {
namespace {

constexpr int kThreadsMax = 1024;

// A call whose caller waits for its end. Call: a kind of server::IncomingCall.
template <typename Call>
class AwaitedCall : public Call {
 public:
  AwaitedCall(absl::Duration timeout, const LocalService::Cancelled& cancelled,
              server::Connection& connection)
      : timeout_(timeout), cancelled_(cancelled), connection_(connection) {}

  server::Connection& connection() const final { return connection_; }
  absl::Duration time_left() const final { return timeout_; }
  const LocalService::Cancelled& cancelled() const final { return cancelled_; }

  // Waits until the call has ended, and returns its status. After the timeout it cancels the call,
  // and waits on.
  Status Await() {
    const bool is_late = !done_.HasBeenNotified() &&  // then no clock is read
                         !done_.WaitForNotificationWithTimeout(
                             absl::ToChronoNanoseconds(std::min(timeout_, kTimeoutMax)));
    if (is_late) cancelled_->store(true);
    done_.WaitForNotification();
    if (is_late && absl::IsCancelled(status_)) {
      return client::MakeError(Reason::kDeadline, "the deadline has passed");
    }
    return status_.ok() ? Status() : client::ToStatus(status_);
  }

 protected:
  // The call's answer has been kept. The caller may destroy the call at once.
  void End(const absl::Status& status) {
    status_ = status;
    done_.Notify();
  }

 private:
  static constexpr absl::Duration kTimeoutMax = absl::Hours(24 * 365);

  const absl::Duration timeout_;
  const LocalService::Cancelled& cancelled_;
  server::Connection& connection_;
  absl::Status status_;  // set at the end
  proto::Notification done_;
};

// A call of any method.
class EmbeddedCall final : public AwaitedCall<server::ServiceCall> {
 public:
  EmbeddedCall(grpc::ByteBuffer& message, absl::Duration timeout,
               const LocalService::Cancelled& cancelled, server::Connection& connection)
      : AwaitedCall(timeout, cancelled, connection), message_(message) {}

  grpc::ByteBuffer& request() override { return message_; }
  void Finish(const absl::Status& status, const grpc::ByteBuffer& reply,
              server::Permit permit) override {
    reply_ = reply;
    permit_ = std::move(permit);
    End(status);
  }
  // REQUIRES: the call has ended.
  const grpc::ByteBuffer& reply() const { return reply_; }

 private:
  grpc::ByteBuffer& message_;
  grpc::ByteBuffer reply_;
  server::Permit permit_;
};

// What a reply says of a rotation, in the words of the client (ReceivedReply reads it from bytes).
// Copies results that are staged.
client::RotateReply ReplyOf(const server::Request& finished,
                            std::vector<client::WantedTensor> wanted) {
  client::RotateReply reply;
  reply.request_id = finished.arrival.id;
  reply.attention_factor = finished.plan.attention_factor;
  reply.attention_factor_applied = finished.plan.attention_factor_applied;
  reply.device = finished.run.device;
  reply.stage_times = {.decode_us = finished.stages.decode,
                       .validate_us = finished.stages.validate,
                       .queue_us = finished.stages.queue,
                       .execute_us = finished.stages.execute};
  reply.warnings.assign(finished.plan.warnings.begin(), finished.plan.warnings.end());
  reply.tensors.reserve(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    client::RotatedTensor& tensor =
        reply.tensors.emplace_back(client::ResultOf(std::move(wanted[i])));
    const server::TensorPlan& plan = finished.plan.tensors[i];
    if (!kernels::IsFloat8(plan.output_dtype)) continue;
    tensor.fp8_scale = plan.output_scale;
    const std::atomic<int64_t>* const saturated = finished.run.SaturatedOf(i);
    if (saturated == nullptr) continue;  // no device counts them
    tensor.saturated = saturated->load(std::memory_order_relaxed);
  }
  return reply;
}

// A rotation.
class RotateCall final : public AwaitedCall<server::InProcessCall> {
 public:
  RotateCall(client::CallMessage message, std::vector<client::WantedTensor> wanted,
             const DeviceQueue* queue, absl::Duration timeout,
             const LocalService::Cancelled& cancelled, server::Connection& connection)
      : AwaitedCall(timeout, cancelled, connection),
        message_(std::move(message)),
        wanted_(std::move(wanted)),
        queue_(queue) {}

  server::Decoded TakeRequest() override {
    return {std::move(message_.arena), message_.head, std::move(message_.split)};
  }
  const DeviceQueue* queue() const override { return queue_; }
  void Answer(std::unique_ptr<server::Request> finished, const absl::Status& status) override {
    const absl::Status ended = status;  // the request may go with it
    if (ended.ok()) reply_ = ReplyOf(*finished, std::move(wanted_));
    finished.reset();
    End(ended);
  }
  // REQUIRES: the call has ended.
  client::RotateReply& reply() { return reply_; }

 private:
  client::CallMessage message_;
  std::vector<client::WantedTensor> wanted_;
  const DeviceQueue* const queue_;
  client::RotateReply reply_;
};

}  // namespace

Result<std::shared_ptr<LocalService>> LocalService::Create(const Options& options) {
  static_cast<void>(client::NoteConnect());                 // an engine works after a fork, too
  std::shared_ptr<LocalService> service(new LocalService);  // owned by service
  const absl::Status status = service->Build(options);
  if (!status.ok()) return client::ToStatus(status);
  return service;
}

absl::Status LocalService::Build(const Options& options) {
  if (options.threads < 0 || options.threads > kThreadsMax) {
    return server::InvalidField("threads", options.threads, absl::StrCat("0 to ", kThreadsMax));
  }
  if (options.memory_bytes != 0 && options.memory_bytes < server::limits::kMemoryBytesMin) {
    return server::InvalidField(
        "memory_bytes", options.memory_bytes,
        absl::StrCat("0, or ", server::limits::kMemoryBytesMin, " or more"));
  }
  if (options.device_table_bytes < 0) {
    return server::InvalidField("device_table_bytes", options.device_table_bytes, "0 or more");
  }
  const int64_t memory_bytes = options.memory_bytes > 0
                                   ? options.memory_bytes
                                   : server::DefaultMemoryBytes(server::AvailableMemory());
  server::Core::Options core;
  core.threads = options.threads > 0 ? options.threads : server::ProcessorCount();
  for (const Options::ModelConfig& model : options.models) {
    core.models.push_back({model.name, model.config_json});
  }
  core.shares = server::DivideMemory(memory_bytes, std::nullopt, std::nullopt);
  core.shared_memory.enabled = true;
  core.device_table_bytes = options.device_table_bytes;
  // Callers work for themselves. A request that would occupy one for long goes to the batch thread.
  core.batches.slices_direct = false;
  core.batches.direct_bytes_max = 256 * server::limits::kMiB;
  ROPE_ASSIGN_OR_RETURN(core_, server::Core::Create(std::move(core), clock_));
  auto account = core_->accounts().Of(server::OwnerOfUser(getuid()));
  connection_ = std::make_unique<server::Connection>(
      server::Connection::About{.id = 1, .account = std::move(account)}, core_->region_totals());
  ROPE_ASSIGN_OR_RETURN(region_id_, connection_->regions().RegisterProcess());
  ROPE_ASSIGN_OR_RETURN(device_region_id_, connection_->regions().RegisterDevices());
  return absl::OkStatus();
}

LocalService::~LocalService() {
  if (core_ == nullptr) return;  // Build failed
  core_->side_thread().Drain(absl::ZeroDuration());
  core_->batcher().Drain(absl::ZeroDuration());
}

Result<grpc::ByteBuffer> LocalService::Call(server::Method method, grpc::ByteBuffer& message,
                                            absl::Duration timeout,
                                            const Cancelled& cancelled) noexcept {
  EmbeddedCall call(message, timeout, cancelled, *connection_);
  core_->rope_service().Handle(method, call);
  RunWhatIsLeft();
  ROPE_RETURN_IF_ERROR(call.Await());
  return call.reply();
}

Result<client::RotateReply> LocalService::Rotate(client::CallMessage message,
                                                 std::vector<client::WantedTensor> wanted,
                                                 absl::Duration timeout, const Cancelled& cancelled,
                                                 const DeviceQueue* queue) noexcept {
  RotateCall call(std::move(message), std::move(wanted), queue, timeout, cancelled, *connection_);
  core_->rope_service().RotateInProcess(call);
  RunWhatIsLeft();
  ROPE_RETURN_IF_ERROR(call.Await());
  return std::move(call.reply());
}

// The engine may leave work for a thread that receives calls, as the callers do.
void LocalService::RunWhatIsLeft() {
  while (core_->batcher().RunGathered()) continue;
}

bool LocalService::HasService(const std::string& name) const {
  return name.empty() || std::ranges::count(core_->HealthNames(), name) > 0;
}

}  // namespace rope::embedded
