#include "server/clients/connections.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <deque>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/status_macros.h"
#include "server/clock.h"
#include "server/error.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

constexpr std::string_view kReasonNames[kCloseReasonCount] = {
    "lost_calls",         "untaken_replies", "no_call",      "idle",
    "client_without_tls", "client_with_tls", "tls_handshake"};

// "Handshake failed with fatal error SSL_ERROR_SSL: error:0A0000C7:SSL routines::REASON."
constexpr absl::string_view kFailureLine = "Handshake failed with fatal error ";
constexpr size_t kFailuresMax = 64;

struct FailedHandshakes {
  proto::Mutex mutex;
  std::deque<std::pair<absl::Time, std::string>> causes ABSL_GUARDED_BY(mutex);  // oldest first
};

FailedHandshakes& FailuresOfProcess() {
  static auto* const failures = new FailedHandshakes;  // owned by the process
  return *failures;
}

// The oldest cause of the last second, which is then forgotten. Empty: there is none.
std::string TakeFailure() {
  FailedHandshakes& failures = FailuresOfProcess();
  proto::MutexLock lock(&failures.mutex);
  while (!failures.causes.empty()) {
    const auto [at, cause] = std::move(failures.causes.front());
    failures.causes.pop_front();
    if (SteadyClock().Now() - at < absl::Seconds(1)) return cause;
  }
  return {};
}

// Takes what has come and was not read. Bounded, because the client may go on sending.
void DropReceived(int socket) {
  constexpr int kReadsMax = 1024;
  std::array<char, 16 * 1024> bytes;
  for (int i = 0; i < kReadsMax; ++i) {
    if (recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT) <= 0) return;
  }
}

}  // namespace

std::string_view NameOf(CloseReason reason) {
  return kReasonNames[static_cast<size_t>(reason)];
}

std::optional<Connection::Traffic> Connection::traffic() const {
  proto::MutexLock lock(&mutex_);
  tcp_info info = {};
  socklen_t length = sizeof(info);
  int unread = 0;
  if (is_unix() || !socket_.ok() ||
      getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0 ||
      ioctl(socket_.get(), FIONREAD, &unread) != 0) {
    return std::nullopt;
  }
  return Traffic{static_cast<int64_t>(info.tcpi_bytes_received) - unread,
                 static_cast<int64_t>(info.tcpi_bytes_acked)};
}

// After shutdown gRPC would still parse what the kernel has received, which may be megabytes.
bool Connection::ShutDown(std::string_view last_bytes) {
  proto::MutexLock lock(&mutex_);
  if (!socket_.ok() || std::exchange(is_shut_down_, true)) return false;
  send(socket_.get(), last_bytes.data(), last_bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  shutdown(socket_.get(), SHUT_RDWR);
  DropReceived(socket_.get());
  return true;
}

void Connection::End() {
  regions_.Close();
  proto::MutexLock lock(&mutex_);
  socket_ = proto::FileDescriptor();
}

absl::StatusOr<Connections::Place> Connections::Enter(int fd, const std::string& owner,
                                                      bool is_unix, proto::FileDescriptor socket,
                                                      const std::string& name) {
  std::shared_ptr<Account> account = accounts_.Of(owner);
  ROPE_ASSIGN_OR_RETURN(server::Place counted, TakePlace(account, Resource::kConnections));
  const bool is_proxy = std::ranges::count(proxies_, owner) > 0;
  std::shared_ptr<Connection> connection;
  std::shared_ptr<Connection> former;  // destroyed after the lock is released
  {
    proto::WriterMutexLock lock(&mutex_);
    connection = std::make_shared<Connection>(
        Connection::About{++last_id_, std::move(account), is_unix, is_proxy, name}, totals_,
        std::move(socket));
    const auto named = by_name_.find(name);
    if (named != by_name_.end() && open_.contains(named->second->id())) {
      return RetryLater(Reason::kBudgetFull, "connection", absl::StrCat(name, " twice"),
                        "one connection of an address and port");
    }
    former = std::exchange(by_descriptor_[fd], connection);
    if (former != nullptr) {  // its name may be of a later one by now
      const auto old = by_name_.find(former->name());
      if (old != by_name_.end() && old->second == former) by_name_.erase(old);
    }
    if (!name.empty()) by_name_[name] = connection;
    open_[connection->id()] = connection;
    ++version_;
  }
  return Place(connection.get(), [this, connection, counted = std::move(counted)](
                                     Connection* left) { Leave(*left); });
}

void Connections::Leave(Connection& connection) {
  connection.End();
  if (!connection.name().empty() && connection.counts().calls == 0) {
    const std::string cause = TakeFailure();
    if (!cause.empty()) CountClosed(connection.owner(), CloseReason::kTlsHandshake, cause);
  }
  proto::WriterMutexLock lock(&mutex_);
  open_.erase(connection.id());
  ++version_;
}

std::shared_ptr<Connection> Connections::Of(absl::string_view peer) const {
  int fd = -1;
  if (absl::ConsumePrefix(&peer, "fd:")) {
    if (!absl::SimpleAtoi(peer, &fd)) return unknown_;
    proto::ReaderMutexLock lock(&mutex_);
    const auto found = by_descriptor_.find(fd);
    return found == by_descriptor_.end() ? unknown_ : found->second;
  }
  const std::string name = PlainPeerName(peer);
  proto::ReaderMutexLock lock(&mutex_);
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? unknown_ : found->second;
}

Connections::List Connections::Open() const {
  List open;
  proto::ReaderMutexLock lock(&mutex_);
  open.reserve(open_.size());
  for (const auto& [id, connection] : open_) open.push_back(connection);
  return open;
}

void Connections::CountClosed(const std::string& owner, CloseReason reason,
                              const std::string& cause) {
  closed_[static_cast<size_t>(reason)].Add();
  const bool is_idle = reason == CloseReason::kNoCall || reason == CloseReason::kIdle;
  LogLine line("connection closed:");
  line.Word("owner", owner).Word("reason", NameOf(reason));
  if (!cause.empty()) line.Text("cause", cause);
  LogLimited(LogKind::kConnection, is_idle ? spdlog::level::info : spdlog::level::warn,
             std::move(line));
}

bool Connections::NoteFailedHandshake(absl::string_view line) {
  if (!absl::ConsumePrefix(&line, kFailureLine)) return false;
  FailedHandshakes& failures = FailuresOfProcess();
  proto::MutexLock lock(&failures.mutex);
  if (failures.causes.size() == kFailuresMax) failures.causes.pop_front();
  absl::ConsumeSuffix(&line, ".");
  failures.causes.emplace_back(SteadyClock().Now(), line.substr(line.rfind(':') + 1));
  return true;
}

std::vector<std::pair<std::string_view, int64_t>> Connections::closed() const {
  std::vector<std::pair<std::string_view, int64_t>> closed;
  for (size_t i = 0; i < closed_.size(); ++i) closed.emplace_back(kReasonNames[i], closed_[i]);
  return closed;
}

}  // namespace rope::server
