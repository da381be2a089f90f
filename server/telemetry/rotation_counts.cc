#include "server/telemetry/rotation_counts.h"

#include <bit>

#include "absl/hash/hash.h"
#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "server/telemetry/limits.h"

namespace rope::server {
namespace {

constexpr const char* kTransportNames[kTransportCount] = {"inline", "stream", "memfd", "ring",
                                                          "in_process"};

// "reposition".
std::string OperationName(int operation) {
  const std::string name = v1::Operation_Name(static_cast<v1::Operation>(operation));
  return absl::AsciiStrToLower(absl::StripPrefix(name, "OPERATION_"));
}

}  // namespace

RotationCounts::RotationCounts(absl::Span<const std::string> models)
    : models_max_(models.size() + limits::kCountedModels + 3),
      places_(std::bit_ceil(2 * models_max_ + 1)),
      other_(models_.emplace_back(kOtherModels)) {
  Find(kOtherModels) = &other_;
  Add(kConfigModel);
  Add(kRowsModel);
  for (const std::string& model : models) Add(model);
}

void RotationCounts::Count(const RotationLabels& labels) {
  PerModel* model = Find(labels.model).load(std::memory_order_acquire);
  if (model == nullptr) {
    model = full_.load(std::memory_order_relaxed) ? &other_ : &Add(labels.model);
  }
  const int operation =
      labels.operation == v1::OPERATION_UNSPECIFIED ? v1::OPERATION_ROTATE : labels.operation;
  model->counts[static_cast<size_t>(labels.transport)][static_cast<size_t>(operation)].fetch_add(
      1, std::memory_order_relaxed);
}

RotationCounts::Place& RotationCounts::Find(std::string_view name) {
  const size_t mask = places_.size() - 1;
  for (size_t i = absl::HashOf(name);; ++i) {
    Place& place = places_[i & mask];
    const PerModel* const model = place.load(std::memory_order_acquire);
    if (model == nullptr || model->name == name) return place;
  }
}

RotationCounts::PerModel& RotationCounts::Add(std::string_view name) {
  proto::MutexLock lock(&mutex_);
  Place& place = Find(name);  // another thread may have added it
  if (PerModel* const model = place.load(std::memory_order_relaxed); model != nullptr) {
    return *model;
  }
  if (models_.size() == models_max_) return other_;
  PerModel& model = models_.emplace_back(name);
  place.store(&model, std::memory_order_release);
  full_.store(models_.size() == models_max_, std::memory_order_relaxed);
  return model;
}

std::vector<prometheus::ClientMetric> RotationCounts::Read() const {
  std::vector<prometheus::ClientMetric> metrics;
  proto::MutexLock lock(&mutex_);
  for (const PerModel& model : models_) {
    for (size_t transport = 0; transport < model.counts.size(); ++transport) {
      for (int operation = 0; operation < v1::Operation_ARRAYSIZE; ++operation) {
        const int64_t count =
            model.counts[transport][static_cast<size_t>(operation)].load(std::memory_order_relaxed);
        if (count == 0) continue;
        prometheus::ClientMetric& metric = metrics.emplace_back();
        metric.label = {{"model", model.name},
                        {"operation", OperationName(operation)},
                        {"transport", kTransportNames[transport]}};
        metric.counter.value = static_cast<double>(count);
      }
    }
  }
  return metrics;
}

}  // namespace rope::server
