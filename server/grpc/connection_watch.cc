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
// After it, connections with this part of the most bytes are closed, whatever they bring.
constexpr int64_t kMostPart = 4;
// Between two looks at replies that are not taken, and at idle connections.
constexpr absl::Duration kOwedLook = absl::Seconds(1);
constexpr absl::Duration kLookMax = absl::Seconds(4);

constexpr std::string_view kReasonNames[] = {
    "lost_calls", "unknown_cancels", "headers", "stall", "untaken_replies", "no_call", "idle"};

bool IsIdle(const Connection::Counts& counts) {
  return counts.reads == 0 && counts.streams == 0;
}

// Whether bytes without a reason may be payload: of a message under way, or of a call that gRPC has
// read ahead and that is not seen yet, on a connection that behaved well before.
bool MayBringPayload(const Connection::Counts& counts) {
  return !IsIdle(counts) || (counts.messages > 0 && counts.calls_lost <= counts.calls / 2);
}

// Bytes that came with complete messages, at most.
int64_t Explained(const Connection::Counts& counts) {
  return counts.message_bytes + counts.messages * kHeaderBytesOfMessage;
}

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

bool ConnectionWatch::CloseWasters(absl::Time now) {
  const absl::Duration step = now - looked_at_;
  if (step < std::max(kStepMin, kStepOfConnection * samples_.size())) return is_busy_;
  std::vector<CallWatch::Use> uses = options_.uses();
  last_.resize(uses.size());
  absl::Duration used;
  absl::Duration busiest;
  for (size_t i = 0; i < uses.size(); ++i) {
    used += uses[i].used - last_[i].used;
    busiest = std::max(busiest, uses[i].used - last_[i].used);
  }
  const Stall stall = StallOf(uses);
  looked_at_ = now;
  last_ = std::move(uses);
  is_busy_ = used >= kBusy * step;
  used_ += busiest;
  if (!is_busy_) return false;
  Refresh();
  const bool has_stall = std::max(stall.seen, stall.guessed) > absl::ZeroDuration();
  for (auto& [key, sample] : samples_) {
    const Connection::Counts counts = sample.connection->counts();
    Look(sample);
    if (!has_stall) sample.unexplained_before = sample.unexplained;
    if (const auto waste = WasteOf(sample, counts, now)) Close(sample, *waste);
  }
  CloseLosers();
  if (stall.Time() > absl::ZeroDuration()) CloseStallers(stall, now);
  return true;
}

absl::Duration ConnectionWatch::Stall::Time() const {
  const absl::Duration longest = guessed >= kGuessedStallTime ? std::max(seen, guessed) : seen;
  return longest >= kStallTime ? longest : absl::ZeroDuration();
}

