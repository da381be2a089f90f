// FakeAcceptor: the Unix listener of a server with shared memory, whose answers a test chooses. It
// reads the hello of each connection, maps the memory in it, and hands the connection over to a
// FakeServer.
#ifndef ROPE_TESTS_UNIT_CLIENT_FAKE_ACCEPTOR_H_
#define ROPE_TESTS_UNIT_CLIENT_FAKE_ACCEPTOR_H_

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/ipc/file_descriptor.h"
#include "proto/ipc/hello.h"
#include "tests/support/unix_socket.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {

// The floats of a slot, as RequestFor has those of a vector.
inline RotateRequest RequestFor(const Slot& from, const Slot& to) {
  RotateRequest request = RequestFor({}, static_cast<float*>(to.data()));
  request.tensors[0].shape = {from.bytes() / static_cast<int64_t>(2 * sizeof(float)), 2};
  request.tensors[0].data = from.data();
  return request;
}

class FakeAcceptor {
 public:
  enum class Mood {
    kWelcomes,  // accepts the memory, but does not serve rings
    kRings,     // claims to serve the ring, but never answers there
    kRefuses,   // answers the hello with an error code
    kOld,       // answers with HTTP/2 at once, like a server that knows no hello
    kOther,     // answers with another version of the hello
    kSilent,    // accepts the connection and sends nothing
  };

  explicit FakeAcceptor(FakeServer& server, std::string path)
      : server_(server), path_(std::move(path)) {
    Listen();
  }
  ~FakeAcceptor() {
    Stop();
    for (const auto& [id, mapped] : regions_) munmap(mapped.first, mapped.second);
  }

  void SetMood(Mood mood) { mood_ = mood; }
  std::string target() const { return "unix:" + path_; }
  int hellos() const { return hellos_; }
  int rings() const { return rings_; }  // number of rings received in hellos
  // Waits until a client has connected since the last CloseConnections.
  void AwaitConnection() {
    for (;;) {
      const std::lock_guard<std::mutex> lock(mu_);
      if (!connections_.empty()) return;
    }
  }
  // Whether the client still holds the latest connection. REQUIRES: there is one.
  bool IsHeld() {
    const std::lock_guard<std::mutex> lock(mu_);
    pollfd connection = {connections_.back().get(), POLLRDHUP, 0};
    return poll(&connection, 1, 0) == 0;
  }

  // Address of the region's byte `offset` in this process.
  char* At(uint64_t region_id, uint64_t offset) {
    const std::lock_guard<std::mutex> lock(mu_);
    const auto other = other_ids_.find(region_id);
    const auto it = regions_.find(other == other_ids_.end() ? region_id : other->second);
    return it == regions_.end() ? nullptr : static_cast<char*>(it->second.first) + offset;
  }
  // Makes `other` a second id of the region.
  void AddId(uint64_t region_id, uint64_t other) {
    const std::lock_guard<std::mutex> lock(mu_);
    const auto it = other_ids_.find(region_id);
    other_ids_[other] = it == other_ids_.end() ? region_id : it->second;
  }
  void CloseConnections() {
    const std::lock_guard<std::mutex> lock(mu_);
    for (const auto& socket : connections_) shutdown(socket.get(), SHUT_RDWR);
    connections_.clear();
  }
  // Stops listening; connections stay open.
  void StopListening() {
    if (!thread_.joinable()) return;
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    listener_ = proto::FileDescriptor();
    unlink(path_.c_str());
  }
  // Stop and Listen act like a server process that exits and is started again.
  void Stop() {
    StopListening();
    CloseConnections();
  }
  void Listen() {
    listener_ = proto::FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = ::rope::testing::UnixAddress(path_);
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    ASSERT_EQ(listen(listener_.get(), 16), 0);
    thread_ = std::thread([this] { AcceptAll(); });
  }

 private:
  void AcceptAll() {
    for (;;) {
      proto::FileDescriptor socket(accept(listener_.get(), nullptr, nullptr));
      if (!socket.ok()) return;
      {
        const std::lock_guard<std::mutex> lock(mu_);
        connections_.emplace_back(dup(socket.get()));
      }
      if (mood_ == Mood::kSilent) continue;
      char first = 0;
      // The first byte of an HTTP/2 preface: a channel without a hello.
      if (mood_ == Mood::kOld || recv(socket.get(), &first, 1, MSG_PEEK) != 1 ||
          first != proto::kHelloFirstByte) {
        server_.TakeOver(socket.release());
        continue;
      }
      Answer(std::move(socket));
    }
  }

  void Answer(proto::FileDescriptor socket) {
    proto::HelloBytes bytes{};
    alignas(cmsghdr) char control[CMSG_SPACE(proto::kHelloDescriptorsMax * sizeof(int))] = {};
    iovec part = {bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    ASSERT_EQ(recvmsg(socket.get(), &message, 0), static_cast<ssize_t>(bytes.size()));
    const auto hello = proto::DecodeClientHello(bytes);
    ASSERT_TRUE(hello.ok());
    int received[proto::kHelloDescriptorsMax] = {-1, -1};
    const size_t count = hello->ring_bytes == 0 ? 1 : 2;
    const cmsghdr* rights = CMSG_FIRSTHDR(&message);
    ASSERT_NE(rights, nullptr);
    ASSERT_EQ(rights->cmsg_len, CMSG_LEN(count * sizeof(int)));
    std::memcpy(received, CMSG_DATA(rights), count * sizeof(int));
    const proto::FileDescriptor memfd(received[0]);
    const proto::FileDescriptor ring(received[1]);
    if (ring.ok()) ++rings_;
    const proto::FileDescriptor doorbell(eventfd(0, EFD_CLOEXEC));
    proto::ServerHello answer;
    if (mood_ == Mood::kRefuses) {
      answer.code = absl::StatusCode::kFailedPrecondition;
    } else {
      answer.region_id = 100 + static_cast<uint64_t>(++hellos_);
      void* mapped =
          mmap(nullptr, hello->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), 0);
      ASSERT_NE(mapped, MAP_FAILED);
      const std::lock_guard<std::mutex> lock(mu_);
      regions_[answer.region_id] = {mapped, hello->bytes};
    }
    std::vector<int> descriptors;
    if (mood_ == Mood::kRings) descriptors.push_back(doorbell.get());
    proto::HelloBytes encoded = proto::Encode(answer);
    if (mood_ == Mood::kOther) ++encoded[8];  // the version, after the magic
    ASSERT_TRUE(proto::SendHello(socket.get(), encoded, descriptors, 0));
    server_.TakeOver(socket.release());
  }

  FakeServer& server_;
  const std::string path_;
  proto::FileDescriptor listener_;
  std::thread thread_;
  std::atomic<Mood> mood_ = Mood::kWelcomes;
  std::atomic<int> hellos_ = 0;
  std::atomic<int> rings_ = 0;
  std::mutex mu_;
  std::vector<proto::FileDescriptor> connections_;        // guarded by mu_
  std::map<uint64_t, std::pair<void*, size_t>> regions_;  // guarded by mu_
  std::map<uint64_t, uint64_t> other_ids_;                // guarded by mu_: second ids of regions_
};

}  // namespace rope::client

#endif  // ROPE_TESTS_UNIT_CLIENT_FAKE_ACCEPTOR_H_
