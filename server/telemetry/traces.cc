#include "server/telemetry/traces.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "server/error.h"

namespace rope::server {
namespace {

// Where the fields of "VERSION-TRACE-SPAN-FLAGS" begin; a dash is before each.
constexpr size_t kTraceAt = 3;
constexpr size_t kSpanAt = 36;
constexpr size_t kFlagsAt = 53;
constexpr size_t kHeaderBytes = 55;
constexpr uint64_t kFlagSampled = 1;
constexpr uint64_t kInvalidVersion = 0xFF;
constexpr double kRandomValues = 0x1p56;  // of the last 7 bytes of a trace id

// nullopt: a character is no lowercase digit. REQUIRES: at most 16 digits.
std::optional<uint64_t> ParseHex(absl::string_view digits) {
  uint64_t value = 0;
  for (const char c : digits) {
    const bool decimal = c >= '0' && c <= '9';
    if (!decimal && (c < 'a' || c > 'f')) return std::nullopt;
    value = value << 4U | static_cast<uint64_t>(decimal ? c - '0' : c - 'a' + 10);
  }
  return value;
}

// Whether the header has the length and the dashes of its version.
bool HasForm(absl::string_view header, uint64_t version) {
  if (header.size() < kHeaderBytes) return false;
  if (header[kTraceAt - 1] != '-' || header[kSpanAt - 1] != '-' || header[kFlagsAt - 1] != '-') {
    return false;
  }
  return header.size() == kHeaderBytes || (version > 0 && header[kHeaderBytes] == '-');
}

uint64_t ThresholdOf(double ratio) {
  return static_cast<uint64_t>(std::llround((1 - ratio) * kRandomValues));
}

void Shorten(std::string& text) {
  if (text.size() <= limits::kTraceTextBytes) return;
  text = ShortText(text, limits::kTraceTextBytes);
}

}  // namespace

std::optional<TraceParent> ParseTraceParent(absl::string_view header) {
  const auto version = ParseHex(header.substr(0, 2));
  if (!version.has_value() || version == kInvalidVersion || !HasForm(header, *version)) {
    return std::nullopt;
  }
  const auto high = ParseHex(header.substr(kTraceAt, 16));
  const auto low = ParseHex(header.substr(kTraceAt + 16, 16));
  const auto span = ParseHex(header.substr(kSpanAt, 16));
  const auto flags = ParseHex(header.substr(kFlagsAt, 2));
  if (!high.has_value() || !low.has_value() || !span.has_value() || !flags.has_value()) {
    return std::nullopt;
  }
  const TraceParent parent = {{*high, *low}, *span, (*flags & kFlagSampled) != 0};
  if (parent.trace == TraceId() || parent.span == 0) return std::nullopt;
  return parent;
}

std::string ToHex(const TraceId& id) {
  return absl::StrCat(absl::Hex(id.high, absl::kZeroPad16), absl::Hex(id.low, absl::kZeroPad16));
}

std::string ToHex(uint64_t span) {
  return absl::StrCat(absl::Hex(span, absl::kZeroPad16));
}

uint64_t RandomBits() {
  // Linux gives 256 bytes at once, always whole.
  thread_local std::array<uint64_t, 32> bits;
  thread_local size_t used = bits.size();
  if (used == bits.size()) {
    ROPE_CHECK(getrandom(bits.data(), sizeof(bits), 0) == sizeof(bits));
    used = 0;
  }
  return bits[used++];
}

Tracer::Tracer(Options options)
    : options_(std::move(options)), threshold_(ThresholdOf(options_.ratio)) {
  waiting_.reserve(options_.queue_spans);
}

std::optional<SpanIds> Tracer::Sample(absl::string_view traceparent) const {
  SpanIds ids;
  if (const auto caller = ParseTraceParent(traceparent); caller.has_value()) {
    if (!caller->sampled) return std::nullopt;
    ids.trace = caller->trace;
    ids.parent = caller->span;
  } else {
    ids.trace = {options_.random(), options_.random()};
    constexpr uint64_t kRandomBits = (uint64_t{1} << 56U) - 1;
    if ((ids.trace.low & kRandomBits) < threshold_) return std::nullopt;
    ids.trace.high = std::max<uint64_t>(ids.trace.high, 1);  // zero is no id
  }
  ids.span = std::max<uint64_t>(options_.random(), 1);
  return ids;
}

void Tracer::Add(TraceSpan span) {
  for (std::string* text : {&span.request_id, &span.model, &span.device, &span.peer}) {
    Shorten(*text);
  }
  proto::MutexLock lock(&mutex_);
  if (closed_ || waiting_.size() == options_.queue_spans) {
    ++counters_.dropped_queue;
    return;
  }
  waiting_.push_back(std::move(span));
  if (waiting_.size() == options_.batch_spans) changed_.Signal();
}

bool Tracer::Take(std::chrono::nanoseconds period, std::vector<TraceSpan>& spans) {
  spans.clear();
  spans.reserve(options_.queue_spans);  // what is swapped in below has room for a full queue
  const Instant end = std::chrono::steady_clock::now() + period;
  proto::MutexLock lock(&mutex_);
  while (!closed_ && waiting_.size() < options_.batch_spans && WaitUntil(end)) continue;
  spans.swap(waiting_);
  return !closed_ || !spans.empty();
}

bool Tracer::AwaitClose(std::chrono::nanoseconds timeout) {
  const Instant end = std::chrono::steady_clock::now() + timeout;
  proto::MutexLock lock(&mutex_);
  while (!closed_ && WaitUntil(end)) continue;
  return closed_;
}

void Tracer::Close() {
  proto::MutexLock lock(&mutex_);
  closed_ = true;
  changed_.Signal();
}

bool Tracer::WaitUntil(Instant end) {
  const auto left = end - std::chrono::steady_clock::now();
  if (left <= std::chrono::nanoseconds::zero()) return false;
  changed_.WaitFor(&mutex_, left);
  return true;
}

}  // namespace rope::server
