// ConnectionWatch: shuts down the connections that cost others time, memory or places. It reads
// their accounts (clients/connections.h).
//
// Time. A connection is shut down if in a second
//   - it cancels more than half of the calls that it began, and all such connections of its owner
//     more than kLostCallsMax;
//   - it cancels more than kUnknownCancelsMax requests of streams that no request has, by more than
//     half of its messages.
//
// Memory. Replies that are not taken hold admitted bytes. Where these are needed, connections of
// the owner that has the most such bytes are shut down.
//
// Places. A connection is shut down if it makes no first call within handshake_timeout, or has had
// no call for idle_timeout. One with shared memory may make its calls there.
//
// A client without a call gets the reason in HTTP/2's GOAWAY.
//
// Threading:  Confined to one thread. closed() on any.
// Ownership:  The constructor's arguments must outlive it.
// Limits:     What gRPC does before a call reaches the server is not seen: a flood of headers or
//             frames is a proxy's to stop (deploy/README.md).
#ifndef ROPE_SERVER_CLIENTS_CONNECTION_WATCH_H_
#define ROPE_SERVER_CLIENTS_CONNECTION_WATCH_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "server/clients/connections.h"

namespace rope::server {

class ConnectionWatch {
 public:
  static constexpr int64_t kLostCallsMax = 1000;
  static constexpr int64_t kUnknownCancelsMax = 1024;
  static constexpr absl::Duration kUntaken = absl::Seconds(5);

  // Why a connection was shut down. The values are indexes of closed().
  enum class CloseReason { kLostCalls, kUnknownCancels, kUntakenReplies, kNoCall, kIdle };
  static constexpr size_t kReasonCount = 5;
  // The label of a metric.
  static std::string_view NameOf(CloseReason reason);

  struct Options {
    absl::Duration handshake_timeout = absl::InfiniteDuration();
    absl::Duration idle_timeout = absl::InfiniteDuration();
    // Whether the connection has shared memory.
    std::function<bool(Connection& connection)> has_memory;
  };

  ConnectionWatch(Connections& connections, Options options)
      : connections_(connections), options_(std::move(options)) {}

  // Looks at all connections, at most ten times a second unless memory is needed. Then it shuts
  // down those, too, that have taken no reply for kUntaken, of the owner whose such connections
  // hold the most bytes.
  void Look(absl::Time now, bool needs_memory);

  // Connections that were shut down, by CloseReason.
  std::array<int64_t, kReasonCount> closed() const;

 private:
  // What an account said at earlier looks.
  struct Sample {
    std::shared_ptr<Connection> connection;
    Connection::Counts at_window;  // when the window of a second began
    int64_t lost = 0;              // calls in the window, if they are more than half
    // Of replies.
    int64_t taken = 0;
    int64_t owed = 0;
    absl::Time owes_since = absl::InfiniteFuture();
    // When it was first seen, or last seen with a new call or one under way.
    absl::Time called_at = absl::InfinitePast();
    int64_t calls = 0;
  };
  using Samples = absl::flat_hash_map<const Connection*, Sample>;

  // Samples of all open connections; those of others go.
  void Refresh();
  // Shuts down what has cancelled too much in the window, and begins a new one after a second.
  void CloseCancellers(absl::Time now);
  static void LookAtReplies(Sample& sample, const Connection::Counts& counts, absl::Time now);
  // Why the connection is idle for too long, if it is.
  std::optional<CloseReason> IdlenessOf(Sample& sample, const Connection::Counts& counts,
                                        absl::Time now) const;
  void CloseUntaken(absl::Time now);
  // False: it was closed before.
  bool Close(const Sample& sample, CloseReason reason);

  Connections& connections_;
  const Options options_;
  Samples samples_;
  int64_t version_ = -1;  // of the connections in samples_
  absl::Time looked_at_ = absl::InfinitePast();
  absl::Time window_began_ = absl::InfinitePast();
  std::array<std::atomic<int64_t>, kReasonCount> closed_ = {};
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CLIENTS_CONNECTION_WATCH_H_
