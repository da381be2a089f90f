#include "server/embedded/embedded_connection.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/calls/fence.h"
#include "client/error.h"
#include "client/memory/shared_memory.h"
#include "client/message_connection.h"
#include "client/transport/fork.h"
#include "client/transport/stub.h"
#include "client/transport/waiter.h"
#include "kernels/check.h"

namespace rope::embedded {
namespace {

using client::CallOptions;
using client::RotateReply;
using client::RotateRequest;
using std::chrono::steady_clock;

SteadyTime DeadlineOf(const CallOptions& options) {
  return steady_clock::now() + client::BoundedTimeout(options.timeout);
}

server::Method MethodOf(std::string_view name) {
  for (int i = 0; i < server::kMethodCount; ++i) {
    const auto method = static_cast<server::Method>(i);
    if (server::Name(method) == name) return method;
  }
  ROPE_CHECK(false);
}

}  // namespace

EmbeddedConnection::EmbeddedConnection(std::shared_ptr<LocalService> service, client::Arena arena,
                                       int64_t pooled_bytes)
    : arena_(std::move(arena)),
      rotations_(std::make_shared<LocalRotations>(std::move(service), pooled_bytes)),
      calls_(std::make_shared<CallbackThread>(rotations_)) {}

// Any memory of the process is used in place.
Result<client::ImportedMemory> EmbeddedConnection::ImportMemory(const client::MemoryFile& file,
                                                                const CallOptions&) {
  Result<std::unique_ptr<client::SharedMemory>> shared = client::SharedMemory::Import(file);
  if (!shared.ok()) return shared.status();
  void* const data = (*shared)->data();
  return client::ImportedMemory(data, file.bytes, transport(),
                                std::shared_ptr<client::SharedMemory>(*std::move(shared)));
}

EmbeddedConnection::~EmbeddedConnection() {
  calls_->Close();
  rotations_->Close();
}

Result<RotateReply> EmbeddedConnection::Rotate(const RotateRequest& request,
                                               const CallOptions& options) {
  if (Status status = client::CheckMetadata(options.metadata); !status.ok()) return status;
  return rotations_->Rotate(request, DeadlineOf(options), NotCancelled());
}

Result<RotateReply> EmbeddedConnection::Enqueue(const RotateRequest& request,
                                                const DeviceQueue& queue) {
  return rotations_->Rotate(request, DeadlineOf({}), NotCancelled(), queue);
}

client::Call EmbeddedConnection::RotateAsync(const RotateRequest& request,
                                             client::RotateCallback callback,
                                             const CallOptions& options) {
  Result<std::unique_ptr<const client::KeptRequest>> kept =
      client::Keep(request, rotations_->region());
  Status refused = client::CheckMetadata(options.metadata);
  if (refused.ok()) refused = kept.status();
  CallbackThread::Call call = {.request = nullptr,
                               .refused = refused,
                               .deadline = DeadlineOf(options),
                               .callback = std::move(callback),
                               .cancelled = NotCancelled(),
                               .lease = rotations_->ids().Acquire()};
  if (refused.ok()) call.request = *std::move(kept);
  const LocalService::Cancelled cancelled = call.cancelled;
  calls_->Add(std::move(call));
  return client::Call([cancelled] { cancelled->store(true); });
}

// Calls hold a lease of the region's id until nothing uses their tensors.
Status EmbeddedConnection::Fence(const CallOptions& options) {
  if (calls_->IsCurrent()) return client::FenceInCallback();
  return client::AwaitLeases(rotations_->ids(), DeadlineOf(options));
}

Result<client::ServingStatus> EmbeddedConnection::Health(const std::string& service,
                                                         const CallOptions&) {
  if (rotations_->service().HasService(service)) return client::ServingStatus::kServing;
  return client::MakeError(Reason::kServiceNotFound, "service", absl::StrCat("\"", service, "\""),
                           "one that this server has");
}

Result<grpc::ByteBuffer> EmbeddedConnection::CallMethod(const char* method,
                                                        const grpc::ByteBuffer& request, bool,
                                                        const CallOptions& options) {
  if (Status status = client::CheckMetadata(options.metadata); !status.ok()) return status;
  grpc::ByteBuffer message = request;
  return rotations_->service().Call(MethodOf(method), message, TimeLeft(DeadlineOf(options)),
                                    NotCancelled());
}

namespace {

Status CheckOptions(const client::ConnectOptions& options) {
  for (const auto& [field, bytes] : {std::pair("arena_bytes", options.arena_bytes),
                                     std::pair("pooled_bytes", options.pooled_bytes)}) {
    if (bytes < 0) return client::InvalidField(field, bytes, "0 or more");
  }
  return {};
}

Result<std::shared_ptr<client::Connection>> ConnectTo(std::shared_ptr<LocalService> service,
                                                      const client::ConnectOptions& options) {
  Result<client::Arena> arena = client::Arena::CreateLocal(options.arena_bytes);
  if (!arena.ok()) return arena.status();
  return std::shared_ptr<client::Connection>(std::make_shared<EmbeddedConnection>(
      std::move(service), *std::move(arena), options.pooled_bytes));
}

// The engine of all clients of "inproc:".
class SharedEngine {
 public:
  static SharedEngine& Get() {
    static SharedEngine engine;
    return engine;
  }

  void SetOptions(const Options& options) {
    const proto::MutexLock lock(&mutex_);
    options_ = options;
  }
  Result<std::shared_ptr<LocalService>> Service() {
    const proto::MutexLock lock(&mutex_);
    auto running = service_.lock();
    if (running != nullptr && forks_ == client::ForkCount()) return running;
    // The parent's: its threads are not here.
    if (running != nullptr) client::KeepUntilExit(std::move(running));
    auto started = LocalService::Create(options_);
    if (started.ok()) service_ = *started;
    forks_ = client::ForkCount();
    return started;
  }

 private:
  proto::Mutex mutex_;
  Options options_ ABSL_GUARDED_BY(mutex_);
  std::weak_ptr<LocalService> service_ ABSL_GUARDED_BY(mutex_);
  int forks_ ABSL_GUARDED_BY(mutex_) = 0;  // when it was created
};

Result<std::shared_ptr<client::Connection>> ConnectToShared(const client::ConnectOptions& options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  auto service = SharedEngine::Get().Service();
  if (!service.ok()) return service.status();
  return ConnectTo(*std::move(service), options);
}

}  // namespace

Result<client::Client> Connect(const Options& engine, const client::ConnectOptions& options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  auto service = LocalService::Create(engine);
  if (!service.ok()) return service.status();
  auto connection = ConnectTo(*std::move(service), options);
  if (!connection.ok()) return connection.status();
  return client::Client(*std::move(connection));
}

void Enable(const Options& engine) {
  SharedEngine::Get().SetOptions(engine);
  client::SetInProcessConnect(&ConnectToShared);
}

}  // namespace rope::embedded
