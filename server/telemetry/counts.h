// What calls, requests and rotations have counted, and the histograms of the metrics page.
//
// CallCounts: the calls of one method, as gRPC's OpenTelemetry instruments of a server count them
// (gRFC A66): Begin (headers) -> End (answered, refused; a stream: ended).
//
// RequestCounts: the requests of streams, or of rings, which are no calls.
//
// RotationCounts: the rotations that succeeded, by how their tensors came, operation and model.
//
// Threading:  Thread-safe: relaxed atomics, no lock.
#ifndef ROPE_SERVER_TELEMETRY_COUNTS_H_
#define ROPE_SERVER_TELEMETRY_COUNTS_H_

#include <prometheus/client_metric.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "rope/v1/rotate.pb.h"

namespace rope::server {

// A number that any thread adds to, relaxed: a reader may see one change before another. A copy has
// the value.
struct Count : std::atomic<int64_t> {
  Count() : std::atomic<int64_t>(0) {}
  Count(const Count& other) : std::atomic<int64_t>(other.load()) {}
  Count& operator=(const Count& other) {
    store(other.load());
    return *this;
  }
  void Add(int64_t by = 1) { fetch_add(by, std::memory_order_relaxed); }
};

// Upper bounds of durations: 1, 2.5 and 5 of each power of ten from a microsecond to ten seconds,
// in nanoseconds.
inline constexpr int64_t kDurationBounds[] = {
    1'000,         2'500,         5'000,         10'000,        25'000,      50'000,
    100'000,       250'000,       500'000,       1'000'000,     2'500'000,   5'000'000,
    10'000'000,    25'000'000,    50'000'000,    100'000'000,   250'000'000, 500'000'000,
    1'000'000'000, 2'500'000'000, 5'000'000'000, 10'000'000'000};

// Upper bounds of buckets, and the search for the bucket of a value: from the first bound that a
// number of as many bits can need, which leaves a few.
//
// Threading:  Immutable.
// Ownership:  `bounds` must outlive it.
class BucketBounds {
 public:
  // REQUIRES: `bounds` ascends from 0 or more, and has less than 256 values.
  constexpr explicit BucketBounds(absl::Span<const int64_t> bounds) : bounds_(bounds) {
    for (size_t bits = 0; bits < first_.size(); ++bits) {
      const int64_t least = bits == 0 ? 0 : int64_t{1} << (bits - 1);
      first_[bits] = static_cast<uint8_t>(std::ranges::lower_bound(bounds, least) - bounds.begin());
    }
  }

  absl::Span<const int64_t> bounds() const { return bounds_; }
  // The index of the smallest bound >= `value`. REQUIRES: `value` >= 0.
  size_t Find(int64_t value) const {
    size_t i = first_[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(value)))];
    while (i < bounds_.size() && bounds_[i] < value) ++i;
    return i;
  }

 private:
  const absl::Span<const int64_t> bounds_;
  std::array<uint8_t, 64> first_ = {};  // by the number of bits of a value
};

// Histogram: counts values by fixed upper bounds, for the request path. An observation is a short
// search and two relaxed atomic additions, without a lock.
//
// Threading:  Thread-safe. Reading may miss observations made at the same time. No observation is
//             lost.
// Ownership:  `buckets` must outlive the histogram.
// Limits:     The sum holds 2^63 - 1 units (292 years of nanoseconds).
class Histogram {
 public:
  // Observes nanoseconds, shown as seconds, by kDurationBounds.
  Histogram();
  // `per_unit` of the observed integers make one unit of the family (1e9 for nanoseconds shown as
  // seconds).
  Histogram(const BucketBounds& buckets, double per_unit)
      : buckets_(buckets), per_unit_(per_unit), counts_(buckets.bounds().size() + 1) {}

  // Counts `value` in the bucket of the smallest bound >= `value`. A negative value counts as 0.
  void Observe(int64_t value) {
    value = std::max<int64_t>(value, 0);
    counts_[buckets_.Find(value)].Add();
    sum_.Add(value);
  }

  // The number of all observations.
  int64_t count() const;
  prometheus::ClientMetric Read(std::vector<prometheus::ClientMetric::Label> labels = {}) const;

 private:
  const BucketBounds& buckets_;
  const double per_unit_;
  std::vector<Count> counts_;  // by bucket; never resized
  Count sum_;
};

