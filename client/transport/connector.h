// Connector: how a connection reaches its server. It dials, agrees on a transport for the arena or
// for staging, and dials again where gRPC cannot.
//
//   memfd:  socket of ours -> hello with the memory (proto/ipc/hello.h) -> gRPC on that socket
//   ring:   the same, with a ring in the hello, which the server may leave unserved
//   inline: socket of ours, whose buffer is larger, to a Unix path where somebody listens; gRPC's
//           own channel otherwise
//
// gRPC's own channels connect again by themselves. A channel on a socket of ours ends with it: who
// sees that says so (Note), and the next Get dials, one thread for all.
//
// The arena is the program's and outlives connections. Staging memory belongs to one connection:
// another one has its own, since a server may still be at work on what a lost call has left.
//
// To add a transport: a Transport, a Connect... of its own beside those below, a field in Session
// for what requests must know of it.
//
// Threading:  Thread-safe once Connect has returned. Get blocks while a dial is under way, for
//             kRedialMax at most.
// Ownership:  Shares the arena with its slots, sessions with the calls that use them, and the pool
//             of outputs with the tensors of replies; idle memory of the pool is freed with the
//             Connector.
// Errors:     INVALID_ARGUMENT: options that contradict each other. UNAVAILABLE: no connection.
//             FAILED_PRECONDITION: none of the transports that are allowed can be had.
#ifndef ROPE_CLIENT_TRANSPORT_CONNECTOR_H_
#define ROPE_CLIENT_TRANSPORT_CONNECTOR_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "client/codec/codec.h"
#include "client/codec/prepared_requests.h"
#include "client/memory/arena_memory.h"
#include "client/memory/output_pool.h"
#include "client/memory/region.h"
#include "client/transport/ring.h"
#include "client/transport/stub.h"
#include "proto/ipc/file_descriptor.h"
#include "proto/mutex.h"
#include "rope/options.h"
#include "rope/status.h"

namespace rope::client {

// One connection, as requests see it.
struct Session {
  Stub stub;
  bool on_own_socket = false;            // gRPC will not connect it again
  Region region = {};                    // of the arena, or for staging
  std::shared_ptr<Ring> ring = nullptr;  // beside a region; null: every call is an RPC
  // What its server has prepared. Never null.
  std::shared_ptr<PreparedRequests> prepared = nullptr;
};

// How requests travel that nobody has to be able to cancel.
inline Route RouteOf(const Session& session) {
  return session.ring == nullptr ? Route::kRpc : Route::kRing;
}

class Connector {
 public:
  // Longest wait for a server that takes a connection and then says nothing.
  static constexpr std::chrono::milliseconds kRedialMax{500};

  Connector(std::string target, const ConnectOptions& options);
  ~Connector() { outputs_->Close(); }

  // Waits for a connection and settles the transport. OK beside no connection at all, where inline
  // is allowed: the first call tells why.
  Status Connect(std::chrono::microseconds timeout);

  // REQUIRES of all below: Connect has returned OK.
  Result<std::shared_ptr<const Session>> Get();
  // Takes note of how a call on `session` failed.
  void Note(const Session& session, const Status& status);

  // The session as it is: nothing is dialed. UNAVAILABLE: a connection that shared the arena was
  // lost, which is said once.
  Result<std::shared_ptr<const Session>> GetForFence();

  ChosenTransport transport() const;
  const std::shared_ptr<ArenaMemory>& arena() const { return arena_; }
  // Memory for replies.
  OutputPool& outputs() const { return *outputs_; }

 private:
  using Clock = std::chrono::steady_clock;

  Status CheckOptions() const;
  bool IsAllowed(Transport transport) const;
  bool MayBringMemory() const;  // on a socket of ours
  bool MayStage() const;
  // These set session_ and arena_ where they succeed.
  Status ConnectMemfd(Clock::time_point deadline);
  Status ConnectStaged(Clock::time_point deadline);
  Status ConnectInline(Clock::time_point deadline, const std::string& reason);
  // A session on `socket` with `memory` as its region, and a ring where both sides have it.
  // FAILED_PRECONDITION: the server has none, or no ring where nothing less is allowed.
  Result<std::shared_ptr<const Session>> Greet(proto::FileDescriptor socket,
                                               std::shared_ptr<ArenaMemory> memory) const;
  // The same with staging memory of its own.
  Result<std::shared_ptr<const Session>> GreetStaged(proto::FileDescriptor socket) const;
  // A session without memory: on a socket of ours where one can be had.
  std::shared_ptr<const Session> InlineSession(Clock::time_point deadline) const;
  std::shared_ptr<const Session> SessionOn(proto::FileDescriptor socket, Region region,
                                           std::shared_ptr<Ring> ring) const;
  std::shared_ptr<Session> OwnChannel() const;
  // What memory of ours session_ has. REQUIRES: it has some.
  ChosenTransport MemoryOfSession() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // REQUIRES: session_ is on a socket of ours.
  Status Redial() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string target_;
  const ConnectOptions options_;
  const std::shared_ptr<OutputPool> outputs_;
  std::shared_ptr<ArenaMemory> arena_;  // set by Connect

  mutable proto::Mutex mu_;
  std::shared_ptr<const Session> session_ ABSL_GUARDED_BY(mu_);
  bool lost_ ABSL_GUARDED_BY(mu_) = false;
  bool lost_arena_ ABSL_GUARDED_BY(mu_) =
      false;  // a connection that shared it, and no fence has said so
  ChosenTransport chosen_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_CONNECTOR_H_
