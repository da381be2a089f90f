#include "server/embedded/local_service.h"

#include <spdlog/logger.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "client/error.h"
#include "kernels/status_macros.h"
#include "proto/mutex.h"
#include "server/grpc/unary_call.h"
#include "server/memory/limits.h"
#include "server/memory/memory_limit.h"
#include "server/telemetry/process.h"

namespace rope::embedded {
namespace {

// All clients of an engine are one session.
constexpr uint64_t kSession = 1;

constexpr int kThreadsMax = 1024;

// A library writes no lines: errors are in the answers.
std::shared_ptr<spdlog::logger> SilentLogger() {
  auto logger = std::make_shared<spdlog::logger>("rope");  // without a sink
  logger->set_level(spdlog::level::off);
  return logger;
}

// One call, which its caller waits for.
class EmbeddedCall final : public server::ServiceCall {
 public:
  EmbeddedCall(grpc::ByteBuffer& message, absl::Duration timeout,
               const LocalService::Cancelled& cancelled, const std::string& owner)
      : message_(message), timeout_(timeout), cancelled_(cancelled), owner_(owner) {}

  grpc::ByteBuffer& request() override { return message_; }
  uint64_t session() const override { return kSession; }
  const std::string& owner() const override { return owner_; }
  absl::Duration time_left() const override { return timeout_; }
  const LocalService::Cancelled& cancelled() const override { return cancelled_; }

  void Finish(const absl::Status& status, const grpc::ByteBuffer& reply,
              server::Permit permit) override {
    const proto::MutexLock lock(&mutex_);
    status_ = status;
    reply_ = reply;
    permit_ = std::move(permit);
    is_done_ = true;
    done_.SignalAll();  // under the lock: the call may go as soon as it is free
  }

  Result<grpc::ByteBuffer> Await() {
    const proto::MutexLock lock(&mutex_);
    const bool is_late = !AwaitUntil(std::chrono::steady_clock::now() +
                                     absl::ToChronoNanoseconds(std::min(timeout_, kTimeoutMax)));
    if (is_late) cancelled_->store(true);
    while (!is_done_) done_.Wait(&mutex_);
    if (is_late && absl::IsCancelled(status_)) {
      return client::MakeError(Reason::kDeadline, "the deadline has passed");
    }
    if (!status_.ok()) return client::ToStatus(status_);
    return std::move(reply_);
  }

 private:
  static constexpr absl::Duration kTimeoutMax = absl::Hours(24 * 365);

  bool AwaitUntil(std::chrono::steady_clock::time_point end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (!is_done_) {
      const auto left = end - std::chrono::steady_clock::now();
      if (left <= left.zero()) return false;
      done_.WaitFor(&mutex_, left);
    }
    return true;
  }

  grpc::ByteBuffer& message_;
  const absl::Duration timeout_;
  const LocalService::Cancelled& cancelled_;
  const std::string& owner_;

  proto::Mutex mutex_;
  proto::CondVar done_;
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer reply_ ABSL_GUARDED_BY(mutex_);
  server::Permit permit_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

LocalService::LocalService()
    : peer_({.local = true, .uid = getuid(), .owner = server::OwnerOfUser(getuid())}) {}

Result<std::shared_ptr<LocalService>> LocalService::Create(const Options& options) {
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
  const int64_t memory_bytes = options.memory_bytes > 0
                                   ? options.memory_bytes
                                   : server::DefaultMemoryBytes(server::AvailableMemory());
  server::Core::Options core;
  core.threads = options.threads > 0 ? options.threads : server::ProcessorCount();
  for (const Options::ModelConfig& model : options.models) {
    core.models.push_back({model.name, model.config_json});
  }
  core.shares = server::DivideMemory(memory_bytes, std::nullopt, std::nullopt);
  core.regions.enabled = true;
  core.overwrites_received = false;
  core.shares_by_session = false;
  // A request of several slices goes to the batch thread, so that callers work for themselves.
  core.batches.direct_bytes_max =
      std::min(core.batches.direct_bytes_max, core.batches.slice_bytes_max);
  core.logger = SilentLogger();
  ROPE_ASSIGN_OR_RETURN(core_, server::Core::Create(std::move(core), clock_));
  core_->regions().OpenSession(kSession, peer_);
  ROPE_ASSIGN_OR_RETURN(region_id_, core_->regions().RegisterProcess(kSession));
  services_ = core_->HealthNames();
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
  EmbeddedCall call(message, timeout, cancelled, peer_.owner);
  core_->rope_service().Handle(method, call);
  // The engine may leave work for a thread that receives calls, as this one does.
  while (core_->batcher().RunGathered()) continue;
  return call.Await();
}

bool LocalService::HasService(const std::string& name) const {
  return name.empty() || std::find(services_.begin(), services_.end(), name) != services_.end();
}

}  // namespace rope::embedded
