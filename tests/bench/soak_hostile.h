// HostileClient: a client that tries to harm a server, one act at a time. It leaves messages
// unfinished and answers unread, registers until it is refused, breaks the rules of rings, sends
// bytes of no protocol, and resets calls at once.
//
// Threading:  Confined to one thread; constructed and destroyed on any.
// Ownership:  Holds a few unfinished connections until Leave.
// Errors:     None, because refusals and closed connections are expected. It counts calls that the
//             server left without an answer.
// Limits:     At most kHeldMax unfinished connections, with about 8 MiB of unread answers each.
#ifndef ROPE_TESTS_BENCH_SOAK_HOSTILE_H_
#define ROPE_TESTS_BENCH_SOAK_HOSTILE_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "proto/ipc/file_descriptor.h"
#include "tests/fuzz/fuzz_random.h"
#include "tests/support/http2_peer.h"

namespace rope::bench {

class HostileClient {
 public:
  static constexpr size_t kActs = 6;
  static constexpr size_t kHeldMax = 4;

  // The server listens at "127.0.0.1:PORT" and at a Unix socket.
  HostileClient(std::string tcp, std::string unix_path, uint64_t seed);

  // Performs a random act.
  void ActOnce();
  // Performs each act once, so that memory that the server keeps for them is allocated at the
  // start.
  void ActAll();
  // Closes every connection.
  void Leave();

  // The number of each act, and of calls and rings without an answer in time.
  struct Counts {
    std::array<int64_t, kActs> acts = {};
    int64_t unanswered = 0;
  };
  const Counts& counts() const { return counts_; }
  static const char* NameOf(size_t act);

 private:
  struct Kind {
    const char* name;
    void (HostileClient::*act)();
    uint64_t share;  // relative to the sum of all acts
  };
  static const std::array<Kind, kActs> kKinds;

  void Do(size_t act);
  void SendHalf();
  void LeaveUnread();
  void RegisterRegions();
  void BreakRing();
  void SendGarbage();
  void ResetCalls();

  proto::FileDescriptor Connect();
  void Hold(std::unique_ptr<testing::Http2Peer> peer);
  // Makes one call with a deadline, and counts it if there is no answer.
  grpc::Status Call(const std::function<grpc::Status(grpc::ClientContext&)>& call);

  const std::string tcp_;
  const std::string unix_path_;
  testing::FuzzRandom random_;
  std::deque<std::unique_ptr<testing::Http2Peer>> held_;
  std::deque<proto::FileDescriptor> pending_;
  Counts counts_;
};

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_SOAK_HOSTILE_H_
