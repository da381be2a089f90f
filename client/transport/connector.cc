#include "client/transport/connector.h"

#include <fcntl.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/error.h"
#include "client/transport/channel.h"
#include "client/transport/waiter.h"
#include "proto/ipc/hello.h"

namespace rope::client {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// What is left, but never nothing, so that the error says why.
microseconds Until(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<microseconds>(deadline - std::chrono::steady_clock::now());
  return std::max<microseconds>(left, milliseconds(1));
}

// Dials a Unix target until somebody listens or the time is over.
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

// Whether there is more to gain from new staging memory than it costs.
bool HasLostHalf(const Region& region) {
  return region.is_staging && region.memory->lost_bytes() > region.memory->capacity_bytes() / 2;
}

}  // namespace

const char* Name(Transport transport) {
  switch (transport) {
    case Transport::kInline:
      return "inline";
    case Transport::kMemfd:
      return "memfd";
    case Transport::kRing:
      return "ring";
  }
  return "unknown";
}

Connector::Connector(std::string target, const ConnectOptions& options)
    : target_(std::move(target)),
      options_(options),
      outputs_(OutputPool::Make(options.pooled_bytes)) {}

bool Connector::IsAllowed(Transport transport) const {
  return std::find(options_.transports.begin(), options_.transports.end(), transport) !=
         options_.transports.end();
}

Status Connector::CheckOptions() const {
  if (options_.arena_bytes < 0) {
    return InvalidField("arena_bytes", options_.arena_bytes, "0 or more");
  }
  if (options_.staged_bytes < 0) {
    return InvalidField("staged_bytes", options_.staged_bytes, "0 or more");
  }
  if (options_.pooled_bytes < 0) {
    return InvalidField("pooled_bytes", options_.pooled_bytes, "0 or more");
  }
  const bool has_one = options_.arena_bytes > 0 ? !options_.transports.empty()
                                                : IsAllowed(Transport::kInline) || MayStage();
  if (!has_one) {
    return InvalidField("transports",
                        absl::StrCat("none that goes with arena_bytes ", options_.arena_bytes,
                                     " and staged_bytes ", options_.staged_bytes),
                        "one");
  }
  return {};
}

bool Connector::MayBringMemory() const {
  return IsAllowed(Transport::kRing) || IsAllowed(Transport::kMemfd);
}

bool Connector::MayStage() const {
  return options_.arena_bytes == 0 && options_.staged_bytes > 0 && MayBringMemory();
}

Status Connector::Connect(microseconds timeout) {
  if (Status status = CheckOptions(); !status.ok()) return status;
  const auto deadline = Clock::now() + timeout;
  const auto connect =
      options_.arena_bytes > 0 ? &Connector::ConnectMemfd : &Connector::ConnectStaged;
  const Status status = MayBringMemory()
                            ? (this->*connect)(deadline)
                            : MakeError(Reason::kWrongState, "not in ConnectOptions::transports");
  if (status.ok()) {
    const proto::MutexLock lock(&mu_);
    chosen_ = MemoryOfSession();
    return {};
  }
  const std::string reason = absl::StrCat(Name(Transport::kMemfd), ": ", status.ToString());
  if (IsAllowed(Transport::kInline)) return ConnectInline(deadline, reason);
  return MakeError(Reason::kWrongState, absl::StrCat(target_, ": ", reason));
}

ChosenTransport Connector::MemoryOfSession() const {
  if (session_->ring != nullptr) return {Transport::kRing, ""};
  return {Transport::kMemfd, IsAllowed(Transport::kRing)
                                 ? "ring: got a server that serves none"
                                 : "ring: not in ConnectOptions::transports"};
}

Status Connector::ConnectInline(Clock::time_point deadline, const std::string& reason) {
  std::unique_ptr<SharedMemory> shared;
  if (options_.arena_bytes > 0) {
    Result<std::unique_ptr<SharedMemory>> memory =
        SharedMemory::CreateMemfd(options_.arena_bytes, SharedMemory::Use::kArena);
    if (!memory.ok()) return memory.status();
    shared = *std::move(memory);
  }
  arena_ = std::make_shared<ArenaMemory>(std::move(shared));
  std::shared_ptr<const Session> session = InlineSession(deadline);
  const proto::MutexLock lock(&mu_);
  session_ = std::move(session);
  chosen_ = {Transport::kInline, reason};
  return {};
}

std::shared_ptr<const Session> Connector::InlineSession(Clock::time_point deadline) const {
  if (const std::optional<std::string> path = UnixPathOf(target_); path.has_value()) {
    Result<proto::FileDescriptor> socket = ConnectSocket(*path, Until(deadline));
    if (socket.ok()) return SessionOn(*std::move(socket), {}, nullptr);
  }
  std::shared_ptr<Session> channel = OwnChannel();
  // The answer is left unused: a call on the channel fails with the reason.
  static_cast<void>(channel->stub.WaitForConnected(Until(deadline)));
  return channel;
}

Status Connector::ConnectMemfd(Clock::time_point deadline) {
  // The other half is for what comes after a server that does not answer.
  Result<proto::FileDescriptor> socket = AwaitUnixSocket(target_, deadline, Until(deadline) / 2);
  if (!socket.ok()) return socket.status();
  Result<std::unique_ptr<SharedMemory>> memory =
      SharedMemory::CreateMemfd(options_.arena_bytes, SharedMemory::Use::kArena);
  if (!memory.ok()) return memory.status();
  auto arena = std::make_shared<ArenaMemory>(*std::move(memory));
  Result<std::shared_ptr<const Session>> session = Greet(*std::move(socket), arena);
  if (!session.ok()) return session.status();
  arena_ = std::move(arena);
  const proto::MutexLock lock(&mu_);
  session_ = *std::move(session);
  return {};
}

