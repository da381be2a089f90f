#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/calls/fence.h"
#include "client/codec/codec.h"
#include "client/codec/message_call.h"
#include "client/codec/preparation.h"
#include "client/error.h"
#include "client/memory/region.h"
#include "client/memory/shared_memory.h"
#include "client/message_connection.h"
#include "client/transport/fork.h"
#include "client/transport/stub.h"
#include "client/transport/waiter.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "proto/mutex.h"
#include "rope/async.h"
#include "rope/embedded.h"
#include "server/embedded/local_service.h"
#include "server/error.h"

namespace rope::embedded {
namespace {

using client::CallOptions;
using client::RotateReply;
using client::RotateRequest;
using std::chrono::steady_clock;
using SteadyTime = steady_clock::time_point;
using Cancelled = LocalService::Cancelled;

absl::Duration TimeLeft(SteadyTime deadline) {
  return absl::FromChrono(deadline - steady_clock::now());
}

Cancelled NotCancelled() {
  return std::make_shared<std::atomic<bool>>(false);
}

SteadyTime DeadlineOf(const CallOptions& options) {
  return steady_clock::now() + client::BoundedTimeout(options.timeout);
}

// The rotations of one connection: requests of the public client as calls of a LocalService.
//
//   request -> message with addresses (client/codec) -> LocalService -> reply
//
// Threading:  Thread-safe.
// Errors:     As Client::Rotate.
class LocalRotations {
 public:
  LocalRotations(std::shared_ptr<LocalService> service, int64_t pooled_bytes)
      : service_(std::move(service)),
        region_({.ids = std::make_shared<client::RegionIds>(service_->region_id()),
                 .process_outputs = std::make_shared<client::OutputPool>(pooled_bytes)}),
        devices_({.ids = std::make_shared<client::RegionIds>(service_->device_region_id()),
                  .is_device = true,
                  .process_outputs = region_.process_outputs}) {}

  // With a queue as Client::Enqueue. Of an id that the engine has forgotten nothing has run, and
  // the request goes whole.
  Result<RotateReply> Rotate(const RotateRequest& request, SteadyTime deadline,
                             const Cancelled& cancelled, const DeviceQueue* queue = nullptr) {
    try {
      Result<RotateReply> reply =
          RotateOnce(request, /*is_forgotten=*/false, deadline, cancelled, queue);
      const bool by_id = request.prepared.has_value();
      if (reply.ok() || !by_id || !client::IsForgotten(reply.status())) return reply;
      reply = RotateOnce(request, /*is_forgotten=*/true, deadline, cancelled, queue);
      if (reply.ok()) PrepareAgain(*request.prepared, deadline);
      return reply;
    } catch (const std::bad_alloc&) {  // encoding it, or memory for its results
      return client::ToStatus(server::OutOfMemory());
    }
  }
  // Frees the idle memory of replies; from now on none is kept.
  void Close() { region_.process_outputs->Close(); }
  LocalService& service() { return *service_; }
  client::RegionIds& ids() { return *region_.ids; }
  const client::Region& region() const { return region_; }

 private:
  Result<RotateReply> RotateOnce(const RotateRequest& request, bool is_forgotten,
                                 SteadyTime deadline, const Cancelled& cancelled,
                                 const DeviceQueue* queue) {
    client::BorrowedSlices none;
    const client::Region& region = queue != nullptr ? devices_ : region_;
    const auto encode = is_forgotten ? &client::EncodeWhole : &client::EncodeRotate;
    Result<client::EncodedRotate> encoded =
        encode(request, region, client::Route::kInProcess, none);
    if (!encoded.ok()) return encoded.status();
    Result<RotateReply> reply =
        service_->Rotate(*std::move(encoded->call), std::move(encoded->wanted), TimeLeft(deadline),
                         cancelled, queue);
    if (!reply.ok()) return reply;
    for (size_t i = 0; i < encoded->owned.size(); ++i) {
      client::RotatedTensor& tensor = reply->tensors[i];
      if (tensor.data == encoded->owned[i].get()) tensor.owned = std::move(encoded->owned[i]);
    }
    return reply;
  }

  // The answer is not read: its id is the same.
  void PrepareAgain(const client::PreparedRotation& rotation, SteadyTime deadline) {
    grpc::ByteBuffer message =
        client::BytesOf(client::PreparedState::Of(rotation)->preparation->message());
    static_cast<void>(
        service_->Call(server::Method::kPrepare, message, TimeLeft(deadline), NotCancelled()));
  }

  const std::shared_ptr<LocalService> service_;
  const client::Region region_;
  const client::Region devices_;
};

// CallbackThread: a thread that runs asynchronous calls, one after another, and their callbacks.
//
// Threading:  Thread-safe. The thread starts with the first call.
// Ownership:  The thread shares the calls: they outlive their connection in a callback that
//             destroys it.
class CallbackThread : public std::enable_shared_from_this<CallbackThread> {
 public:
  struct Call {
    std::unique_ptr<const client::KeptRequest> request = nullptr;
    Status refused = {};  // why there is no request
    SteadyTime deadline;
    // The reply goes to `callback` when the lease has been released.
    client::RotateCallback callback;
    Cancelled cancelled;
    client::RegionIds::Lease lease;
  };

  explicit CallbackThread(std::shared_ptr<LocalRotations> rotations)
      : rotations_(std::move(rotations)) {}

