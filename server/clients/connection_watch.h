// ConnectionWatch: shuts down the connections that cost others time, memory or places.
//
// Time. A connection is shut down if in a second it cancels more than half of the calls that it
// began, or if more than half of its messages are cancels of requests that no stream has, and all
// such connections of its owner together have more than kLostCallsMax cancels.
//
// Memory. Replies that are not taken hold admitted bytes. Where these are needed, connections of
// the owner that has the most such bytes are shut down.
//
// Places. A connection is shut down if it makes no first call within handshake_timeout, or has had
// no call for idle_timeout. One with shared memory may make its calls there.
//
// A client without a call gets the reason in HTTP/2's GOAWAY.
//
// Threading:  Confined to one thread.
// Ownership:  The constructor's arguments must outlive it.
// Limits:     What gRPC does before a call reaches the server is not seen: a flood of headers or
//             frames is a proxy's to stop (deploy/README.md).
#ifndef ROPE_SERVER_CLIENTS_CONNECTION_WATCH_H_
#define ROPE_SERVER_CLIENTS_CONNECTION_WATCH_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/time/time.h"
#include "server/clients/connections.h"

namespace rope::server {

class ConnectionWatch {
 public:
  static constexpr int64_t kLostCallsMax = 1000;
  static constexpr absl::Duration kUntaken = absl::Seconds(5);

  struct Options {
    absl::Duration handshake_timeout = absl::InfiniteDuration();
    absl::Duration idle_timeout = absl::InfiniteDuration();
    // Whether the connection has shared memory.
    std::function<bool(Connection& connection)> has_memory;
    // Whether memory that replies hold is needed.
    std::function<bool()> needs_memory;
  };

  ConnectionWatch(Connections& connections, Options options)
      : connections_(connections), options_(std::move(options)) {}

  // Looks at all connections. Returns the time until the next look is due: a tenth of a second
  // while there are calls, else a second.
  absl::Duration Look(absl::Time now);

 private:
  // Shuts down what has cancelled too much in the window, and begins a new one after a second.
  void CloseCancellers(absl::Time now);
  static void LookAtReplies(Connection& connection, const Connection::Counts& counts,
                            absl::Time now);
  // Shuts down a connection that has had no call for too long. Returns whether it has one now.
  bool CloseIfIdle(Connection& connection, const Connection::Counts& counts, absl::Time now);
  // Shuts down those that have taken no reply for kUntaken, of the owner whose such connections
  // hold the most bytes.
  void CloseUntaken(absl::Time now);
  void Close(Connection& connection, CloseReason reason);

  Connections& connections_;
  const Options options_;
  Connections::List open_;
  int64_t version_ = -1;  // of open_
  absl::Time window_began_ = absl::InfinitePast();
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CLIENTS_CONNECTION_WATCH_H_
