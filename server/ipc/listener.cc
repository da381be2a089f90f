#include "server/ipc/listener.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "proto/ipc/send_buffer.h"
#include "server/request/session.h"
#include "server/telemetry/log_line.h"

namespace rope::server {
namespace {

constexpr int kRetryAcceptMs = 100;
constexpr int kEventsMax = 64;
// Numbers below are those of the listening sockets, then come connections.
constexpr uint64_t kWakeNumber = 1 << 16;
constexpr uint64_t kFirstNumber = kWakeNumber + 1;

void LogHello(spdlog::level::level_enum level, const absl::Status& status) {
  LogLimited(LogKind::kHello, level, "hello code={} message={}",
             absl::StatusCodeToString(status.code()), Quoted(status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Create(const std::string& address,
                                                           RegionTable& regions, Options options) {
  auto sockets = ListenAt(address, options.socket_mode);
  if (!sockets.ok()) return sockets.status();
  proto::FileDescriptor wake(eventfd(0, EFD_CLOEXEC));
  proto::FileDescriptor events(epoll_create1(EPOLL_CLOEXEC));
  if (!wake.ok() || !events.ok()) {
    return absl::UnavailableError(
        absl::StrCat("--listen: got ", address, ", want more files than the server may open"));
  }
  return std::unique_ptr<Listener>(new Listener(*std::move(sockets), std::move(wake),  // owned by
                                                std::move(events), regions,            // the result
                                                std::move(options)));
}

Listener::Listener(ListenSockets sockets, proto::FileDescriptor wake, proto::FileDescriptor events,
                   RegionTable& regions, Options options)
    : sockets_(std::move(sockets)),
      wake_(std::move(wake)),
      events_(std::move(events)),
      regions_(regions),
      options_(std::move(options)),
      next_number_(kFirstNumber) {
  Watch(wake_.get(), EPOLLIN, kWakeNumber);
  for (size_t i = 0; i < sockets_.sockets.size(); ++i) {
    Watch(sockets_.sockets[i].get(), EPOLLIN, i);
  }
  thread_ = std::thread([this] { Loop(); });
}

Listener::~Listener() {
  const uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof(one)) != sizeof(one)) {
    spdlog::error("eventfd: cannot be written");
  }
  thread_.join();
  if (is_unix()) unlink(sockets_.path.c_str());
}

bool Listener::Watch(int fd, uint32_t what, uint64_t number) {
  epoll_event event{};
  event.events = what;
  event.data.u64 = number;
  return epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void Listener::Loop() {
  std::array<epoll_event, kEventsMax> events{};
  while (true) {
    const int count = epoll_wait(events_.get(), events.data(), kEventsMax, TimeoutMs());
    if (count < 0 && errno != EINTR) return;
    for (int i = 0; i < count; ++i) {
      const uint64_t number = events[static_cast<size_t>(i)].data.u64;
      if (number == kWakeNumber) return;
      if (number < kWakeNumber) {
        Accept(sockets_.sockets[number].get());
      } else if (pending_.contains(number)) {
        OnPending(number);
      } else if (const auto ended = watched_.find(number); ended != watched_.end()) {
        regions_.CloseSession(ended->second.token);
        if (options_.rings != nullptr) options_.rings->Close(ended->second.token);
        // gRPC may still have the socket, and epoll would go on about it.
        epoll_ctl(events_.get(), EPOLL_CTL_DEL, ended->second.socket.get(), nullptr);
        watched_.erase(ended);
      }
    }
    CloseOldPending();
  }
}

int Listener::TimeoutMs() const {
  if (pending_.empty()) return -1;
  const auto left = pending_.begin()->second.closes - std::chrono::steady_clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
}

void Listener::Accept(int listening) {
  proto::FileDescriptor accepted(
      accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!accepted.ok()) {
    // The client went again; or no descriptor is left, and asking again at once would only spin.
    if (errno != EMFILE && errno != ENFILE) return;
    if (!pending_.empty()) {
      pending_.erase(pending_.begin());
      return;
    }
    pollfd stop = {wake_.get(), POLLIN, 0};
    poll(&stop, 1, kRetryAcceptMs);
    return;
  }
  if (static_cast<int64_t>(pending_.size()) >= options_.pending_connections_max) {
    pending_.erase(pending_.begin());
  }
  if (is_unix()) proto::EnlargeSendBuffer(accepted.get());
  const uint64_t number = next_number_++;
  if (!Watch(accepted.get(), EPOLLIN | EPOLLRDHUP, number)) return;
  PendingConnection& connection = pending_[number];
  connection.peer = PeerOf(accepted.get(), is_unix());
  connection.closes =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options_.pending_max);
  connection.socket = std::move(accepted);
  OnPending(number);  // what it says has often come with it
}

void Listener::OnPending(uint64_t number) {
  const auto found = pending_.find(number);
  PendingConnection& connection = found->second;
  const HelloReader::Next next = connection.reader.Advance(connection.socket.get(), is_unix());
  if (next == HelloReader::Next::kWait) return;
  PendingConnection taken = std::move(connection);
  pending_.erase(found);
  if (next == HelloReader::Next::kClose) return;
  epoll_ctl(events_.get(), EPOLL_CTL_DEL, taken.socket.get(), nullptr);
  if (options_.peers != nullptr) options_.peers->Enter(taken.socket.get(), taken.peer.owner);
  const uint64_t token = OpenSession(taken);
  if (next == HelloReader::Next::kHello && !AnswerHello(taken, token)) {
    shutdown(taken.socket.get(), SHUT_RDWR);  // which the watch hears of
    return;
  }
  options_.hand_on(taken.socket.release());
}

void Listener::CloseOldPending() {
  const Instant now = std::chrono::steady_clock::now();
  while (!pending_.empty() && pending_.begin()->second.closes <= now)
    pending_.erase(pending_.begin());
}

uint64_t Listener::OpenSession(const PendingConnection& connection) {
  if (!regions_.options().enabled) return 0;
  const int fd = connection.socket.get();
  // First of all, since it ends the session of an earlier connection with this number.
  const uint64_t token = regions_.OpenSession(SessionOfDescriptor(fd), connection.peer);
  Watched watched = {.socket = proto::FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)),
                     .token = token};
  const uint64_t number = next_number_++;
  if (!watched.socket.ok() || !Watch(watched.socket.get(), EPOLLRDHUP, number)) {
    // Nothing would close the session: the connection does without one.
    regions_.CloseSession(token);
    return 0;
  }
  watched_[number] = std::move(watched);
  return token;
}

absl::StatusOr<Listener::Brought> Listener::RegisterBrought(
    const absl::StatusOr<proto::ClientHello>& hello, PendingConnection& connection,
    uint64_t token) {
  ROPE_RETURN_IF_ERROR(hello.status());
  const bool has_ring = hello->ring_bytes != 0;
  ROPE_ASSIGN_OR_RETURN(auto descriptors, connection.reader.ReleaseDescriptors(has_ring ? 2 : 1));
  const uint64_t session = SessionOfDescriptor(connection.socket.get());
  Brought brought;
  ROPE_ASSIGN_OR_RETURN(brought.region_id,
                        regions_.RegisterMemfd(session, std::move(descriptors[0]), hello->bytes));
  if (!has_ring || options_.rings == nullptr) return brought;
  auto doorbell = OpenRing(hello->ring_bytes, session, token, std::move(descriptors[1]));
  if (doorbell.ok()) {
    brought.doorbell = *std::move(doorbell);
  } else {  // the region serves without
    LogHello(spdlog::level::info, doorbell.status());
  }
  return brought;
}

absl::StatusOr<proto::FileDescriptor> Listener::OpenRing(uint64_t bytes, uint64_t session,
                                                         uint64_t token,
                                                         proto::FileDescriptor memfd) {
  ROPE_ASSIGN_OR_RETURN(auto memory, Ring::MapMemory(std::move(memfd), bytes));
  return options_.rings->Open(token, session, std::move(memory));
}

bool Listener::AnswerHello(PendingConnection& connection, uint64_t token) {
  const auto hello = proto::DecodeClientHello(connection.reader.bytes());
  if (absl::IsInvalidArgument(hello.status())) return false;
  absl::StatusOr<Brought> brought = RegisterBrought(hello, connection, token);
  proto::ServerHello answer = {brought.status().code(), token, 0};
  absl::InlinedVector<int, 1> descriptors;
  if (brought.ok()) {
    answer.region_id = brought->region_id;
    if (brought->doorbell.ok()) descriptors.push_back(brought->doorbell.get());
  } else {
    // Clients that have no need of it ask too.
    LogHello(regions_.options().enabled ? spdlog::level::info : spdlog::level::debug,
             brought.status());
  }
  // A new socket has room for 32 bytes; a client that made it none goes without.
  return proto::SendHello(connection.socket.get(), proto::Encode(answer), descriptors,
                          MSG_DONTWAIT);
}

}  // namespace rope::server
