// Connector: dials the server, agrees on a transport and on shared memory with it, and dials again
// where gRPC cannot.
//
//   memfd:  socket of ours -> hello with the memory (proto/ipc/hello.h) -> gRPC on that socket
//   ring:   the same, with a ring in the hello, which the server may decline
//   inline: a socket of ours to a Unix path, whose buffer is larger; else gRPC's own channel
//
// gRPC's own channels connect again by themselves. A channel on a socket of ours ends with it: the
// call that fails reports that (Note), and the next Get dials, one thread for all.
//
// The arena is the program's and outlives connections. Staging memory belongs to one connection,
// because the server may still be at work on it after a lost call.
//
// Threading:  Thread-safe once Connect has returned. Get blocks while a dial is under way, for
//             kRedialMax at most; nothing else blocks.
// Ownership:  Shares the arena with its slots, links with the calls that use them, and the pool
//             of outputs with the tensors of replies; idle memory of the pool is freed with the
//             Connector.
// Errors:     INVALID_ARGUMENT: options that contradict each other. UNAVAILABLE: no connection.
//             FAILED_PRECONDITION: none of the allowed transports is available.
#ifndef ROPE_CLIENT_TRANSPORT_CONNECTOR_H_
#define ROPE_CLIENT_TRANSPORT_CONNECTOR_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "client/codec/codec.h"
#include "client/memory/arena_memory.h"
#include "client/memory/output_pool.h"
#include "client/memory/region.h"
#include "client/transport/credentials.h"
#include "client/transport/ring.h"
#include "client/transport/rotate_transport.h"
#include "client/transport/stub.h"
#include "client/transport/waiter.h"
#include "proto/ipc/file_descriptor.h"
#include "proto/mutex.h"
#include "rope/options.h"
#include "rope/status.h"

namespace rope::client {

// One connection, as calls see it.
struct Link {
  Stub stub;                                          // of every method
  std::shared_ptr<RotateTransport> rotate = nullptr;  // of Rotate; never null
  bool on_own_socket = false;                         // gRPC will not connect it again
  bool of_several = false;                            // servers, which take turns
  Region region = {};                                 // of the arena, or for staging
  ChosenTransport chosen = {};                        // how its memory is shared
};

class Connector {
 public:
  // Longest wait for a server that takes a connection and then says nothing.
  static constexpr std::chrono::milliseconds kRedialMax{500};

  Connector(std::string target, const ConnectOptions& options);
  // A second connector of the same client. Its arena is `memory`, which the program has imported;
  // its callbacks are those of the first connection.
  Connector(const Connector& first, std::shared_ptr<ArenaMemory> memory);
  ~Connector();

  // Waits for a connection and chooses the transport. OK also without a connection if inline is
  // allowed: the first call then fails with the reason.
  Status Connect(std::chrono::microseconds timeout);
  // As Connect, for imported memory, which has no use inline. UNAVAILABLE: no connection.
  // FAILED_PRECONDITION: the server does not share this memory, or none.
  Status ConnectImported(std::chrono::microseconds timeout);
  // Whether the options and the target admit that memory is shared.
  bool MayImport() const;

  // REQUIRES of all below: Connect has returned OK.
  // Dials first if the connection was lost, or if half of its staging memory was.
  Result<std::shared_ptr<const Link>> Get();
  // Reports that a call on `link` failed with `status`.
  void Note(const Link& link, const Status& status);

  // The link without dialing. UNAVAILABLE: a connection that shared the arena was lost; reported
  // once.
  Result<std::shared_ptr<const Link>> GetForFence();

  ChosenTransport transport() const;
  const std::shared_ptr<ArenaMemory>& arena() const { return arena_; }
  // Memory for replies.
  OutputPool& outputs() const { return *outputs_; }
  // The threads that run callbacks of this connection are marked with it.
  const std::shared_ptr<const CallbackOwner>& callback_owner() const { return callback_owner_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Dialed = std::shared_ptr<const Link>;  // a new link

  Status CheckOptions() const;
  bool IsAllowed(Transport transport) const;
  bool MayShareMemory() const;  // over a socket of ours
  bool MayStage() const;
  // These set arena_ if they succeed.
  Result<Dialed> ConnectShared(Clock::time_point deadline);
  // On a socket of ours if possible.
  Result<Dialed> ConnectInline(Clock::time_point deadline, const std::string& reason);
  // A link on `socket` with `memory` as its region, and a ring if both sides have it.
  // FAILED_PRECONDITION: the server shares no memory, or has no ring and only a ring is allowed.
  Result<Dialed> Greet(proto::FileDescriptor socket,
                       const Result<std::shared_ptr<ArenaMemory>>& memory) const;
  Result<std::shared_ptr<ArenaMemory>> NewStaging() const;
  // The imported memory, or new one.
  Result<std::shared_ptr<ArenaMemory>> NewArena() const;
  // Empty `socket`: on gRPC's own channel.
  Dialed NewLink(proto::FileDescriptor socket, Region region, std::shared_ptr<Ring> ring,
                 ChosenTransport chosen) const;
  // A connection in place of `lost`, with memory of the same kind. REQUIRES: `lost` is on a socket
  // of ours.
  Result<Dialed> Redial(const Link& lost) const;

  const std::string target_;
  const ConnectOptions options_;
  const std::shared_ptr<OutputPool> outputs_;
  std::shared_ptr<BearerToken> token_;  // set by Connect; null: none
  const std::shared_ptr<const CallbackOwner> callback_owner_;
  const std::shared_ptr<ArenaMemory> imported_ = nullptr;  // null: Connect creates the arena
  std::shared_ptr<ArenaMemory> arena_;                     // set by Connect

  mutable proto::Mutex mu_;
  proto::CondVar dialed_;  // signals the end of a dial
  bool dialing_ ABSL_GUARDED_BY(mu_) = false;
  Dialed current_ ABSL_GUARDED_BY(mu_);
  bool lost_ ABSL_GUARDED_BY(mu_) = false;
  // A connection that shared the arena was lost, and no fence has reported it.
  bool lost_arena_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_CONNECTOR_H_
