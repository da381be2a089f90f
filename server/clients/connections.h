// Connection: one connection of a client: whose account it counts for, its regions, and what it has
// sent, asked for and not taken. Connections: all connections that gRPC has.
//
//   Listener: Enter -> Place ... its end: the connection no longer counts, and its regions go
//   calls: Of(peer) -> Connection, which they report to; ConnectionWatch reads it and may close it
//
// gRPC names a connection by the descriptor that it was given ("fd:17"), or, with TLS, by the
// address at the other end. The descriptor stays open while a call of the connection lives, so that
// the name is right for each of these calls. The next connection with the same descriptor takes the
// place of the former.
//
// Threading:  Thread-safe. Counts are relaxed: a reader may see one change before another.
// Ownership:  Connections must outlive each Place. Calls and Places share a Connection, which owns
//             a second descriptor of the socket until its Place ends.
// Limits:     64 failed handshakes wait for the end of their connection, in the whole process.
//             One connection for each descriptor that the process may open, and those of Account.
#ifndef ROPE_SERVER_CLIENTS_CONNECTIONS_H_
#define ROPE_SERVER_CLIENTS_CONNECTIONS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/ipc/file_descriptor.h"
#include "proto/mutex.h"
#include "server/clients/account.h"
#include "server/clients/peers.h"
#include "server/clients/regions.h"

namespace rope::server {

// Why the server closed a connection.
enum class CloseReason {
  kLostCalls,  // these four: connection_watch.h
  kUntakenReplies,
  kNoCall,
  kIdle,
  kClientWithoutTls,  // where TLS is on
  kClientWithTls,     // where it is off
  kTlsHandshake,      // gRPC's failed
};
inline constexpr size_t kCloseReasonCount = 7;

// The label of a metric.
std::string_view NameOf(CloseReason reason);

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Counts {
    Count calls;            // begun
    Count calls_over;       // of these
    Count calls_lost;       // that their client cancelled well before their deadline
    Count unknown_cancels;  // of stream messages, for a sequence that no request has
    Count messages;         // that have come
    Count message_bytes;    // of these
    Count reply_bytes;      // of replies that the client has not taken
    Count taken_bytes;      // of replies that it has

    // A call may begin and end between the reads of the two counts.
    int64_t calls_in_flight() const { return std::max<int64_t>(0, calls - calls_over); }
  };
  // What the kernel has counted.
  struct Traffic {
    int64_t read_bytes = 0;   // by gRPC
    int64_t taken_bytes = 0;  // by the client's kernel
  };

  struct About {
    uint64_t id = 0;
    std::shared_ptr<Account> account = {};
    bool is_unix = true;
    bool is_proxy = false;
    std::string name = {};  // gRPC's (PeerNameOf), where that is not the descriptor
  };

  // `socket`: a second descriptor of the connection's socket, if it has one. `totals` must outlive
  // the connection.
  Connection(About about, RegionTotals& totals, proto::FileDescriptor socket = {})
      : about_(std::move(about)),
        regions_(about_.account, about_.is_proxy, totals),
        socket_(std::move(socket)) {}

  // Grows from connection to connection.
  uint64_t id() const { return about_.id; }
  const std::string& name() const { return about_.name; }
  const std::shared_ptr<Account>& account() const { return about_.account; }
  const std::string& owner() const { return account()->owner(); }
  bool is_unix() const { return about_.is_unix; }
  // Whether a trusted proxy is at the other end. Each of its calls has an owner of its own.
  bool is_proxy() const { return about_.is_proxy; }
  Regions& regions() { return regions_; }

  void BeginCall() { counts_.calls.Add(); }
  void EndCall() { counts_.calls_over.Add(); }
  void LoseCall() { counts_.calls_lost.Add(); }
  void CountUnknownCancel() { counts_.unknown_cancels.Add(); }
  void CountMessage(int64_t bytes) {
    counts_.messages.Add();
    counts_.message_bytes.Add(bytes);
  }
  void OweReply(int64_t bytes) { counts_.reply_bytes.Add(bytes); }
  // `taken`: else it was dropped.
  void PayReply(int64_t bytes, bool taken) {
    counts_.reply_bytes.Add(-bytes);
    if (taken) counts_.taken_bytes.Add(bytes);
  }
  Counts counts() const { return counts_; }

