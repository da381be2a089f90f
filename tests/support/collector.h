// An HTTP server that takes batches of traces as a collector does, and answers as a test says.
//
// Threading:  A thread of its own serves one connection after another. Functions: any thread.
// Errors:     Adds a test failure if it cannot listen.
#ifndef ROPE_TESTS_SUPPORT_COLLECTOR_H_
#define ROPE_TESTS_SUPPORT_COLLECTOR_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/ipc/file_descriptor.h"
#include "proto/mutex.h"

namespace rope::testing {

class Collector {
 public:
  struct Post {
    std::string head;  // request line and headers
    std::string body;
  };

  // Has a port, and refuses connections.
  Collector() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(socket_.get(), any, size), 0);
    EXPECT_EQ(getsockname(socket_.get(), any, &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~Collector() {
    Resume();
    shutdown(socket_.get(), SHUT_RDWR);  // ends accept
    if (thread_.joinable()) thread_.join();
  }
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

  int port() const { return port_; }

  // Serves from now on. The first posts are answered with `statuses`, later ones with 200.
  void Serve(std::deque<int> statuses = {}) {
    {
      proto::MutexLock lock(&mutex_);
      statuses_ = std::move(statuses);
    }
    EXPECT_EQ(listen(socket_.get(), 16), 0);
    thread_ = std::thread([this] { Run(); });
  }
  // Until Resume, posts are read and not answered.
  void Pause() {
    proto::MutexLock lock(&mutex_);
    paused_ = true;
  }
  void Resume() {
    proto::MutexLock lock(&mutex_);
    paused_ = false;
    changed_.SignalAll();
  }

  std::vector<Post> posts() {
    proto::MutexLock lock(&mutex_);
    return posts_;
  }
  // False: fewer posts have come within `bound`.
  bool AwaitPosts(size_t count, std::chrono::milliseconds bound = std::chrono::seconds(60)) {
    const auto end = std::chrono::steady_clock::now() + bound;
    proto::MutexLock lock(&mutex_);
    while (posts_.size() < count) {
      const auto left = end - std::chrono::steady_clock::now();
      if (left <= std::chrono::nanoseconds::zero()) return false;
      changed_.WaitFor(&mutex_, left);
    }
    return true;
  }

 private:
  void Run() {
    while (true) {
      const proto::FileDescriptor client(accept(socket_.get(), nullptr, nullptr));
      if (!client.ok()) return;
      Post post;
      if (!Read(client.get(), post)) continue;
      const int status = Take(std::move(post));
      const std::string answer = "HTTP/1.1 " + std::to_string(status) +
                                 " X\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
                                 "Connection: close\r\n\r\n{}";
      send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  }

  // Keeps the post. Returns the status of its answer, when it is to be answered.
  int Take(Post post) {
    proto::MutexLock lock(&mutex_);
    posts_.push_back(std::move(post));
    changed_.SignalAll();
    while (paused_) changed_.Wait(&mutex_);
    if (statuses_.empty()) return 200;
    const int status = statuses_.front();
    statuses_.pop_front();
    return status;
  }

  // False: the connection has ended before its post.
  static bool Read(int client, Post& post) {
    constexpr char kLength[] = "Content-Length: ";
    std::string text;
    size_t head = std::string::npos;
    size_t wanted = std::string::npos;
    while (text.size() < wanted) {
      char buffer[65536];
      const ssize_t count = recv(client, buffer, sizeof(buffer), 0);
      if (count <= 0) return false;
      text.append(buffer, static_cast<size_t>(count));
      if (head != std::string::npos) continue;
      head = text.find("\r\n\r\n");
      if (head == std::string::npos) continue;
      const size_t length = text.find(kLength) + sizeof(kLength) - 1;
      wanted = head + 4 + std::strtoul(text.c_str() + length, nullptr, 10);
    }
    post = {text.substr(0, head), text.substr(head + 4)};
    return true;
  }

  const proto::FileDescriptor socket_;
  int port_ = 0;
  std::thread thread_;
  proto::Mutex mutex_;
  proto::CondVar changed_;
  std::vector<Post> posts_ ABSL_GUARDED_BY(mutex_);
  std::deque<int> statuses_ ABSL_GUARDED_BY(mutex_);
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_COLLECTOR_H_
