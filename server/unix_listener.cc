#include "server/unix_listener.h"

#include <grpcpp/server_posix.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/error.h"

namespace rope::server {
namespace {

constexpr int kBacklog = 128;
constexpr int kRetryAcceptMs = 100;

// Closes on every way out until it is released.
class ScopedFd {
 public:
  explicit ScopedFd(int fd) : fd_(fd) {}
  ~ScopedFd() {
    if (fd_ >= 0) close(fd_);
  }
  ScopedFd(const ScopedFd&) = delete;
  ScopedFd& operator=(const ScopedFd&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

bool SomebodyListens(const sockaddr_un& address) {
  const ScopedFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

absl::Status Failed(const std::string& path, const char* step) {
  return absl::UnavailableError(absl::StrCat("--listen: got unix:", path,
                                             ", want a path that can be listened on (", step, ": ",
                                             std::strerror(errno), ")"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<UnixListener>> UnixListener::Create(const std::string& path,
                                                                   grpc::Server& server) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return InvalidField("--listen", absl::StrCat("a path of ", path.size(), " bytes"),
                        absl::StrCat("1 to ", sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  if (SomebodyListens(address)) {
    errno = EADDRINUSE;
    return Failed(path, "connect");
  }
  unlink(path.c_str());
  ScopedFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Failed(path, "bind");
  }
  if (listen(listener.get(), kBacklog) != 0) return Failed(path, "listen");
  const int wake = eventfd(0, EFD_CLOEXEC);
  if (wake < 0) return Failed(path, "eventfd");
  return std::unique_ptr<UnixListener>(
      new UnixListener(path, listener.release(), wake, server));  // owned by the result
}

UnixListener::UnixListener(std::string path, int listener, int wake, grpc::Server& server)
    : path_(std::move(path)), listener_(listener), wake_(wake), server_(server), thread_([this] {
        AcceptLoop();
      }) {}

UnixListener::~UnixListener() {
  const uint64_t one = 1;
  if (write(wake_, &one, sizeof(one)) != sizeof(one)) spdlog::error("eventfd: cannot be written");
  thread_.join();
  close(listener_);
  close(wake_);
  unlink(path_.c_str());
}

void UnixListener::AcceptLoop() {
  while (true) {
    pollfd polled[] = {{listener_, POLLIN, 0}, {wake_, POLLIN, 0}};
    if (poll(polled, 2, -1) < 0 && errno != EINTR) return;
    if (polled[1].revents != 0) return;
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      // The client went again; or no descriptor is left, and asking again at once would only spin.
      if (errno == EMFILE || errno == ENFILE) poll(&polled[1], 1, kRetryAcceptMs);
      continue;
    }
    ucred peer{};
    socklen_t length = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0) {
      spdlog::debug("connection at unix:{} from pid {} uid {}", path_, peer.pid, peer.uid);
    }
    grpc::AddInsecureChannelFromFd(&server_, fd);
  }
}

}  // namespace rope::server
