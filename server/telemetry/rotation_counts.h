// RotationCounts: the rotations that succeeded, by how their tensors came, operation and model.
//
// Threading:  Thread-safe: relaxed atomics, no lock.
// Ownership:  Copies names.
#ifndef ROPE_SERVER_TELEMETRY_ROTATION_COUNTS_H_
#define ROPE_SERVER_TELEMETRY_ROTATION_COUNTS_H_

#include <prometheus/client_metric.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "rope/v1/rotate.pb.h"

namespace rope::server {

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
  using Counts =
      std::array<std::array<std::atomic<int64_t>, v1::Operation_ARRAYSIZE>, kTransportCount>;

  std::map<std::string, Counts, std::less<>> models_;  // by name; none comes or goes
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_ROTATION_COUNTS_H_
