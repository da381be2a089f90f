// A real server under attack. It runs within a memory limit that kills it if it takes too much, its
// memory is sampled from its start, and a bystander's calls must be answered meanwhile.
//
// Threading:  Confined to one thread.
#ifndef ROPE_TESTS_SUPPORT_WATCHED_SERVER_H_
#define ROPE_TESTS_SUPPORT_WATCHED_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/mutex.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "tests/support/http2_peer.h"
#include "tests/support/memory_limit.h"
#include "tests/support/memory_watch.h"
#include "tests/support/test_server.h"

namespace rope::testing {

inline constexpr int64_t kMiB = int64_t{1} << 20;

// A well-behaved client. It sends a few hundred small rotations a second on one connection while
// other clients attack the server, and checks every answer.
//
// Threading:  Confined to one thread; calls on a background thread.
class Bystander {
 public:
  explicit Bystander(std::unique_ptr<v1::RopeService::Stub> stub);
  ~Bystander();
  Bystander(const Bystander&) = delete;
  Bystander& operator=(const Bystander&) = delete;

  struct Counts {
    int right = 0;
    int wrong = 0;            // wrong answers, and calls without an answer
    std::string first_wrong;  // why the first of them was wrong
    double slowest_ms = 0;    // of the right answers
  };
  // Stops calling. Returns the counts.
  Counts Stop();

 private:
  void CallOnce();

  const std::unique_ptr<v1::RopeService::Stub> stub_;
  Counts counts_;  // written by the thread until it has ended
  proto::Notification stop_;
  std::thread thread_;  // destroyed first
};

class WatchedServer {
 public:
  struct Options {
    int64_t memory_bytes = 768 * kMiB;  // --memory_bytes
    int64_t message_bytes = 64 * kMiB;  // --max_message_bytes
    std::vector<std::string> flags = {};
  };
  WatchedServer() : WatchedServer(Options()) {}
  explicit WatchedServer(const Options& options);

  TestServer& server() { return server_; }
  // The path of its Unix socket, which offers shared memory.
  const std::string& path() const { return path_; }
  int64_t memory_bytes() const { return options_.memory_bytes; }
  MemoryWatch& memory() { return *memory_; }
  // A connection over TCP whose bytes the test writes by hand.
  Http2Peer NewPeer(uint32_t window = kDefaultWindow) const;

  // Over its Unix socket, whose clients are another owner than those over TCP.
  std::unique_ptr<v1::RopeService::Stub> StubOfAnotherOwner() const;

  // Ends the bystander's calls, for phases in which the server may refuse some of them.
  void EndBystander() { bystander_.reset(); }

  // Expects that the original process still serves, answered every call of the bystander rightly,
  // and never held more anonymous memory than --memory_bytes and a tenth.
  void ExpectUnharmed(const std::string& what);
  // Expects that within ten seconds it holds at most 64 MiB more than before the attack.
  void ExpectMemoryGivenBack(const std::string& what);

 private:
  std::vector<std::string> Flags() const;
  // The instance_id of the process that answers; empty: none does.
  std::string InstanceId();

  const Options options_;
  const std::string path_;
  const MemoryLimit limit_;
  TestServer server_;
  std::string instance_id_;
  std::unique_ptr<MemoryWatch> memory_;
  std::unique_ptr<Bystander> bystander_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_WATCHED_SERVER_H_
