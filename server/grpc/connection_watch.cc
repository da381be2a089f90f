#include "server/grpc/connection_watch.h"

#include <algorithm>
#include <utility>

#include "server/grpc/limits.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

constexpr absl::Duration kWindow = absl::Seconds(1);
// A window that is much older saw an idle server, and its counts are of more than a second.
constexpr absl::Duration kOldWindow = absl::Milliseconds(1500);
// Shorter steps say too little, and looking at each connection takes some microseconds.
constexpr absl::Duration kStepMin = absl::Milliseconds(4);
constexpr absl::Duration kStepOfConnection = absl::Microseconds(50);
// Poll threads that use less of the time between two looks are idle.
constexpr double kBusy = 0.02;
// Fewer are no part of an attack.
constexpr int64_t kLostCallsMin = 32;
// Headers and frames of a message.
constexpr int64_t kHeaderBytesOfMessage = 512;
// What a byte may cost a poll thread: of payload at most, and of the worst attack (reset streams)
// at most. Headers without end cost 200 to 400 ns.
constexpr absl::Duration kPayloadByteTime = absl::Nanoseconds(10);
constexpr absl::Duration kWorstByteTime = absl::Microseconds(4);
constexpr absl::Duration kLongStall = absl::Milliseconds(200);

constexpr std::string_view kReasonNames[] = {"lost_calls", "unknown_cancels", "headers", "stall",
                                             "untaken_replies"};

bool IsIdle(const Connection::Counts& counts) {
  return counts.reads == 0 && counts.streams == 0;
}

// Bytes that came with complete messages, at most.
int64_t Explained(const Connection::Counts& counts) {
  return counts.message_bytes + counts.messages * kHeaderBytesOfMessage;
}

}  // namespace

std::string_view ConnectionWatch::NameOf(CloseReason reason) {
  return kReasonNames[static_cast<size_t>(reason)];
}

bool ConnectionWatch::CloseWasters(absl::Time now) {
  const absl::Duration step = now - looked_at_;
  if (step < std::max(kStepMin, kStepOfConnection * samples_.size())) return is_busy_;
  std::vector<CallWatch::Use> uses = uses_();
  last_.resize(uses.size());
  absl::Duration used;
  for (size_t i = 0; i < uses.size(); ++i) used += uses[i].used - last_[i].used;
  const absl::Duration stalled = StalledTime(uses);
  looked_at_ = now;
  last_ = std::move(uses);
  is_busy_ = used >= kBusy * step;
  if (!is_busy_) return false;
  Refresh();
  for (auto& [key, sample] : samples_) {
    const Connection::Counts counts = sample.connection->counts();
    Look(sample);
    if (stalled == absl::ZeroDuration()) sample.unexplained_before = sample.unexplained;
    if (const auto waste = WasteOf(sample, counts, now)) Close(sample, *waste);
  }
  CloseLosers();
  if (stalled >= kStallTime) CloseStallers(stalled);
  return true;
}

// A thread is stalled only from the first look that sees it inside a call until it returns.
absl::Duration ConnectionWatch::StalledTime(const std::vector<CallWatch::Use>& uses) {
  absl::Duration most;
  inside_.resize(uses.size());
  for (size_t i = 0; i < uses.size(); ++i) {
    const bool is_inside = uses[i].steps % 2 == 1;
    if (!is_inside || inside_[i].steps != uses[i].steps) inside_[i] = uses[i];
    most = std::max(most, uses[i].used - inside_[i].used);
  }
  return most;
}