// The bounds of gRFC A66: nanoseconds, and bytes.
inline constexpr auto kGrpcDurationBounds = [] {
  std::array<int64_t, 41> bounds = {
      0,         10,        50,         100,        300,        600,        800,
      1'000,     2'000,     3'000,      4'000,      5'000,      6'000,      8'000,
      10'000,    13'000,    16'000,     20'000,     25'000,     30'000,     40'000,
      50'000,    65'000,    80'000,     100'000,    130'000,    160'000,    200'000,
      250'000,   300'000,   400'000,    500'000,    650'000,    800'000,    1'000'000,
      2'000'000, 5'000'000, 10'000'000, 20'000'000, 50'000'000, 100'000'000};
  for (int64_t& microseconds : bounds) microseconds *= 1'000;
  return bounds;
}();
inline constexpr auto kGrpcSizeBounds = [] {
  std::array<int64_t, 14> bounds = {0, 1, 2, 4};  // KiB, fourfold from there
  for (size_t i = 4; i < bounds.size(); ++i) bounds[i] = 4 * bounds[i - 1];
  for (int64_t& kibibytes : bounds) kibibytes *= 1'024;
  return bounds;
}();

// The number of values of absl::StatusCode, and the place of one. A code that is none counts as
// UNKNOWN.
inline constexpr size_t kCodeCount = 17;
inline size_t IndexOf(absl::StatusCode code) {
  const auto index = static_cast<size_t>(code);
  return index < kCodeCount ? index : static_cast<size_t>(absl::StatusCode::kUnknown);
}

class CallCounts {
 public:
  struct Ended {
    absl::StatusCode code = absl::StatusCode::kOk;
    // From the message to the answer; of a stream: from the headers to its end; 0: no message came.
    absl::Duration duration = absl::ZeroDuration();
    int64_t received_bytes = 0;  // of all its messages
    int64_t sent_bytes = 0;
  };
  // What calls with the same code have counted.
  struct Counts {
    Counts();
    Histogram duration;  // nanoseconds
    Histogram received_bytes;
    Histogram sent_bytes;
  };

  void Begin() { started_.Add(); }
  void End(const Ended& call);
  int64_t started() const { return started_; }
  // By IndexOf.
  const std::array<Counts, kCodeCount>& counts() const { return counts_; }

 private:
  Count started_;
  std::array<Counts, kCodeCount> counts_;
};

class RequestCounts {
 public:
  void End(absl::StatusCode code, absl::Duration duration) {
    answers_[IndexOf(code)].Add();
    duration_.Observe(absl::ToInt64Nanoseconds(duration));
  }

  // By IndexOf.
  const std::array<Count, kCodeCount>& answers() const { return answers_; }
  const Histogram& duration() const { return duration_; }

 private:
  std::array<Count, kCodeCount> answers_;
  Histogram duration_;
};

// How the tensors of a rotation came: in the message of a call or of a stream, in a memory region
// that a call named, through a ring, or from this process.
enum class Transport { kInline, kStream, kMemfd, kRing, kInProcess };
inline constexpr int kTransportCount = 5;

// How long the stages of a rotation took, in microseconds: rope.v1.StageTimes.
struct StageTimes {
  double decode = 0;
  double validate = 0;
  double queue = 0;
  double execute = 0;
};

// Instead of the name of a model. None is a legal name.
inline constexpr std::string_view kConfigModel = "(config)";  // a config, whole or by its id
inline constexpr std::string_view kRowsModel = "(rows)";      // the caller's own table

struct RotationLabels {
  Transport transport = Transport::kInline;
  v1::Operation operation = v1::OPERATION_ROTATE;  // one that the schema names
  std::string_view model = kConfigModel;           // as the client wrote it
};

class RotationCounts {
 public:
  // `models`: the names of all models. Another name of a preset counts for the preset.
  explicit RotationCounts(absl::Span<const std::string> models);

  // Counts nothing for a name that no model has.
  void Count(const RotationLabels& labels);

  // A counter for each combination of labels that was counted.
  std::vector<prometheus::ClientMetric> Read() const;

 private:
  using Counts = std::array<std::array<server::Count, v1::Operation_ARRAYSIZE>, kTransportCount>;

  std::map<std::string, Counts, std::less<>> models_;  // by name; none comes or goes
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_COUNTS_H_
