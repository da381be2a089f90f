// ConnectionWatch: shuts down the connections that cost others time, memory or places. It reads
// their accounts (memory/connections.h).
//
// Time. gRPC does much before a call reaches the server. A connection is shut down if
//   - in a second it cancels more than half of the calls that it began, and all such connections of
//     its owner more than kLostCallsMax;
//   - in a second it cancels more than kUnknownCancelsMax requests of streams that no request has,
//     by more than half of its messages;
//   - it brings more than kHeaderBytesMax without beginning a call, and as much again while a
//     thread that calls gRPC works for kHeaderTime: so long no call waits to be seen (TCP);
//   - a thread is inside one call of gRPC for kStallTime of a processor, gRPC has read bytes of the
//     connection meanwhile, and all such bytes are too few to be the payload of that time (TCP). A
//     connection that reads a message, or has sent one before, is blamed only if no other one can
//     be, after a longer time. Of a thread of gRPC's own the calls are a guess: it must work for
//     kGuessedStallTime, and such a connection is never blamed. At the second stall of an owner in
//     a second, its connections with more than kWaitingBytesMax that gRPC has not read are shut
//     down, too, before it does.
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
#ifndef ROPE_SERVER_GRPC_CONNECTION_WATCH_H_
#define ROPE_SERVER_GRPC_CONNECTION_WATCH_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "server/limits.h"
#include "server/memory/connections.h"
#include "server/telemetry/process.h"

namespace rope::server {

class ConnectionWatch {
 public:
  static constexpr int64_t kLostCallsMax = 1000;
  static constexpr int64_t kUnknownCancelsMax = 1024;
  static constexpr int64_t kHeaderBytesMax = 4 * limits::kMiB;
  static constexpr absl::Duration kHeaderTime = absl::Milliseconds(250);
  static constexpr absl::Duration kStallTime = absl::Milliseconds(20);
  static constexpr absl::Duration kGuessedStallTime = absl::Milliseconds(100);
  static constexpr int64_t kWaitingBytesMax = 96 * limits::kKiB;
  static constexpr absl::Duration kUntaken = absl::Seconds(5);

  // Why a connection was shut down. The values are indexes of closed().
  enum class CloseReason {
    kLostCalls,
    kUnknownCancels,
    kHeaders,
    kStall,
    kUntakenReplies,
    kNoCall,
    kIdle
  };
  static constexpr size_t kReasonCount = 7;
  // The label of a metric.
  static std::string_view NameOf(CloseReason reason);

  struct Options {
    absl::Duration handshake_timeout = absl::InfiniteDuration();
    absl::Duration idle_timeout = absl::InfiniteDuration();
    // Uses of the threads that call gRPC.
    std::function<std::vector<CallWatch::Use>()> uses;
    // Whether the session of the connection with this descriptor has shared memory.
    std::function<bool(int fd)> has_memory;
  };

  ConnectionWatch(Connections& connections, Options options)
      : connections_(connections), options_(std::move(options)) {}

  // Shuts down connections that waste time. Returns whether the threads have been busy since the
  // last look; then the next is due in milliseconds.
  bool CloseWasters(absl::Time now);
  // Shuts down connections that have taken no reply for kUntaken: those of the owner whose such
  // connections hold the most bytes.
  void CloseUntaken(absl::Time now);
  // Shuts down idle connections, and notes which replies are taken.
  void CloseIdle(absl::Time now);
  // When CloseIdle is due again: a look at a thousand connections takes a quarter of a millisecond.
  absl::Duration NextLook() const;

  // Connections that were shut down, by CloseReason.
  std::array<int64_t, kReasonCount> closed() const;

 private:
  // What an account said at earlier looks.
  struct Sample {
    std::shared_ptr<Connection> connection;
    // When the window of a second began.
    absl::Time window_began = absl::InfinitePast();
    Connection::Counts at_window;
    int64_t read_at_window = 0;
    int64_t lost = 0;  // calls in the window, if they are more than half
    // When it had brought kHeaderBytesMax in the window without a call; infinite: it has not.
    absl::Time bare_since = absl::InfiniteFuture();
    absl::Duration used_before;  // used_, then
    int64_t calls_before = 0;    // begun, then
    int64_t read_before = 0;     // read_bytes, then
    // Of TCP: now, and when no thread was stalled.
    int64_t read_bytes = 0;
    int64_t unread_bytes = 0;
    int64_t unexplained = 0;  // read_bytes less those of complete messages
    int64_t unexplained_before = 0;
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
  static void Look(Sample& sample);
  static void LookAtReplies(Sample& sample, const Connection::Counts& counts, absl::Time now);
  std::optional<CloseReason> WasteOf(Sample& sample, const Connection::Counts& counts,
                                     absl::Time now) const;
  // Whether it brings headers without end. `is_bare`: without a call it has brought much in this
  // window.
  bool BringsHeaders(Sample& sample, const Connection::Counts& counts, bool is_bare,
                     absl::Time now) const;
  // Why the connection is idle for too long, if it is.
  std::optional<CloseReason> IdlenessOf(Sample& sample, const Connection::Counts& counts,
                                        absl::Time now) const;
  // The most processor time that a thread has used in the call of gRPC that it is inside.
  struct Stall {
    absl::Duration seen;     // of threads that count their steps
    absl::Duration guessed;  // of the others

    // That counts; 0: none is long enough.
    absl::Duration Time() const;
  };
  Stall StallOf(const std::vector<CallWatch::Use>& uses);
  void CloseLosers();
  void CloseStallers(Stall stall, absl::Time now);
  // Those of owners with several stalls in a second that wait to be read: they would stall next.
  void CloseWaiting(absl::Time now);
  // False: it was closed before.
  bool Close(const Sample& sample, CloseReason reason);

  Connections& connections_;
  const Options options_;
  Samples samples_;
  int64_t version_ = -1;  // of the connections in samples_
  absl::Time looked_at_ = absl::InfinitePast();
  bool is_busy_ = false;
  bool is_owed_ = false;              // a reply was not taken at the last look
  absl::Duration used_;               // by the busiest thread that calls gRPC, at each look
  std::vector<CallWatch::Use> last_;  // at the last look
  absl::flat_hash_map<std::string, std::vector<absl::Time>> stalls_;  // of a second, by owner
  std::vector<CallWatch::Use>
      inside_;  // when a thread was first seen in its present call, or stallers were closed
  std::array<std::atomic<int64_t>, kReasonCount> closed_ = {};
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_CONNECTION_WATCH_H_
