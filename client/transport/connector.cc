#include "client/transport/connector.h"

#include <fcntl.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "client/error.h"
#include "client/transport/channel.h"
#include "kernels/status_macros.h"
#include "proto/ipc/hello.h"

namespace rope::client {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// The time that is left, but never 0, so that the error says why.
microseconds TimeLeft(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<microseconds>(deadline - std::chrono::steady_clock::now());
  return std::max<microseconds>(left, milliseconds(1));
}

// Dials a Unix target until a server listens or the time is over.
Result<proto::FileDescriptor> AwaitUnixSocket(const std::string& target,
                                              std::chrono::steady_clock::time_point deadline,
                                              microseconds timeout) {
  const std::optional<std::string> path = UnixPathOf(target);
  if (!path.has_value()) {
    return MakeError(Reason::kWrongState, "target", target, "unix:PATH");
  }
  for (;;) {
    Result<proto::FileDescriptor> socket = ConnectSocket(*path, timeout);
    if (socket.ok() || socket.status().code() != StatusCode::kUnavailable ||
        std::chrono::steady_clock::now() >= deadline) {
      return socket;
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
}

// Whether the link needs new staging memory.
bool HasLostHalf(const Region& region) {
  return region.is_staging && region.memory->lost_bytes() > region.memory->capacity_bytes() / 2;
}

}  // namespace

const char* Name(Transport transport) {
  constexpr const char* kNames[] = {"inline", "memfd", "ring", "in_process"};
  return kNames[static_cast<size_t>(transport)];
}

Connector::Connector(std::string target, const ConnectOptions& options)
    : target_(std::move(target)),
      options_(options),
      outputs_(std::make_shared<OutputPool>(options.pooled_bytes)),
      callback_owner_(std::make_shared<CallbackOwner>()) {}

Connector::Connector(const Connector& first, std::shared_ptr<ArenaMemory> memory)
    : target_(first.target_),
      options_([&first, &memory] {
        ConnectOptions options = first.options_;
        options.arena_bytes = memory->capacity_bytes();
        return options;
      }()),
      outputs_(first.outputs_),
      token_(first.token_),
      callback_owner_(first.callback_owner_),
      imported_(std::move(memory)) {}

// The pool is that of the first connector.
Connector::~Connector() {
  if (imported_ == nullptr) outputs_->Close();
}

Result<std::shared_ptr<ArenaMemory>> Connector::NewArena() const {
  if (imported_ != nullptr) return imported_;
  return ArenaMemory::Create(options_.arena_bytes, SharedMemory::Use::kArena);
}

bool Connector::IsAllowed(Transport transport) const {
  return absl::c_linear_search(options_.transports, transport);
}

Status Connector::CheckOptions() const {
  for (const auto& [field, bytes] : {std::pair("arena_bytes", options_.arena_bytes),
                                     std::pair("staged_bytes", options_.staged_bytes),
                                     std::pair("pooled_bytes", options_.pooled_bytes)}) {
    if (bytes < 0) return InvalidField(field, bytes, "0 or more");
  }
  const bool has_one = options_.arena_bytes > 0 ? !options_.transports.empty()
                                                : IsAllowed(Transport::kInline) || MayStage();
  if (!has_one) {
    return InvalidField("transports",
                        absl::StrCat("none that goes with arena_bytes ", options_.arena_bytes,
                                     " and staged_bytes ", options_.staged_bytes),
                        "one");
  }
  return CheckTls(target_, options_.tls);
}

bool Connector::MayShareMemory() const {
  return IsAllowed(Transport::kRing) || IsAllowed(Transport::kMemfd);
}

bool Connector::MayImport() const {
  return MayShareMemory() && UnixPathOf(target_).has_value();
}

bool Connector::MayStage() const {
  return options_.arena_bytes == 0 && options_.staged_bytes > 0 && MayShareMemory();
}

Status Connector::Connect(microseconds timeout) {
  ROPE_RETURN_IF_ERROR(CheckOptions());
  ROPE_ASSIGN_OR_RETURN(token_, BearerToken::Make(options_));
  const auto deadline = Clock::now() + timeout;
  Result<Dialed> dialed = MayShareMemory()
                              ? ConnectShared(deadline)
                              : MakeError(Reason::kWrongState, "not in ConnectOptions::transports");
  if (!dialed.ok()) {
    const std::string reason =
        absl::StrCat(Name(Transport::kMemfd), ": ", dialed.status().ToString());
    if (!IsAllowed(Transport::kInline)) {
      return MakeError(Reason::kWrongState, absl::StrCat(target_, ": ", reason));
    }
    dialed = ConnectInline(deadline, reason);
  }
  if (!dialed.ok()) return dialed.status();
  const proto::MutexLock lock(&mu_);
  current_ = *std::move(dialed);
  return {};
}

Status Connector::ConnectImported(microseconds timeout) {
  ROPE_ASSIGN_OR_RETURN(Dialed dialed, ConnectShared(Clock::now() + timeout));
  const proto::MutexLock lock(&mu_);
  current_ = std::move(dialed);
  return {};
}

Result<Connector::Dialed> Connector::ConnectInline(Clock::time_point deadline,
                                                   const std::string& reason) {
  ROPE_ASSIGN_OR_RETURN(arena_, NewArena());
  ChosenTransport chosen = {Transport::kInline, reason};
  if (const std::optional<std::string> path = UnixPathOf(target_); path.has_value()) {
    Result<proto::FileDescriptor> socket = ConnectSocket(*path, TimeLeft(deadline));
    if (socket.ok()) return NewLink(*std::move(socket), {}, nullptr, std::move(chosen));
  }
  const Dialed channel = NewLink({}, {}, nullptr, std::move(chosen));
  // The answer is left unused: a call on the channel fails with the reason.
  static_cast<void>(channel->stub.WaitForConnected(TimeLeft(deadline)));
  return channel;
}

// Memory is created once a server listens. Where it is for staging, the arena has none.
Result<Connector::Dialed> Connector::ConnectShared(Clock::time_point deadline) {
  const bool has_arena = options_.arena_bytes > 0;
  if (!has_arena && options_.staged_bytes == 0) {
    return MakeError(Reason::kWrongState,
                     "got neither arena_bytes nor staged_bytes, want memory to share");
  }
  // The other half is for the steps after a server that does not answer.
  microseconds timeout = TimeLeft(deadline) / 2;
  if (!has_arena) timeout = std::min<microseconds>(timeout, kRedialMax);
  ROPE_ASSIGN_OR_RETURN(proto::FileDescriptor socket, AwaitUnixSocket(target_, deadline, timeout));
  auto arena = NewArena();
  Result<Dialed> dialed = Greet(std::move(socket), has_arena ? arena : NewStaging());
  if (dialed.ok()) arena_ = *std::move(arena);
  return dialed;
}

Result<std::shared_ptr<ArenaMemory>> Connector::NewStaging() const {
  return ArenaMemory::Create(options_.staged_bytes, SharedMemory::Use::kStaging);
}

Result<Connector::Dialed> Connector::Greet(
    proto::FileDescriptor socket, const Result<std::shared_ptr<ArenaMemory>>& memory) const {
  if (!memory.ok()) return memory.status();
  std::shared_ptr<Ring> ring;
  if (IsAllowed(Transport::kRing)) {
    ROPE_ASSIGN_OR_RETURN(ring, Ring::Create(SpinOf(options_)));
  }
  const SharedMemory& shared = *(*memory)->shared();
  proto::ClientHello hello = {.bytes = static_cast<uint64_t>(shared.file_bytes())};
  std::vector<int> descriptors = {shared.fd()};
  if (ring != nullptr) {
    hello.ring_bytes = static_cast<uint64_t>(ring->memory().bytes());
    descriptors.push_back(ring->memory().fd());
  }
  auto answer = proto::ExchangeHello(socket.get(), hello, descriptors);
  if (!answer.ok()) {
    // A server answered that shares no memory: not the same as no server.
    return MakeError(Reason::kWrongState, answer.status().message());
  }
  if (answer->hello.code != absl::StatusCode::kOk) {
    return MakeError(Reason::kWrongState, "hello", absl::StatusCodeToString(answer->hello.code),
                     "OK");
  }
  proto::FileDescriptor watched(fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
  if (!answer->doorbell.ok() || !watched.ok()) ring = nullptr;
  if (ring == nullptr && !IsAllowed(Transport::kMemfd)) {
    return MakeError(Reason::kWrongState, "hello", "memory without a ring", "one with it");
  }
  ChosenTransport chosen = {.transport = Transport::kRing};
  if (ring == nullptr) {
    chosen = {Transport::kMemfd, IsAllowed(Transport::kRing)
                                     ? "ring: got a server that serves none"
                                     : "ring: not in ConnectOptions::transports"};
  } else {
    ring->Open(std::move(answer->doorbell), std::move(watched));
  }
  const Region region = {.memory = *memory,
                         .ids = std::make_shared<RegionIds>(answer->hello.region_id),
                         .is_staging = MayStage()};
  return NewLink(std::move(socket), region, std::move(ring), std::move(chosen));
}

Connector::Dialed Connector::NewLink(proto::FileDescriptor socket, Region region,
                                     std::shared_ptr<Ring> ring, ChosenTransport chosen) const {
  const bool is_own = socket.ok();
  const Stub stub(
      is_own ? MakeChannelOn(std::move(socket), options_) : MakeChannel(target_, options_),
      options_, token_);
  return std::make_shared<Link>(
      Link{.stub = stub,
           .rotate = std::make_shared<RotateTransport>(stub, std::move(ring), callback_owner_),
           .on_own_socket = is_own,
           .of_several = IsOfSeveral(target_),
           .region = std::move(region),
           .chosen = std::move(chosen)});
}

// The thread that finds the connection lost dials without mu_; the others wait for it. Where only
// staging memory is short, a failed dial leaves the link as it was.
Result<std::shared_ptr<const Link>> Connector::Get() {
  std::shared_ptr<const Link> lost;
  {
    const proto::MutexLock lock(&mu_);
    while (dialing_) dialed_.Wait(&mu_);
    if (!lost_ && !HasLostHalf(current_->region)) return current_;
    dialing_ = true;
    lost = current_;
  }
  Result<Dialed> dialed = Redial(*lost);
  const proto::MutexLock lock(&mu_);
  dialing_ = false;
  dialed_.SignalAll();
  if (!dialed.ok()) {
    if (lost_) return dialed.status();
    return current_;
  }
  lost_ = false;
  current_ = *std::move(dialed);
  return current_;
}

Result<Connector::Dialed> Connector::Redial(const Link& lost) const {
  ROPE_ASSIGN_OR_RETURN(proto::FileDescriptor socket,
                        ConnectSocket(*UnixPathOf(target_), kRedialMax));
  if (lost.region.ids == nullptr) {
    return NewLink(std::move(socket), {}, nullptr, lost.chosen);
  }
  Result<Dialed> dialed = Greet(std::move(socket), lost.region.is_staging ? NewStaging() : arena_);
  if (dialed.ok() || !IsAllowed(Transport::kInline)) return dialed;
  return NewLink({}, {}, nullptr,
                 {Transport::kInline, absl::StrCat("memfd: ", dialed.status().ToString())});
}

void Connector::Note(const Link& link, const Status& status) {
  if (status.code() == StatusCode::kUnauthenticated && token_ != nullptr) token_->OnRefused();
  const proto::MutexLock lock(&mu_);
  // A status from the server itself says whether the call ran.
  const bool is_gone =
      status.code() == StatusCode::kUnavailable && status.detail().may_have_executed;
  if (!link.on_own_socket || !is_gone || current_.get() != &link || lost_) return;
  lost_ = true;
  lost_arena_ |= link.region.ids != nullptr && !link.region.is_staging;
}

Result<std::shared_ptr<const Link>> Connector::GetForFence() {
  const proto::MutexLock lock(&mu_);
  if (!std::exchange(lost_arena_, false)) return current_;
  return MakeError(
      Reason::kConnectionLost,
      "fence: a connection that shared the memory was lost; the end of its server's work cannot "
      "be observed");
}

ChosenTransport Connector::transport() const {
  const proto::MutexLock lock(&mu_);
  return current_->chosen;
}

}  // namespace rope::client
