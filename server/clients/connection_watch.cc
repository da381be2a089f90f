#include "server/clients/connection_watch.h"

#include <algorithm>
#include <string>
#include <utility>

#include "server/limits.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

constexpr absl::Duration kWindow = absl::Seconds(1);
// Of a window that is much older the look came late, and its counts are of more than a second.
constexpr absl::Duration kOldWindow = absl::Milliseconds(1500);
constexpr absl::Duration kLookPeriod = absl::Milliseconds(100);
// What a client must take of its replies for their time to begin anew.
constexpr int64_t kTakenBytesMin = 64 * limits::kKiB;
// Fewer are no part of an attack.
constexpr int64_t kLostCallsMin = 32;

constexpr std::string_view kReasonNames[] = {"lost_calls", "unknown_cancels", "untaken_replies",
                                             "no_call", "idle"};

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

std::string_view ConnectionWatch::NameOf(CloseReason reason) {
  return kReasonNames[static_cast<size_t>(reason)];
}

void ConnectionWatch::Look(absl::Time now, bool needs_memory) {
  if (!needs_memory && now - looked_at_ < kLookPeriod) return;
  looked_at_ = now;
  Refresh();
  CloseCancellers(now);
  for (auto& [key, sample] : samples_) {
    const Connection::Counts counts = sample.connection->counts();
    LookAtReplies(sample, counts, now);
    if (const auto idle = IdlenessOf(sample, counts, now)) Close(sample, *idle);
  }
  if (needs_memory) CloseUntaken(now);
}

void ConnectionWatch::Refresh() {
  const int64_t version = connections_.version();
  if (std::exchange(version_, version) == version) return;
  Samples open;
  for (auto& connection : connections_.Open()) {
    const Connection* const key = connection.get();
    Sample& sample = open[key];
    if (const auto known = samples_.find(key); known != samples_.end()) {
      sample = std::move(known->second);
    }
    sample.connection = std::move(connection);
  }
  samples_ = std::move(open);
}

// An owner may spread its cancels over connections.
void ConnectionWatch::CloseCancellers(absl::Time now) {
  const absl::Duration age = now - window_began_;
  if (age >= kWindow) window_began_ = now;
  absl::flat_hash_map<std::string, int64_t> lost_by_owner;
  for (auto& [key, sample] : samples_) {
    const Connection::Counts counts = sample.connection->counts();
    const Connection::Counts then =
        age >= kWindow ? std::exchange(sample.at_window, counts) : sample.at_window;
    sample.lost = 0;
    if (age >= kOldWindow) continue;
    const int64_t lost = counts.calls_lost - then.calls_lost;
    if (lost > (counts.calls - then.calls) / 2) {
      sample.lost = lost;
      lost_by_owner[sample.connection->owner()] += lost;
    }
    const int64_t cancels = counts.unknown_cancels - then.unknown_cancels;
    if (cancels > kUnknownCancelsMax && cancels > (counts.messages - then.messages) / 2) {
      Close(sample, CloseReason::kUnknownCancels);
    }
  }
  for (const auto& [key, sample] : samples_) {
    if (sample.lost < kLostCallsMin) continue;
    if (lost_by_owner[sample.connection->owner()] > kLostCallsMax) {
      Close(sample, CloseReason::kLostCalls);
    }
  }
}

// The kernel says how much of a large reply a client on TCP has taken.
void ConnectionWatch::LookAtReplies(Sample& sample, const Connection::Counts& counts,
                                    absl::Time now) {
  sample.owed = counts.reply_bytes;
  if (sample.owed == 0) {
    sample.owes_since = absl::InfiniteFuture();
    return;  // the kernel is asked about none of a thousand idle connections
  }
  const auto traffic = sample.connection->traffic();
  const int64_t taken = traffic.has_value() ? traffic->taken_bytes : counts.taken_bytes;
  if (sample.owes_since == absl::InfiniteFuture() || taken - sample.taken >= kTakenBytesMin) {
    sample.owes_since = now;
    sample.taken = taken;
  }
}

std::optional<ConnectionWatch::CloseReason> ConnectionWatch::IdlenessOf(
    Sample& sample, const Connection::Counts& counts, absl::Time now) const {
  const bool has_called = counts.calls != sample.calls || counts.calls_in_flight() > 0;
  if (has_called || sample.called_at == absl::InfinitePast()) {
    sample.called_at = now;
    sample.calls = counts.calls;
    return std::nullopt;
  }
  const bool is_new = counts.calls == 0;
  const absl::Duration most = is_new ? options_.handshake_timeout : options_.idle_timeout;
  if (now - sample.called_at < most || options_.has_memory(*sample.connection)) {
    return std::nullopt;
  }
  return is_new ? CloseReason::kNoCall : CloseReason::kIdle;
}

void ConnectionWatch::CloseUntaken(absl::Time now) {
  absl::flat_hash_map<std::string, int64_t> by_owner;
  int64_t most = 0;
  for (const auto& [key, sample] : samples_) {
    if (now - sample.owes_since < kUntaken) continue;
    most = std::max(most, by_owner[sample.connection->owner()] += sample.owed);
  }
  for (auto& [key, sample] : samples_) {
    if (now - sample.owes_since < kUntaken) continue;
    if (by_owner[sample.connection->owner()] == most) Close(sample, CloseReason::kUntakenReplies);
  }
}

bool ConnectionWatch::Close(const Sample& sample, CloseReason reason) {
  const bool is_idle = reason == CloseReason::kNoCall || reason == CloseReason::kIdle;
  // The frame goes past gRPC, which may have written a part of another frame if it has a call.
  const Connection::Counts counts = sample.connection->counts();
  const bool has_call = counts.calls_in_flight() > 0 || counts.reply_bytes > 0;
  const std::string frame = has_call ? "" : GoAwayFrame(NameOf(reason), is_idle);
  // Through TLS only gRPC can send one.
  const bool is_plain = sample.connection->name().empty();
  if (!sample.connection->ShutDown(is_plain ? frame : "")) return false;
  closed_[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  LogLimited(LogKind::kConnection, is_idle ? spdlog::level::info : spdlog::level::warn,
             LogLine("connection closed:")
                 .Word("owner", sample.connection->owner())
                 .Word("reason", NameOf(reason)));
  return true;
}

std::array<int64_t, ConnectionWatch::kReasonCount> ConnectionWatch::closed() const {
  std::array<int64_t, kReasonCount> closed;
  std::ranges::transform(closed_, closed.begin(), [](const auto& count) { return count.load(); });
  return closed;
}

}  // namespace rope::server
