// HostileClient: a client that harms a server as far as it can, one act at a time: messages that it
// does not finish, answers that it does not read, registrations until they are refused, rings that
// break the rules, bytes of no protocol, calls that it resets at once, and requests of absurd
// shapes.
//
// Threading:  Confined to one thread. Made and destroyed on any.
// Ownership:  Holds a few connections that it has left half-way, until Leave.
// Errors:     None: refusals and closed connections are what it asks for. It counts the calls that
//             the server left without an answer.
// Limits:     At most kHeldMax connections half-way, with about 8 MiB of unread answers each.
#ifndef ROPE_TESTS_BENCH_SOAK_HOSTILE_H_
#define ROPE_TESTS_BENCH_SOAK_HOSTILE_H_

#include <grpcpp/support/status.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/ipc/file_descriptor.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "tests/fuzz/fuzz_random.h"
#include "tests/support/http2_peer.h"
#include "tests/support/shared_memory.h"

namespace rope::bench {

class HostileClient {
 public:
  static constexpr size_t kActs = 8;
  static constexpr size_t kHeldMax = 4;

  // The server listens at "127.0.0.1:PORT" and at a Unix socket.
  HostileClient(std::string tcp, std::string unix_path, uint64_t seed);

  // Any act.
  void ActOnce();
  // Each act once, so that what the server keeps for them is there from the beginning.
  void ActAll();
  // Closes every connection.
  void Leave();

  // How often each act was done, and calls and rings that got no answer in time.
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
    uint64_t share;  // of all acts
  };
  static const std::array<Kind, kActs> kKinds;

  void Do(size_t act);
  void SendHalf();
  void LeaveUnread();
  void RegisterModels();
  void RegisterRegions();
  void BreakRing();
  void SendGarbage();
  void ResetCalls();
  void AskAbsurdly();

  proto::FileDescriptor Connect();
  void Hold(std::unique_ptr<testing::Http2Peer> peer);
  // Over a new connection.
  std::unique_ptr<v1::RopeService::Stub> NewStub() const;
  // Makes one call with a deadline, and notes if it is not answered.
  grpc::Status Call(const std::function<grpc::Status(grpc::ClientContext&)>& call);

  const std::string tcp_;
  const std::string unix_path_;
  testing::FuzzRandom random_;
  const std::string prefix_;  // of the names of its models
  std::vector<testing::SharedMemory> objects_;
  std::unique_ptr<v1::RopeService::Stub> stub_;
  std::deque<std::unique_ptr<testing::Http2Peer>> held_;
  std::deque<proto::FileDescriptor> pending_;
  Counts counts_;
};

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_SOAK_HOSTILE_H_
