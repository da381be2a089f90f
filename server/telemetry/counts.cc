#include "server/telemetry/counts.h"

#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "kernels/config/presets.h"

namespace rope::server {
namespace {

constexpr BucketBounds kDurationBuckets(kDurationBounds);
constexpr BucketBounds kCallDurationBuckets(kGrpcDurationBounds);
constexpr BucketBounds kCallBytesBuckets(kGrpcSizeBounds);

constexpr const char* kTransportNames[kTransportCount] = {"inline", "stream", "memfd", "ring",
                                                          "in_process"};

// "reposition".
std::string OperationName(int operation) {
  const std::string name = v1::Operation_Name(static_cast<v1::Operation>(operation));
  return absl::AsciiStrToLower(absl::StripPrefix(name, "OPERATION_"));
}

}  // namespace

Histogram::Histogram() : Histogram(kDurationBuckets, 1e9) {}

int64_t Histogram::count() const {
  return std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
}

// A bucket counts all values up to its bound.
prometheus::ClientMetric Histogram::Read(
    std::vector<prometheus::ClientMetric::Label> labels) const {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  auto& buckets = metric.histogram.bucket;
  const absl::Span<const int64_t> bounds = buckets_.bounds();
  uint64_t count = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    count += static_cast<uint64_t>(counts_[i]);
    buckets.push_back({count, i < bounds.size() ? static_cast<double>(bounds[i]) / per_unit_
                                                : std::numeric_limits<double>::infinity()});
  }
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum = static_cast<double>(sum_) / per_unit_;
  return metric;
}

CallCounts::Counts::Counts()
    : duration(kCallDurationBuckets, 1e9),
      received_bytes(kCallBytesBuckets, 1),
      sent_bytes(kCallBytesBuckets, 1) {}

void CallCounts::End(const Ended& call) {
  Counts& counts = counts_[IndexOf(call.code)];
  counts.duration.Observe(absl::ToInt64Nanoseconds(call.duration));
  counts.received_bytes.Observe(call.received_bytes);
  counts.sent_bytes.Observe(call.sent_bytes);
}

RotationCounts::RotationCounts(absl::Span<const std::string> models) {
  models_.try_emplace(std::string(kConfigModel));
  models_.try_emplace(std::string(kRowsModel));
  for (const std::string& model : models) models_.try_emplace(model);
}

void RotationCounts::Count(const RotationLabels& labels) {
  auto model = models_.find(labels.model);
  if (model == models_.end()) {
    const kernels::Preset* const preset = kernels::FindPreset(labels.model);
    if (preset != nullptr) model = models_.find(preset->name);
  }
  if (model == models_.end()) return;
  const int operation =
      labels.operation == v1::OPERATION_UNSPECIFIED ? v1::OPERATION_ROTATE : labels.operation;
  model->second[static_cast<size_t>(labels.transport)][static_cast<size_t>(operation)].Add();
}

std::vector<prometheus::ClientMetric> RotationCounts::Read() const {
  std::vector<prometheus::ClientMetric> metrics;
  for (const auto& [name, counts] : models_) {
    for (size_t transport = 0; transport < counts.size(); ++transport) {
      for (int operation = 0; operation < v1::Operation_ARRAYSIZE; ++operation) {
        const int64_t count = counts[transport][static_cast<size_t>(operation)];
        if (count == 0) continue;
        prometheus::ClientMetric& metric = metrics.emplace_back();
        metric.label = {{"model", name},
                        {"operation", OperationName(operation)},
                        {"transport", kTransportNames[transport]}};
        metric.counter.value = static_cast<double>(count);
      }
    }
  }
  return metrics;
}

}  // namespace rope::server