  // REQUIRES: not closed.
  void Add(Call call) {
    const proto::MutexLock lock(&mutex_);
    if (!thread_.joinable()) {
      thread_ = std::thread([self = shared_from_this()] { self->Run(); });
    }
    calls_.push_back(std::move(call));
    changed_.Signal();
  }
  bool IsCurrent() const { return std::this_thread::get_id() == id_.load(); }

  // Cancels all calls, and waits for their callbacks, except on the thread itself.
  void Close() {
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

 private:
  void Run() {
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

  // Runs a call and its callback.
  void Answer(Call call) {
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

  const std::shared_ptr<LocalRotations> rotations_;
  std::atomic<std::thread::id> id_;
  proto::Mutex mutex_;
  proto::CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Call> calls_ ABSL_GUARDED_BY(mutex_);
  Cancelled running_ ABSL_GUARDED_BY(mutex_);  // null: none runs
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

server::Method MethodOf(std::string_view name) {
  for (int i = 0; i < server::kMethodCount; ++i) {
    const auto method = static_cast<server::Method>(i);
    if (server::Name(method) == name) return method;
  }
  ROPE_CHECK(false);
}

// The Connection (rope/connection.h) to a service in this process.
//
// Threading:  As connection.h. Asynchronous calls run on CallbackThread, one after another, with
//             their callbacks.
// Ownership:  Connections share their service.
class EmbeddedConnection final : public client::MessageConnection {
 public:
  EmbeddedConnection(std::shared_ptr<LocalService> service, client::Arena arena,
                     int64_t pooled_bytes)
      : arena_(std::move(arena)),
        rotations_(std::make_shared<LocalRotations>(std::move(service), pooled_bytes)),
        calls_(std::make_shared<CallbackThread>(rotations_)) {}
  ~EmbeddedConnection() override {
    calls_->Close();
    rotations_->Close();
  }

  client::Arena arena() override { return arena_; }
  client::ChosenTransport transport() override { return {client::Transport::kInProcess, {}}; }
  // Any memory of the process is used in place.
  Result<client::ImportedMemory> ImportMemory(const client::MemoryFile& file,
                                              const CallOptions&) override {
    ROPE_ASSIGN_OR_RETURN(std::shared_ptr<client::SharedMemory> shared,
                          client::SharedMemory::Import(file));
    void* const data = shared->data();
    return client::ImportedMemory(data, file.bytes, transport(), std::move(shared));
  }
  Result<RotateReply> Rotate(const RotateRequest& request, const CallOptions& options) override {
    ROPE_RETURN_IF_ERROR(client::CheckMetadata(options.metadata));
    return rotations_->Rotate(request, DeadlineOf(options), NotCancelled());
  }
  client::Call RotateAsync(const RotateRequest& request, client::RotateCallback callback,
                           const CallOptions& options) override {
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
    const Cancelled cancelled = call.cancelled;
    calls_->Add(std::move(call));
    return client::Call([cancelled] { cancelled->store(true); });
  }
  Result<RotateReply> Enqueue(const RotateRequest& request, const DeviceQueue& queue) override {
    return rotations_->Rotate(request, DeadlineOf({}), NotCancelled(), &queue);
  }
  // Calls hold a lease of the region's id until nothing uses their tensors.
  Status Fence(const CallOptions& options) override {
    if (calls_->IsCurrent()) return client::FenceInCallback();
    return client::AwaitLeases(rotations_->ids(), DeadlineOf(options));
  }
  Result<client::ServingStatus> Health(const std::string& service, const CallOptions&) override {
    if (rotations_->service().HasService(service)) return client::ServingStatus::kServing;
    return client::MakeError(Reason::kServiceNotFound, "service", absl::StrCat("\"", service, "\""),
                             "one that this server has");
  }

 private:
  Result<grpc::ByteBuffer> CallMethod(const char* method, const grpc::ByteBuffer& request, bool,
                                      const CallOptions& options) override {
    ROPE_RETURN_IF_ERROR(client::CheckMetadata(options.metadata));
    grpc::ByteBuffer message = request;
    return rotations_->service().Call(MethodOf(method), message, TimeLeft(DeadlineOf(options)),
                                      NotCancelled());
  }

  const client::Arena arena_;
  const std::shared_ptr<LocalRotations> rotations_;
  const std::shared_ptr<CallbackThread> calls_;
};

Result<std::shared_ptr<client::Connection>> ConnectTo(
    absl::FunctionRef<Result<std::shared_ptr<LocalService>>()> find_service,
    const client::ConnectOptions& options) {
  for (const auto& [field, bytes] : {std::pair("arena_bytes", options.arena_bytes),
                                     std::pair("pooled_bytes", options.pooled_bytes)}) {
    if (bytes < 0) return client::InvalidField(field, bytes, "0 or more");
  }
  ROPE_ASSIGN_OR_RETURN(auto service, find_service());
  ROPE_ASSIGN_OR_RETURN(client::Arena arena, client::Arena::CreateLocal(options.arena_bytes));
  return std::shared_ptr<client::Connection>(std::make_shared<EmbeddedConnection>(
      std::move(service), std::move(arena), options.pooled_bytes));
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
  return ConnectTo([] { return SharedEngine::Get().Service(); }, options);
}

}  // namespace

Result<client::Client> Connect(const Options& engine, const client::ConnectOptions& options) {
  ROPE_ASSIGN_OR_RETURN(auto connection,
                        ConnectTo([&] { return LocalService::Create(engine); }, options));
  return client::Client(std::move(connection));
}

void Enable(const Options& engine) {
  SharedEngine::Get().SetOptions(engine);
  client::SetInProcessConnect(&ConnectToShared);
}

}  // namespace rope::embedded