// A thread is stalled only from the first look that sees it inside a call until it returns.
ConnectionWatch::Stall ConnectionWatch::StallOf(const std::vector<CallWatch::Use>& uses) {
  Stall most;
  inside_.resize(uses.size());
  for (size_t i = 0; i < uses.size(); ++i) {
    const bool is_inside = uses[i].steps % 2 == 1;
    if (!is_inside || inside_[i].steps != uses[i].steps) inside_[i] = uses[i];
    const absl::Duration used = uses[i].used - inside_[i].used;
    absl::Duration& of_kind = uses[i].is_guess ? most.guessed : most.seen;
    of_kind = std::max(of_kind, used);
  }
  return most;
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

// Traffic before counts: a message that comes meanwhile explains bytes that are not read yet, not
// the other way round.
void ConnectionWatch::Look(Sample& sample) {
  const auto traffic = sample.connection->traffic();
  if (!traffic.has_value()) return;
  sample.read_bytes = traffic->read_bytes;
  sample.unread_bytes = traffic->unread_bytes;
  sample.unexplained = traffic->read_bytes - Explained(sample.connection->counts());
}

// gRPC reads ahead of the server: the bytes may be the message of a call that waits in its queue.
bool ConnectionWatch::BringsHeaders(Sample& sample, const Connection::Counts& counts, bool is_bare,
                                    absl::Time now) const {
  const bool has_call = counts.calls != sample.calls_before || !IsIdle(counts);
  if (has_call || now - sample.bare_since >= kWindow) sample.bare_since = absl::InfiniteFuture();
  if (is_bare && sample.bare_since == absl::InfiniteFuture()) {
    sample.bare_since = now;
    sample.used_before = used_;
    sample.calls_before = counts.calls;
    sample.read_before = sample.read_bytes;
  }
  return sample.bare_since < absl::InfiniteFuture() && used_ - sample.used_before >= kHeaderTime &&
         sample.read_bytes - sample.read_before > kHeaderBytesMax;
}

std::optional<ConnectionWatch::CloseReason> ConnectionWatch::WasteOf(
    Sample& sample, const Connection::Counts& counts, absl::Time now) const {
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
  const bool is_bare = has_no_call && read > kHeaderBytesMax;
  if (BringsHeaders(sample, counts, is_bare, now)) return CloseReason::kHeaders;
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
void ConnectionWatch::CloseStallers(Stall stall, absl::Time now) {
  const absl::Duration stalled = stall.Time();
  const auto bytes_of = [](const Sample& sample) {
    return std::max<int64_t>(0, sample.unexplained - sample.unexplained_before);
  };
  int64_t all = 0;
  int64_t most = 0;
  for (const auto& [key, sample] : samples_) {
    all += bytes_of(sample);
    most = std::max(most, bytes_of(sample));
  }
  if (all * kPayloadByteTime >= stalled) return;
  bool has_closed = false;
  for (const auto& [key, sample] : samples_) {
    if (bytes_of(sample) < stalled / kWorstByteTime) continue;
    if (MayBringPayload(sample.connection->counts())) continue;
    if (!Close(sample, CloseReason::kStall)) continue;
    has_closed = true;
    std::vector<absl::Time>& stalls = stalls_[sample.connection->owner()];
    if (stalls.empty() || stalls.back() != now) stalls.push_back(now);
  }
  CloseWaiting(now);
  // Connections that behaved well before come next, and then those that read a message.
  for (const bool reads : {false, true}) {
    const bool must_close = !has_closed && stall.seen >= kLongStall;
    for (const auto& [key, sample] : samples_) {
      if (!must_close || IsIdle(sample.connection->counts()) == reads) continue;
      const int64_t least = reads ? most / kMostPart : stalled / kWorstByteTime;
      if (bytes_of(sample) > least) has_closed |= Close(sample, CloseReason::kStall);
    }
  }
  if (!has_closed) return;
  for (auto& [key, sample] : samples_) sample.unexplained_before = sample.unexplained;
  inside_ = last_;
}

void ConnectionWatch::CloseWaiting(absl::Time now) {
  absl::erase_if(stalls_, [now](auto& stalls) {
    std::erase_if(stalls.second, [now](absl::Time at) { return now - at >= kWindow; });
    return stalls.second.empty();
  });
  for (const auto& [key, sample] : samples_) {
    if (sample.unread_bytes <= kWaitingBytesMax) continue;
    const auto stalls = stalls_.find(sample.connection->owner());
    if (stalls == stalls_.end() || stalls->second.size() < 2) continue;
    if (!MayBringPayload(sample.connection->counts())) Close(sample, CloseReason::kStall);
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
  if (sample.owes_since == absl::InfiniteFuture() ||
      taken - sample.taken >= limits::kTakenBytesMin) {
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
  if (now - sample.called_at < most || options_.has_memory(sample.connection->fd())) {
    return std::nullopt;
  }
  return is_new ? CloseReason::kNoCall : CloseReason::kIdle;
}

void ConnectionWatch::CloseIdle(absl::Time now) {
  Refresh();
  is_owed_ = false;
  for (auto& [key, sample] : samples_) {
    const Connection::Counts counts = sample.connection->counts();
    LookAtReplies(sample, counts, now);
    is_owed_ |= sample.owed > 0;
    if (const auto idle = IdlenessOf(sample, counts, now)) Close(sample, *idle);
  }
}

absl::Duration ConnectionWatch::NextLook() const {
  const absl::Duration timeout = std::min(options_.handshake_timeout, options_.idle_timeout);
  return is_owed_ ? kOwedLook : std::clamp(timeout / 4, kOwedLook, kLookMax);
}

void ConnectionWatch::CloseUntaken(absl::Time now) {
  CloseIdle(now);
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
