#include "server/clients/connection_watch.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "server/limits.h"

namespace rope::server {
namespace {

constexpr absl::Duration kWindow = absl::Seconds(1);
// A window that is older means that the look came late: its counts are of more than a second.
constexpr absl::Duration kOldWindow = absl::Milliseconds(1500);
constexpr absl::Duration kCallsPeriod = absl::Milliseconds(100);
constexpr absl::Duration kQuietPeriod = absl::Seconds(1);
// What a client must take of its replies for their time to begin anew.
constexpr int64_t kTakenBytesMin = 64 * limits::kKiB;
// Fewer are no part of an attack.
constexpr int64_t kLostCallsMin = 32;

// HTTP/2's GOAWAY (RFC 9113, section 6.8). All calls count as seen.
std::string GoAwayFrame(std::string_view reason, bool is_idle) {
  constexpr char kType = 0x7;
  constexpr uint32_t kNoError = 0x0;
  constexpr uint32_t kEnhanceYourCalm = 0xb;
  constexpr uint32_t kLastStream = 0x7fffffff;
  std::string payload;
  for (const uint32_t number : {kLastStream, is_idle ? kNoError : kEnhanceYourCalm}) {
    for (const int shift : {24, 16, 8, 0}) payload.push_back(static_cast<char>(number >> shift));
  }
  payload.append("rope_server closed the connection: ").append(reason);
  const std::string header = {0, 0, static_cast<char>(payload.size()), kType, 0, 0, 0, 0, 0};
  return header + payload;
}

}  // namespace

absl::Duration ConnectionWatch::Look(absl::Time now) {
  const int64_t version = connections_.version();
  if (std::exchange(version_, version) != version) open_ = connections_.Open();
  CloseCancellers(now);
  bool has_calls = false;
  for (const auto& connection : open_) {
    const Connection::Counts counts = connection->counts();
    LookAtReplies(*connection, counts, now);
    has_calls = CloseIfIdle(*connection, counts, now) || has_calls;
  }
  if (options_.needs_memory()) CloseUntaken(now);
  return has_calls ? kCallsPeriod : kQuietPeriod;
}

// An owner may spread its cancels over connections.
void ConnectionWatch::CloseCancellers(absl::Time now) {
  const absl::Duration age = now - window_began_;
  if (age >= kWindow) window_began_ = now;
  absl::flat_hash_map<const Account*, int64_t> lost_by_owner;
  for (const auto& connection : open_) {
    Connection::Seen& seen = connection->seen_;
    const Connection::Counts counts = connection->counts();
    const Connection::Counts then =
        age >= kWindow ? std::exchange(seen.at_window, counts) : seen.at_window;
    seen.lost = 0;
    if (age >= kOldWindow) continue;
    const int64_t calls = counts.calls_lost - then.calls_lost;
    const int64_t cancels = counts.unknown_cancels - then.unknown_cancels;
    if (calls > (counts.calls - then.calls) / 2) seen.lost += calls;
    if (cancels > (counts.messages - then.messages) / 2) seen.lost += cancels;
    if (seen.lost == 0) continue;
    lost_by_owner[connection->account().get()] += seen.lost;
  }
  for (const auto& connection : open_) {
    if (connection->seen_.lost < kLostCallsMin) continue;
    if (lost_by_owner[connection->account().get()] > kLostCallsMax) {
      Close(*connection, CloseReason::kLostCalls);
    }
  }
}

// The kernel says how much of a large reply a client on TCP has taken.
void ConnectionWatch::LookAtReplies(Connection& connection, const Connection::Counts& counts,
                                    absl::Time now) {
  Connection::Seen& seen = connection.seen_;
  seen.owed = counts.reply_bytes;
  if (seen.owed == 0) {
    seen.owes_since = absl::InfiniteFuture();
    return;  // the kernel is asked about none of a thousand idle connections
  }
  const auto traffic = connection.traffic();
  const int64_t taken = traffic.has_value() ? traffic->taken_bytes : counts.taken_bytes;
  if (seen.owes_since == absl::InfiniteFuture() || taken - seen.taken >= kTakenBytesMin) {
    seen.owes_since = now;
    seen.taken = taken;
  }
}

bool ConnectionWatch::CloseIfIdle(Connection& connection, const Connection::Counts& counts,
                                  absl::Time now) {
  Connection::Seen& seen = connection.seen_;
  const bool has_called = counts.calls != seen.calls || counts.calls_in_flight() > 0;
  if (has_called || seen.called_at == absl::InfinitePast()) {
    seen.called_at = now;
    seen.calls = counts.calls;
    return has_called;
  }
  const bool is_new = counts.calls == 0;
  const absl::Duration most = is_new ? options_.handshake_timeout : options_.idle_timeout;
  if (now - seen.called_at >= most && !options_.has_memory(connection)) {
    Close(connection, is_new ? CloseReason::kNoCall : CloseReason::kIdle);
  }
  return false;
}

void ConnectionWatch::CloseUntaken(absl::Time now) {
  absl::flat_hash_map<const Account*, int64_t> by_owner;
  int64_t most = 0;
  for (const auto& connection : open_) {
    if (now - connection->seen_.owes_since < kUntaken) continue;
    most = std::max(most, by_owner[connection->account().get()] += connection->seen_.owed);
  }
  for (const auto& connection : open_) {
    if (now - connection->seen_.owes_since < kUntaken) continue;
    if (by_owner[connection->account().get()] == most) {
      Close(*connection, CloseReason::kUntakenReplies);
    }
  }
}

void ConnectionWatch::Close(Connection& connection, CloseReason reason) {
  const bool is_idle = reason == CloseReason::kNoCall || reason == CloseReason::kIdle;
  // The frame goes past gRPC, which may have written a part of another frame if it has a call.
  const Connection::Counts counts = connection.counts();
  const bool has_call = counts.calls_in_flight() > 0 || counts.reply_bytes > 0;
  const std::string frame = has_call ? "" : GoAwayFrame(NameOf(reason), is_idle);
  // Through TLS only gRPC can send one.
  if (!connection.ShutDown(connection.name().empty() ? frame : "")) return;
  connections_.CountClosed(connection.owner(), reason);
}

}  // namespace rope::server