Status Connector::ConnectStaged(Clock::time_point deadline) {
  if (options_.staged_bytes == 0) {
    return MakeError(Reason::kWrongState,
                     "got neither arena_bytes nor staged_bytes, want memory to share");
  }
  Result<proto::FileDescriptor> socket =
      AwaitUnixSocket(target_, deadline, std::min<microseconds>(Until(deadline) / 2, kRedialMax));
  if (!socket.ok()) return socket.status();
  Result<std::shared_ptr<const Session>> session = GreetStaged(*std::move(socket));
  if (!session.ok()) return session.status();
  arena_ = std::make_shared<ArenaMemory>(nullptr);
  const proto::MutexLock lock(&mu_);
  session_ = *std::move(session);
  return {};
}

Result<std::shared_ptr<const Session>> Connector::GreetStaged(proto::FileDescriptor socket) const {
  Result<std::unique_ptr<SharedMemory>> memory =
      SharedMemory::CreateMemfd(options_.staged_bytes, SharedMemory::Use::kStaging);
  if (!memory.ok()) return memory.status();
  return Greet(std::move(socket), std::make_shared<ArenaMemory>(*std::move(memory)));
}

Result<std::shared_ptr<const Session>> Connector::Greet(proto::FileDescriptor socket,
                                                        std::shared_ptr<ArenaMemory> memory) const {
  std::shared_ptr<Ring> ring;
  if (IsAllowed(Transport::kRing)) {
    Result<std::unique_ptr<Ring>> created = Ring::Create(SpinOf(options_));
    if (!created.ok()) return created.status();
    ring = *std::move(created);
  }
  const SharedMemory& shared = *memory->shared();
  proto::ClientHello hello = {.bytes = static_cast<uint64_t>(shared.bytes())};
  std::vector<int> descriptors = {shared.fd()};
  if (ring != nullptr) {
    hello.ring_bytes = static_cast<uint64_t>(ring->memory().bytes());
    descriptors.push_back(ring->memory().fd());
  }
  auto answer = proto::ExchangeHello(socket.get(), hello, descriptors);
  if (!answer.ok()) {
    // There is a server, and it has no such memory: not the same as no server.
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
  if (ring != nullptr) ring->Open(std::move(answer->doorbell), std::move(watched));
  const Region region = {.memory = std::move(memory),
                         .ids = std::make_shared<RegionIds>(answer->hello.region_id),
                         .is_staging = MayStage()};
  return SessionOn(std::move(socket), region, std::move(ring));
}

std::shared_ptr<const Session> Connector::SessionOn(proto::FileDescriptor socket, Region region,
                                                    std::shared_ptr<Ring> ring) const {
  return std::make_shared<Session>(
      Session{.stub = Stub(MakeChannelOn(std::move(socket), options_), options_),
              .on_own_socket = true,
              .region = std::move(region),
              .ring = std::move(ring),
              .prepared = std::make_shared<PreparedRequests>(options_.prepare_repeated)});
}

std::shared_ptr<Session> Connector::OwnChannel() const {
  return std::make_shared<Session>(
      Session{.stub = Stub(MakeChannel(target_, options_), options_),
              .prepared = std::make_shared<PreparedRequests>(options_.prepare_repeated)});
}

Result<std::shared_ptr<const Session>> Connector::Get() {
  const proto::MutexLock lock(&mu_);
  if (lost_ || HasLostHalf(session_->region)) {
    const Status status = Redial();
    if (lost_ && !status.ok()) return status;  // else there is still the one before
    lost_ = false;
  }
  return session_;
}

Status Connector::Redial() {
  Result<proto::FileDescriptor> socket = ConnectSocket(*UnixPathOf(target_), kRedialMax);
  if (!socket.ok()) return socket.status();
  if (session_->region.ids == nullptr) {
    session_ = SessionOn(*std::move(socket), {}, nullptr);
    return {};
  }
  Result<std::shared_ptr<const Session>> session = session_->region.is_staging
                                                       ? GreetStaged(*std::move(socket))
                                                       : Greet(*std::move(socket), arena_);
  if (session.ok()) {
    session_ = *std::move(session);
    chosen_ = MemoryOfSession();
    return {};
  }
  if (!IsAllowed(Transport::kInline)) return session.status();
  session_ = OwnChannel();
  chosen_ = {Transport::kInline, absl::StrCat("memfd: ", session.status().ToString())};
  return {};
}

void Connector::Note(const Session& session, const Status& status) {
  const proto::MutexLock lock(&mu_);
  // Where the server speaks, it says whether it ran.
  const bool is_gone =
      status.code() == StatusCode::kUnavailable && status.detail().may_have_executed;
  if (!session.on_own_socket || !is_gone || session_.get() != &session || lost_) return;
  lost_ = true;
  lost_arena_ |= session.region.ids != nullptr && !session.region.is_staging;
}

Result<std::shared_ptr<const Session>> Connector::GetForFence() {
  const proto::MutexLock lock(&mu_);
  if (!std::exchange(lost_arena_, false)) return session_;
  return MakeError(
      Reason::kConnectionLost,
      "fence: a connection that shared the memory was lost; nobody tells when its server "
      "is done with it");
}

ChosenTransport Connector::transport() const {
  const proto::MutexLock lock(&mu_);
  return chosen_;
}

}  // namespace rope::client
