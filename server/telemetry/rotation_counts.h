// RotationCounts: the rotations that succeeded, by how their tensors came, operation and model.
//
// Clients choose the names of models, and a metrics page must stay small for as long as the process
// runs. Each name that the server starts with has a place of its own. Another name gets one of
// limits::kCountedModels places with its first rotation, and keeps it, even if the model is
// unregistered. Later names share the place of kOtherModels.
//
// Threading:  Thread-safe. Count takes a lock only for the first rotation of a name.
// Ownership:  Copies names.
#ifndef ROPE_SERVER_TELEMETRY_ROTATION_COUNTS_H_
#define ROPE_SERVER_TELEMETRY_ROTATION_COUNTS_H_

#include <prometheus/client_metric.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "proto/mutex.h"
#include "rope/v1/rotate.pb.h"

namespace rope::server {

// How the tensors of a rotation came: in the message of a call or of a stream, in a memory region
// that a call named, through a ring, or from this process.
enum class Transport { kInline, kStream, kMemfd, kRing, kInProcess };
inline constexpr int kTransportCount = 5;

// Instead of the name of a model. None is a legal name.
inline constexpr std::string_view kConfigModel = "(config)";  // a config, whole or by its id
inline constexpr std::string_view kRowsModel = "(rows)";      // the caller's own table
inline constexpr std::string_view kOtherModels = "(other)";   // names without a place

struct RotationLabels {
  Transport transport = Transport::kInline;
  v1::Operation operation = v1::OPERATION_ROTATE;  // one that the schema names
  std::string_view model = kConfigModel;           // as the client wrote it
};

class RotationCounts {
 public:
  // `models`: names that the server starts with.
  explicit RotationCounts(absl::Span<const std::string> models);

  void Count(const RotationLabels& labels);

  // A counter for each combination of labels that was counted.
  std::vector<prometheus::ClientMetric> Read() const;

 private:
  struct PerModel {
    explicit PerModel(std::string_view model) : name(model) {}
    const std::string name;
    std::array<std::array<std::atomic<int64_t>, v1::Operation_ARRAYSIZE>, kTransportCount> counts =
        {};
  };
  using Place = std::atomic<PerModel*>;

  // The place of the name, or the empty one where it belongs.
  Place& Find(std::string_view name);
  // kOtherModels: no place is left.
  PerModel& Add(std::string_view name);

  const size_t models_max_;
  // A hash table with open addressing. It has more than twice as many places as there are models,
  // and a place keeps its model, so that a search needs no lock and ends soon.
  std::vector<Place> places_;
  std::atomic<bool> full_ = false;  // models_ has models_max_
  mutable proto::Mutex mutex_;
  std::deque<PerModel> models_ ABSL_GUARDED_BY(mutex_);  // elements do not move
  PerModel& other_;                                      // of models_
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_ROTATION_COUNTS_H_
