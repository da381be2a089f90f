#include "client/remote_connection.h"

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/calls/async_call.h"
#include "client/calls/fence.h"
#include "client/calls/prepare_call.h"
#include "client/codec/codec.h"
#include "client/codec/message_call.h"
#include "client/codec/messages.h"
#include "client/codec/preparation.h"
#include "client/error.h"
#include "client/transport/fork.h"
#include "kernels/status_macros.h"

namespace rope::client {

using std::chrono::microseconds;

RemoteConnection::Hooks RemoteConnection::DefaultHooks() {
  return {
      .sleep = [](microseconds delay) { std::this_thread::sleep_for(delay); },
      .random =
          [] {
            thread_local std::minstd_rand generator{std::random_device{}()};
            return std::uniform_real_distribution<double>(0, 1)(generator);
          },
  };
}

RemoteConnection::RemoteConnection(const std::string& target, const ConnectOptions& options,
                                   Hooks hooks)
    : connector_(std::make_shared<Connector>(target, options)), hooks_(std::move(hooks)) {}

// Everything runs on the calling thread and under no lock. Each attempt gets the link of its
// time, because the connection may have been dialed again.
template <typename Reply, typename Attempt>
Result<Reply> RemoteConnection::Retry(Connector& connector, const CallOptions& options,
                                      const Attempt& attempt) {
  ROPE_RETURN_IF_ERROR(CheckMetadata(options.metadata));
  Attempts attempts(options);
  for (;;) {
    const Result<std::shared_ptr<const Link>> link = connector.Get();
    if (!link.ok()) {
      if (!WaitForNext(attempts, link.status(), /*idempotent=*/true)) {
        return attempts.EndWith(link.status());
      }
      continue;
    }
    Outcome<Reply> outcome = attempt(**link, attempts);
    if (outcome.reply.ok()) return std::move(outcome.reply);
    connector.Note(**link, outcome.reply.status());
    if (!WaitForNext(attempts, outcome.reply.status(), outcome.idempotent)) {
      return attempts.EndWith(outcome.reply.status());
    }
  }
}

Result<grpc::ByteBuffer> RemoteConnection::CallNamed(const std::string& method,
                                                     const grpc::ByteBuffer& request,
                                                     bool idempotent, const CallOptions& options) {
  return Retry<
      grpc::ByteBuffer>(*connector_, options, [&](const Link& link, const Attempts& attempts) {
    return Outcome<grpc::ByteBuffer>{link.stub.Call(method, request, attempts.Next()), idempotent};
  });
}

Result<grpc::ByteBuffer> RemoteConnection::CallMethod(const char* method,
                                                      const grpc::ByteBuffer& request,
                                                      bool idempotent, const CallOptions& options) {
  return CallNamed(RopeMethod(method), request, idempotent, options);
}

Result<RotateReply> RemoteConnection::Rotate(const RotateRequest& request,
                                             const CallOptions& options) {
  const std::shared_ptr<Connector> connector = ConnectorOf(request);
  return Retry<RotateReply>(*connector, options, [&](const Link& link, const Attempts& attempts) {
    return RotateOnce(link, request, attempts);
  });
}

// Each attempt encodes the request again, because the link and its region may have changed. If
// the server has forgotten the request's id, nothing has run, and the same attempt goes on with the
// whole request.
RemoteConnection::Outcome<RotateReply> RemoteConnection::RotateOnce(const Link& link,
                                                                    const RotateRequest& request,
                                                                    const Attempts& attempts) {
  for (bool is_forgotten = false;; is_forgotten = true) {
    BorrowedSlices borrowed;
    const auto encode = is_forgotten ? &EncodeWhole : &EncodeRotate;
    Result<EncodedRotate> encoded = encode(request, link.region, link.rotate->route(), borrowed);
    if (!encoded.ok()) return {encoded.status(), /*idempotent=*/false};
    const Result<ReceivedReply> reply = link.rotate->Rotate(*encoded, borrowed, attempts.Next());
    if (reply.ok()) {
      auto result = reply->ToReply(std::move(encoded->wanted), connector_->outputs());
      if (is_forgotten) {
        PrepareAgain(link, *request.prepared, attempts.Next(), hooks_.random);
      }
      return {std::move(result), /*idempotent=*/false};
    }
    const bool was_by_id = !is_forgotten && request.prepared.has_value();
    if (!was_by_id || !IsForgotten(reply.status())) {
      encoded->staged.NoteFailure(reply.status());
      return {reply.status(), encoded->idempotent};
    }
  }
}

bool RemoteConnection::WaitForNext(Attempts& attempts, const Status& status,
                                   bool idempotent) const {
  const std::optional<microseconds> delay =
      attempts.DelayAfter(status, idempotent, hooks_.random());
  if (!delay.has_value()) return false;
  hooks_.sleep(*delay);
  return true;
}

Call RemoteConnection::RotateAsync(const RotateRequest& request, RotateCallback callback,
                                   const CallOptions& options) {
  std::call_once(queue_once_, [this] { queue_ = EventQueue::Start(connector_->callback_owner()); });
  const auto call = std::make_shared<AsyncCall>(ConnectorOf(request), queue_, std::move(callback),
                                                Attempts(options), hooks_.random);
  call->Start(request);
  return Call([started = std::weak_ptr<AsyncCall>(call)] {
    if (const auto live = started.lock()) live->Cancel();
  });
}

std::shared_ptr<Connector> RemoteConnection::ConnectorOf(const RotateRequest& request) const {
  std::shared_ptr<Connector> importing = imports_->Find(request);
  return importing != nullptr ? importing : connector_;
}

Result<ImportedMemory> RemoteConnection::ImportMemory(const MemoryFile& file,
                                                      const CallOptions& options) {
  Result<std::unique_ptr<SharedMemory>> shared = SharedMemory::Import(file);
  if (!shared.ok()) return shared.status();
  auto memory = std::make_shared<ArenaMemory>(*std::move(shared));
  std::byte* const data = memory->shared()->data();
  const auto copied = [&](std::string reason) {
    return ImportedMemory(data, file.bytes, {Transport::kInline, std::move(reason)}, memory);
  };
  if (!memory->shared()->is_sealed()) {
    return copied("fd: got a file that can shrink, want a memfd with F_SEAL_SHRINK");
  }
  if (!connector_->MayImport()) {
    return copied(
        "got a target or transports without shared memory, want unix:PATH and kRing or "
        "kMemfd");
  }
  const auto connector = std::make_shared<Connector>(*connector_, memory);
  const Status status = connector->ConnectImported(BoundedTimeout(options.timeout));
  if (status.code() == StatusCode::kFailedPrecondition) return copied(status.message());
  if (!status.ok()) return status;
  return ImportedMemory(data, file.bytes, connector->transport(),
                        DestroyedHereOnly(imports_->Add(connector)));
}

Status RemoteConnection::Fence(const CallOptions& options) {
  if (IsCallbackThreadOf(*connector_->callback_owner())) return FenceInCallback();
  const auto deadline = std::chrono::steady_clock::now() + BoundedTimeout(options.timeout);
  Status status = FenceOn(*connector_, deadline);
  for (const std::shared_ptr<Connector>& connector : imports_->All()) {
    if (status.ok()) status = FenceOn(*connector, deadline);
  }
  return status;
}

// Steps: take the link without dialing; run AwaitFence on it; if that fails, tell the connector,
// and ask it again whether a connection that shared the arena was lost. No lock is held.
Status RemoteConnection::FenceOn(Connector& connector,
                                 std::chrono::steady_clock::time_point deadline) {
  ROPE_ASSIGN_OR_RETURN(const std::shared_ptr<const Link> link, connector.GetForFence());
  const Region& region = link->region;
  if (region.ids == nullptr || region.is_staging) return {};
  const Status status = AwaitFence(link->stub, *region.ids, deadline);
  if (status.ok()) return status;
  connector.Note(*link, status);
  const Result<std::shared_ptr<const Link>> now =
      connector.GetForFence();  // UNAVAILABLE if the failure was a lost connection
  if (!now.ok()) return now.status();
  if (status.code() != StatusCode::kNotFound) return status;
  return MakeError(Reason::kConnectionLost, absl::StrCat("fence: ", status.message()));
}

RemoteConnection::~RemoteConnection() {
  if (queue_ != nullptr) queue_->Close();
}

Result<ServingStatus> RemoteConnection::Health(const std::string& service,
                                               const CallOptions& options) {
  return ServingStatusOf(CallNamed("/grpc.health.v1.Health/Check", HealthRequestOf(service),
                                   /*idempotent=*/true, options));
}

std::shared_ptr<void> Imports::Add(std::shared_ptr<Connector> connector) {
  const Connector* const added = connector.get();
  const std::shared_ptr<ArenaMemory> memory = connector->arena();
  {
    const proto::MutexLock lock(&mu_);
    connectors_.push_back(std::move(connector));
    any_.store(true, std::memory_order_relaxed);
  }
  // The connection may go first; the memory stays.
  return {nullptr, [imports = weak_from_this(), added, memory](void*) {
            const auto live = imports.lock();
            if (live == nullptr) return;
            std::shared_ptr<Connector> removed;  // closed after the lock is released
            const proto::MutexLock lock(&live->mu_);
            const auto found =
                std::find_if(live->connectors_.begin(), live->connectors_.end(),
                             [added](const auto& one) { return one.get() == added; });
            removed = std::move(*found);
            live->connectors_.erase(found);
            live->any_.store(!live->connectors_.empty(), std::memory_order_relaxed);
          }};
}

std::shared_ptr<Connector> Imports::Find(const RotateRequest& request) const {
  if (!any_.load(std::memory_order_relaxed) || request.tensors.empty()) return nullptr;
  const proto::MutexLock lock(&mu_);
  for (const std::shared_ptr<Connector>& connector : connectors_) {
    const auto holds = [&memory = *connector->arena()](const void* data) {
      return data == nullptr || memory.OffsetOf(data, 1).has_value();
    };
    const auto lies_there = [&holds](const TensorView& tensor) {
      return tensor.data != nullptr && holds(tensor.data) && holds(tensor.output);
    };
    if (std::all_of(request.tensors.begin(), request.tensors.end(), lies_there)) return connector;
  }
  return nullptr;
}

std::vector<std::shared_ptr<Connector>> Imports::All() const {
  const proto::MutexLock lock(&mu_);
  return connectors_;
}

}  // namespace rope::client
