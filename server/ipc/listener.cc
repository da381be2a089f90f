#include "server/ipc/listener.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

// As gRPC's own listener: data that is not acknowledged for so long means that the peer is gone.
constexpr int kUserTimeoutMs = 20'000;
// When the kernel asks a silent peer whether it is there, and asks again. It ends the connection by
// kUserTimeoutMs.
constexpr int kKeepaliveSeconds = 60;
constexpr int kKeepaliveStepSeconds = 10;

bool SomebodyListens(const sockaddr_un& address) {
  const proto::FileDescriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

absl::Status Failed(const std::string& address, const char* step) {
  return absl::UnavailableError(absl::StrCat("--listen: got ", address,
                                             ", want an address that can be listened on (", step,
                                             ": ", std::strerror(errno), ")"));
}

absl::StatusOr<ListenSockets> ListenAtPath(const std::string& listen_address,
                                           std::optional<mode_t> mode) {
  ListenSockets result;
  result.address = listen_address;
  result.path = listen_address.substr(std::strlen(kUnixPrefix));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (result.path.empty() || result.path.size() >= sizeof(address.sun_path)) {
    return InvalidField("--listen", absl::StrCat("a path of ", result.path.size(), " bytes"),
                        absl::StrCat("1 to ", sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, result.path.data(), result.path.size());
  if (SomebodyListens(address)) {
    errno = EADDRINUSE;
    return Failed(listen_address, "connect");
  }
  if (!RemoveSocketFile(result.path)) {
    errno = EEXIST;
    return Failed(listen_address, "a file that is no socket");
  }
  proto::FileDescriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Failed(listen_address, "bind");
  }
  // Before any client can connect, and never through a link put there meanwhile.
  if (mode.has_value() &&
      fchmodat(AT_FDCWD, result.path.c_str(), *mode, AT_SYMLINK_NOFOLLOW) != 0) {
    return Failed(listen_address, "chmod");
  }
  if (listen(listener.get(), SOMAXCONN) != 0) return Failed(listen_address, "listen");
  result.sockets.push_back(std::move(listener));
  return result;
}

// The port field of an IPv4 or IPv6 address.
in_port_t& PortOf(sockaddr& address) {
  if (address.sa_family == AF_INET6) return reinterpret_cast<sockaddr_in6&>(address).sin6_port;
  return reinterpret_cast<sockaddr_in&>(address).sin_port;
}

// Listens at one address, and fills in the port if it is 0.
absl::StatusOr<proto::FileDescriptor> ListenAtAddress(const addrinfo& info,
                                                      const std::string& listen_address) {
  proto::FileDescriptor listener(
      socket(info.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto set = [&listener](int level, int option, int value) {
    setsockopt(listener.get(), level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_REUSEADDR, 1);  // allows a restart while old connections are in TIME_WAIT
  // Accepted connections inherit the rest. Small answers are sent at once.
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveStepSeconds);
  // Whatever the system's default is.
  if (info.ai_family == AF_INET6) set(IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(listener.get(), info.ai_addr, info.ai_addrlen) != 0) {
    return Failed(listen_address, "bind");
  }
  if (listen(listener.get(), SOMAXCONN) != 0) return Failed(listen_address, "listen");
  socklen_t length = info.ai_addrlen;
  if (getsockname(listener.get(), info.ai_addr, &length) != 0) {
    return Failed(listen_address, "getsockname");
  }
  return listener;
}

bool HasIpv6() {
  return proto::FileDescriptor(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)).ok();
}

absl::StatusOr<ListenSockets> ListenAtPort(const std::string& listen_address) {
  const size_t colon = listen_address.rfind(':');
  std::string host = listen_address.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  if (host == "0.0.0.0" && HasIpv6()) host = "::";
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string service = listen_address.substr(colon + 1);
  if (const int error = getaddrinfo(host.c_str(), service.c_str(), &hints, &found); error != 0) {
    return absl::UnavailableError(absl::StrCat("--listen: got ", listen_address,
                                               ", want an address that can be listened on (",
                                               gai_strerror(error), ")"));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, &freeaddrinfo);
  ListenSockets result;
  absl::Status last;
  in_port_t port = 0;  // of the first address; the others take it
  for (addrinfo* info = all.get(); info != nullptr; info = info->ai_next) {
    if (port != 0) PortOf(*info->ai_addr) = port;
    auto listener = ListenAtAddress(*info, listen_address);
    if (listener.ok()) {
      port = PortOf(*info->ai_addr);
      result.sockets.push_back(*std::move(listener));
    } else if (errno == EADDRINUSE) {
      return listener.status();
    } else {
      last = listener.status();  // for example a host without IPv6
    }
  }
  if (result.sockets.empty()) return last;
  result.address = absl::StrCat(listen_address.substr(0, colon), ":", ntohs(port));
  return result;
}

}  // namespace

bool RemoveSocketFile(const std::string& path) {
  struct stat about {};
  if (lstat(path.c_str(), &about) != 0) return errno == ENOENT;
  return S_ISSOCK(about.st_mode) && unlink(path.c_str()) == 0;
}

absl::StatusOr<ListenSockets> ListenAt(const std::string& address, std::optional<mode_t> mode) {
  return absl::StartsWith(address, kUnixPrefix) ? ListenAtPath(address, mode)
                                                : ListenAtPort(address);
}

namespace {

constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr char kTlsFirstByte = 0x16;  // a record of the handshake

HelloReader::Next Failed() {
  const bool nothing_yet = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  return nothing_yet ? HelloReader::Next::kWait : HelloReader::Next::kClose;
}

}  // namespace

HelloReader::Next HelloReader::Advance(int socket, Speaks speaks) {
  if (hello_.have == 0) {
    const Next next = Look(socket, speaks);
    if (next != Next::kHello) return next;
  }
  while (!hello_.is_complete()) {
    const ssize_t got = hello_.ReceiveSome(socket, MSG_DONTWAIT);
    if (got < 0) return Failed();
    if (got == 0) return Next::kClose;
  }
  return Next::kHello;
}

// The rest of a handshake with TLS is gRPC's, which bounds its time.
HelloReader::Next HelloReader::Look(int socket, Speaks speaks) const {
  std::array<char, kHttp2Preface.size()> first{};
  const ssize_t got = recv(socket, first.data(), first.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0) return Failed();
  if (got == 0) return Next::kClose;
  const bool is_tls = first[0] == kTlsFirstByte;
  if (speaks == Speaks::kTls) return is_tls ? Next::kPlain : Next::kNoTls;
  if (is_tls) return Next::kTls;
  if (speaks == Speaks::kHttp2OrHello && first[0] == proto::kHelloFirstByte) return Next::kHello;
  const std::string_view bytes(first.data(), static_cast<size_t>(got));
  const bool is_part = bytes.size() < kHttp2Preface.size() && kHttp2Preface.starts_with(bytes);
  return is_part ? Next::kWait : Next::kPlain;
}

absl::StatusOr<std::vector<proto::FileDescriptor>> HelloReader::ReleaseDescriptors(size_t count) {
  if (hello_.descriptors.size() == count && !hello_.has_more_descriptors) {
    return std::move(hello_.descriptors);
  }
  const std::string got =
      hello_.has_more_descriptors ? "more" : absl::StrCat(hello_.descriptors.size());
  return InvalidField("hello", absl::StrCat(got, " descriptors"),
                      absl::StrCat(count, ": the region's, and the ring's if the hello has one"));
}

namespace {

constexpr int kRetryAcceptMs = 100;
constexpr int kEventsMax = 64;
// The number in an epoll event says what it is about: listening sockets are below kWakeNumber,
// connections (pending or watched) start at kFirstNumber.
constexpr uint64_t kWakeNumber = 1 << 16;
constexpr uint64_t kFirstNumber = kWakeNumber + 1;

void LogHello(spdlog::level::level_enum level, const absl::Status& status) {
  LogLimited(LogKind::kHello, level,
             LogLine("hello")
                 .Word("code", absl::StatusCodeToString(status.code()))
                 .Text("message", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Create(const std::string& address,
                                                           Connections& connections,
                                                           Options options) {
  auto sockets = ListenAt(address, options.socket_mode);
  if (!sockets.ok()) return sockets.status();
  proto::FileDescriptor wake(eventfd(0, EFD_CLOEXEC));
  proto::FileDescriptor events(epoll_create1(EPOLL_CLOEXEC));
  if (!wake.ok() || !events.ok()) {
    return absl::UnavailableError(
        absl::StrCat("--listen: got ", address,
                     ", want a free file descriptor: the server has reached its limit"));
  }
  return std::unique_ptr<Listener>(new Listener(*std::move(sockets), std::move(wake),  // owned by
                                                std::move(events), connections,        // the result
                                                std::move(options)));
}

Listener::Listener(ListenSockets sockets, proto::FileDescriptor wake, proto::FileDescriptor events,
                   Connections& connections, Options options)
    : sockets_(std::move(sockets)),
      wake_(std::move(wake)),
      events_(std::move(events)),
      connections_(connections),
      options_(std::move(options)),
      next_number_(kFirstNumber) {
  Watch(wake_.get(), EPOLLIN, kWakeNumber);
  for (size_t i = 0; i < sockets_.sockets.size(); ++i) {
    Watch(sockets_.sockets[i].get(), EPOLLIN, i);
  }
  thread_ = std::thread([this] {
    Loop();
    if (!stopped_listening_.HasBeenNotified()) stopped_listening_.Notify();  // the system failed
  });
}

Listener::~Listener() {
  StopListening();
  WakeLoop(wake_);
  thread_.join();
}

void Listener::StopListening() {
  if (stopped_listening_.HasBeenNotified()) return;
  if (is_unix()) RemoveSocketFile(sockets_.path);
  WakeLoop(wake_);
  stopped_listening_.WaitForNotification();
}

bool Listener::Watch(int fd, uint32_t what, uint64_t number) {
  epoll_event event{};
  event.events = what;
  event.data.u64 = number;
  return epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

// The loop has no mutex: only this thread touches pending_ and watched_, and the eventfd `wake_`
// tells it to stop listening, and then to end. Three kinds of events come from one epoll instance:
//   - a listening socket is readable: Accept, which makes the connection pending
//   - a pending connection is readable or closed: OnPending
//   - the second descriptor of a passed-on socket reports EPOLLRDHUP: the connection no longer
//     counts, and its regions and ring end
// A number that is in neither map belongs to a connection that was removed earlier in this round.
void Listener::Loop() {
  std::array<epoll_event, kEventsMax> events{};
  while (true) {
    const int count = epoll_wait(events_.get(), events.data(), kEventsMax, TimeoutMs());
    if (count < 0 && errno != EINTR) return;
    for (int i = 0; i < count; ++i) {
      const uint64_t number = events[static_cast<size_t>(i)].data.u64;
      if (number == kWakeNumber) {
        uint64_t wakes = 0;
        if (stopped_listening_.HasBeenNotified()) return;
        if (read(wake_.get(), &wakes, sizeof(wakes)) != sizeof(wakes)) return;
        sockets_.sockets.clear();
        pending_.clear();
        stopped_listening_.Notify();
      } else if (number < sockets_.sockets.size()) {
        Accept(sockets_.sockets[number].get());
      } else if (pending_.contains(number)) {
        OnPending(number);
      } else if (const auto ended = watched_.find(number); ended != watched_.end()) {
        if (options_.rings != nullptr) options_.rings->Close(ended->second.place->id());
        // gRPC may still hold the socket open, and epoll would then report it again.
        epoll_ctl(events_.get(), EPOLL_CTL_DEL, ended->second.fd, nullptr);
        // What it sent last is of no use to a client that has gone, and may cost gRPC seconds.
        ended->second.place->ShutDown();
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

// Without a free descriptor, or memory, accept4 fails and the listening socket stays readable, so
// the loop would spin. The oldest pending connection is closed to free one. If there is none, wait
// for a moment.
void Listener::Accept(int listening) {
  proto::FileDescriptor accepted(
      accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!accepted.ok()) {
    // Other errors: the client has gone again.
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
    LogLimited(LogKind::kConnection, spdlog::level::warn,
               LogLine(absl::StrCat("accept: ", std::strerror(errno))));
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
  // By edges: half a preface stays in the socket.
  if (!Watch(accepted.get(), EPOLLIN | EPOLLRDHUP | EPOLLET, number)) return;
  PendingConnection& connection = pending_[number];
  connection.owner = OwnerOf(accepted.get(), is_unix());
  connection.closes =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options_.handshake_timeout);
  connection.socket = std::move(accepted);
  OnPending(number);  // its first bytes have often come with it
}

// Once the first bytes decide, the connection leaves the pending map and this epoll entry for good.
// The order of the rest matters: the connection is entered before gRPC sees the socket, so that the
// first request finds it.
void Listener::OnPending(uint64_t number) {
  const auto found = pending_.find(number);
  PendingConnection& connection = found->second;
  const HelloReader::Next next = connection.reader.Advance(connection.socket.get(), Speaks());
  if (next == HelloReader::Next::kWait) return;
  PendingConnection taken = std::move(connection);
  pending_.erase(found);
  using Next = HelloReader::Next;
  if (next == Next::kTls) connections_.CountClosed(taken.owner, CloseReason::kClientWithTls);
  if (next == Next::kNoTls) connections_.CountClosed(taken.owner, CloseReason::kClientWithoutTls);
  if (next == Next::kClose || next == Next::kNoTls) return;
  epoll_ctl(events_.get(), EPOLL_CTL_DEL, taken.socket.get(), nullptr);
  const auto entered = Enter(taken);
  if (!entered.ok()) {
    Refuse(taken, next, entered.status());
    return;
  }
  if (next == HelloReader::Next::kHello && !AnswerHello(taken, *entered)) {
    shutdown(taken.socket.get(), SHUT_RDWR);  // the watch then ends the connection
    return;
  }
  options_.hand_on(taken.socket.release());
}

// The close is what gRPC's clients back off for. A reason in HTTP/2's words (GOAWAY) needs SETTINGS
// before it, with which they count the connection as a success and call again without a pause.
void Listener::Refuse(const PendingConnection& connection, HelloReader::Next next,
                      const absl::Status& why) {
  LogLimited(LogKind::kConnection, spdlog::level::warn,
             LogLine(absl::StrCat("connection refused: ", why.message())));
  if (next != HelloReader::Next::kHello) return;
  proto::SendHello(connection.socket.get(), proto::Encode(proto::ServerHello{why.code(), 0, 0}), {},
                   MSG_DONTWAIT);
}

void Listener::CloseOldPending() {
  const Instant now = std::chrono::steady_clock::now();
  while (!pending_.empty() && pending_.begin()->second.closes <= now)
    pending_.erase(pending_.begin());
}

// A duplicate of the descriptor stays in epoll to report the end of the connection.
absl::StatusOr<std::shared_ptr<Connection>> Listener::Enter(const PendingConnection& pending) {
  const int fd = pending.socket.get();
  proto::FileDescriptor second(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  const uint64_t number = next_number_++;
  if (!second.ok() || !Watch(second.get(), EPOLLRDHUP, number)) {
    return absl::ResourceExhaustedError("no file descriptor is left to watch the connection");
  }
  Watched watched = {.fd = second.get()};
  const std::string name = options_.tls ? PeerNameOf(fd) : "";
  ROPE_ASSIGN_OR_RETURN(watched.place,
                        connections_.Enter(fd, pending.owner, is_unix(), std::move(second), name));
  std::shared_ptr<Connection> connection = watched.place->shared_from_this();
  watched_[number] = std::move(watched);
  return connection;
}

absl::StatusOr<Listener::Brought> Listener::RegisterBrought(
    const absl::StatusOr<proto::ClientHello>& hello, PendingConnection& pending,
    const std::shared_ptr<Connection>& connection) {
  ROPE_RETURN_IF_ERROR(hello.status());
  if (options_.admit_memory != nullptr) {
    ROPE_RETURN_IF_ERROR(options_.admit_memory(pending.owner));
  }
  const bool has_ring = hello->ring_bytes != 0;
  ROPE_ASSIGN_OR_RETURN(auto descriptors, pending.reader.ReleaseDescriptors(has_ring ? 2 : 1));
  Brought brought;
  ROPE_ASSIGN_OR_RETURN(brought.region_id, connection->regions().RegisterMemfd(
                                               std::move(descriptors[0]), hello->bytes));
  if (!has_ring || options_.rings == nullptr) return brought;
  auto doorbell = options_.rings->Open(connection, std::move(descriptors[1]), hello->ring_bytes);
  if (doorbell.ok()) {
    brought.doorbell = *std::move(doorbell);
  } else {  // the region works without its ring
    LogHello(spdlog::level::info, doorbell.status());
  }
  return brought;
}

// A hello whose region is refused is answered with the status code, and the connection stays
// usable. False closes the connection: bytes that are not a hello, or an answer that does not fit
// the socket.
bool Listener::AnswerHello(PendingConnection& pending,
                           const std::shared_ptr<Connection>& connection) {
  const auto hello = proto::DecodeClientHello(pending.reader.bytes());
  if (absl::IsInvalidArgument(hello.status())) return false;
  absl::StatusOr<Brought> brought = RegisterBrought(hello, pending, connection);
  proto::ServerHello answer = {brought.status().code(), connection->id(), 0};
  absl::InlinedVector<int, 1> descriptors;
  if (brought.ok()) {
    answer.region_id = brought->region_id;
    if (brought->doorbell.ok()) descriptors.push_back(brought->doorbell.get());
  } else {
    // Without shared memory refusals are normal: clients that only might use it ask too.
    LogHello(connection->regions().enabled() ? spdlog::level::info : spdlog::level::debug,
             brought.status());
  }
  // A new socket has room for 32 bytes, unless the client has shrunk its buffer. Never block on it.
  return proto::SendHello(pending.socket.get(), proto::Encode(answer), descriptors, MSG_DONTWAIT);
}

}  // namespace rope::server