  // Nullopt: on a Unix socket, whose bytes the kernel does not count, and after the end.
  std::optional<Traffic> traffic() const;
  // Closes the connection: gRPC fails its calls, and reads nothing more. False: it was closed, or
  // has ended. The client gets `last_bytes` if there is room for them.
  bool ShutDown(std::string_view last_bytes = {});

 private:
  friend class Connections;
  friend class ConnectionWatch;
  // What ConnectionWatch has seen, for its thread alone.
  struct Seen {
    Counts at_window;   // when the window of a second began
    int64_t lost = 0;   // cancels in the window, if they are more than half
    int64_t taken = 0;  // bytes of replies
    int64_t owed = 0;   // bytes of replies
    absl::Time owes_since = absl::InfiniteFuture();
    // When it was first seen, or last seen with a new call or one under way.
    absl::Time called_at = absl::InfinitePast();
    int64_t calls = 0;
  };

  // Ends what it has: regions, and the second descriptor.
  void End();

  const About about_;
  Regions regions_;
  Counts counts_;
  Seen seen_;
  mutable proto::Mutex mutex_;
  proto::FileDescriptor socket_ ABSL_GUARDED_BY(mutex_);
  bool is_shut_down_ ABSL_GUARDED_BY(mutex_) = false;
};

class Connections {
 public:
  using List = std::vector<std::shared_ptr<Connection>>;

  // The connection that Enter has made. It counts until the last copy of this ends.
  using Place = std::shared_ptr<Connection>;

  // `proxies`: the owners of connections that trusted proxies make.
  // All must outlive it.
  Connections(Accounts& accounts, RegionTotals& totals, std::vector<std::string> proxies = {})
      : accounts_(accounts),
        totals_(totals),
        proxies_(std::move(proxies)),
        unknown_(std::make_shared<Connection>(
            Connection::About{.account = accounts.Of(kUnknownOwner)}, totals)) {}

  // The connection of `owner` that is about to be handed to gRPC as descriptor `fd`. `socket`: a
  // second descriptor. `name`: gRPC's of the peer; empty: that of the descriptor.
  // RESOURCE_EXHAUSTED: a bound is reached.
  absl::StatusOr<Place> Enter(int fd, const std::string& owner, bool is_unix,
                              proto::FileDescriptor socket, const std::string& name = {});

  // By gRPC's name of the peer ("fd:17", "ipv4:192.0.2.7:1234"). Never null: any other name has the
  // connection of an unknown owner, which is in no list.
  std::shared_ptr<Connection> Of(absl::string_view peer) const;
  // All that have a place, the oldest first.
  List Open() const;
  // Counts a connection that the server closes, and logs it: those without a call at level info,
  // others as warnings. `cause`: what the reason does not say.
  void CountClosed(const std::string& owner, CloseReason reason, const std::string& cause = "");
  // Connections that the server closed, with the name of each reason.
  std::vector<std::pair<std::string_view, int64_t>> closed() const;
  // gRPC logs a failed handshake just before it closes the connection, and names no peer: the next
  // connection with TLS that ends without a call, within a second, gets the cause. Returns whether
  // `line` of gRPC's log is about a handshake.
  static bool NoteFailedHandshake(absl::string_view line);
  // Changes when Open does.
  int64_t version() const { return version_.load(std::memory_order_acquire); }

  Accounts& accounts() { return accounts_; }

 private:
  void Leave(Connection& connection);

  Accounts& accounts_;
  RegionTotals& totals_;
  const std::vector<std::string> proxies_;
  const std::shared_ptr<Connection> unknown_;
  std::array<Count, kCloseReasonCount> closed_;  // by CloseReason
  std::atomic<int64_t> version_ = 0;             // written under mutex_ alone
  mutable proto::SharedMutex mutex_;
  absl::flat_hash_map<int, std::shared_ptr<Connection>> by_descriptor_
      ABSL_GUARDED_BY(mutex_);  // also those that have ended
  absl::flat_hash_map<std::string, std::shared_ptr<Connection>> by_name_
      ABSL_GUARDED_BY(mutex_);  // those of by_descriptor_ that have a name
  std::map<uint64_t, std::shared_ptr<Connection>> open_ ABSL_GUARDED_BY(mutex_);  // by id
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CLIENTS_CONNECTIONS_H_