void ConnectionWatch::Refresh() {
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

// Traffic before counts: a message that comes meanwhile explains bytes that are not read yet, not
// the other way round.
void ConnectionWatch::Look(Sample& sample) {
  const auto traffic = sample.connection->traffic();
  if (!traffic.has_value()) return;
  sample.read_bytes = traffic->read_bytes;
  sample.unexplained = traffic->read_bytes - Explained(sample.connection->counts());
}

std::optional<ConnectionWatch::CloseReason> ConnectionWatch::WasteOf(
    Sample& sample, const Connection::Counts& counts, absl::Time now) {
  const absl::Duration age = now - sample.window_began;
  const Connection::Counts then = sample.at_window;
  const int64_t read = sample.read_bytes - sample.read_at_window;
  if (age >= kWindow) {
    sample.window_began = now;
    sample.at_window = counts;
    sample.read_at_window = sample.read_bytes;
  }
  sample.lost = 0;
  if (age >= kOldWindow) return std::nullopt;
  const int64_t calls = counts.calls - then.calls;
  const int64_t lost = counts.calls_lost - then.calls_lost;
  if (lost > calls / 2) sample.lost = lost;
  const int64_t cancels = counts.unknown_cancels - then.unknown_cancels;
  if (cancels > kUnknownCancelsMax && cancels > (counts.messages - then.messages) / 2) {
    return CloseReason::kUnknownCancels;
  }
  const bool has_no_call = calls == 0 && IsIdle(counts) && IsIdle(then);
  if (has_no_call && read > kHeaderBytesMax) return CloseReason::kHeaders;
  return std::nullopt;
}

// An owner may spread its cancels over connections.
void ConnectionWatch::CloseLosers() {
  absl::flat_hash_map<std::string, int64_t> by_owner;
  for (const auto& [key, sample] : samples_) by_owner[sample.connection->owner()] += sample.lost;
  for (const auto& [key, sample] : samples_) {
    if (sample.lost < kLostCallsMin) continue;
    if (by_owner[sample.connection->owner()] > kLostCallsMax)
      Close(sample, CloseReason::kLostCalls);
  }
}

// What comes after it is measured anew: gRPC goes on with what it has read of a closed connection,
// and reads nothing of others meanwhile.
void ConnectionWatch::CloseStallers(absl::Duration stalled) {
  const auto bytes_of = [](const Sample& sample) {
    return std::max<int64_t>(0, sample.unexplained - sample.unexplained_before);
  };
  int64_t all = 0;
  for (const auto& [key, sample] : samples_) all += bytes_of(sample);
  if (all * kPayloadByteTime >= stalled) return;
  bool has_closed = false;
  for (const auto& [key, sample] : samples_) {
    const bool is_idle = IsIdle(sample.connection->counts());
    if (!is_idle || bytes_of(sample) < stalled / kWorstByteTime) continue;
    has_closed |= Close(sample, CloseReason::kStall);
  }
  // The bytes of a connection that reads a message may be payload. It is closed after a long time.
  for (const auto& [key, sample] : samples_) {
    if (has_closed || stalled < kLongStall || bytes_of(sample) <= all / 2) continue;
    has_closed = Close(sample, CloseReason::kStall);
  }
  if (!has_closed) return;
  for (auto& [key, sample] : samples_) sample.unexplained_before = sample.unexplained;
  inside_ = last_;
}

// The kernel says how much of a large reply a client on TCP has taken.
void ConnectionWatch::LookAtReplies(absl::Time now) {
  Refresh();
  for (auto& [key, sample] : samples_) {
    const Connection::Counts counts = sample.connection->counts();
    const auto traffic = sample.connection->traffic();
    const int64_t taken = traffic.has_value() ? traffic->taken_bytes : counts.taken_bytes;
    sample.owed = counts.reply_bytes;
    if (counts.reply_bytes == 0) {
      sample.owes_since = absl::InfiniteFuture();
    } else if (sample.owes_since == absl::InfiniteFuture() ||
               taken - sample.taken >= limits::kTakenBytesMin) {
      sample.owes_since = now;
      sample.taken = taken;
    }
  }
}

void ConnectionWatch::CloseUntaken(absl::Time now) {
  LookAtReplies(now);
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
  if (!sample.connection->ShutDown()) return false;
  closed_[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  LogLimited(LogKind::kConnection, spdlog::level::warn, "connection closed: owner={} reason={}",
             sample.connection->owner(), NameOf(reason));
  return true;
}

std::array<int64_t, ConnectionWatch::kReasonCount> ConnectionWatch::closed() const {
  std::array<int64_t, kReasonCount> closed;
  std::ranges::transform(closed_, closed.begin(), [](const auto& count) { return count.load(); });
  return closed;
}

}  // namespace rope::server
