#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/dtype/element.h"

namespace rope::kernels {
namespace {

// x * weight / sqrt(mean(x * x) + eps).
void Normalise(const RmsNorm& norm, std::vector<double>& head) {
  double sum = 0;
  for (const double x : head) sum += x * x;
  const double rms = std::sqrt(sum / static_cast<double>(head.size()) + norm.eps);
  for (size_t i = 0; i < head.size(); ++i) {
    head[i] = head[i] / rms * (norm.weight == nullptr ? 1.0 : norm.weight[i]);
  }
}

using Pair = std::pair<double, double>;

Pair Apply(const RotateJob& job, Pair pair, double c, double s) {
  const auto [a, b] = pair;
  switch (job.arithmetic) {
    case PairArithmetic::kTurn:
      break;
    case PairArithmetic::kTurnStepwise: {
      // Rounds to float32 first, like tensor libraries do. Products of denormal bf16 numbers depend
      // on it.
      const auto rounded = [&job](double value) {
        return RoundedTo(static_cast<float>(value), job.dtype);
      };
      return {rounded(rounded(a * c) - rounded(b * s)), rounded(rounded(b * c) + rounded(a * s))};
    }
    case PairArithmetic::kAdd:
      return {a + s, b + c};
  }
  return {a * c - b * s, b * c + a * s};
}

void ApplyToPairs(const RotateJob& job, int64_t token, std::vector<double>& head) {
  const PairGeometry& geometry = job.geometry;
  if (geometry.pairs == 0) return;
  std::vector<float> row(static_cast<size_t>(2 * geometry.pairs));
  if (job.move) {
    ComposeRow(*job.move, token, geometry.pairs, row.data());
  } else {
    const RowRef& ref = job.rows[static_cast<size_t>(token)];
    std::copy_n(ref.page->Cos(ref.index), row.size(), row.begin());
  }
  const float* const cos = row.data();
  const float* const sin = cos + geometry.pairs;
  const bool half = geometry.pairing == Pairing::kHalf;
  for (int64_t i = 0; i < geometry.pairs; ++i) {
    const auto first = static_cast<size_t>(geometry.offset + (half ? i : 2 * i));
    const size_t second = first + static_cast<size_t>(half ? geometry.partner : 1);
    const double c = cos[i];
    const double s = job.conjugate ? -sin[i] : sin[i];
    std::tie(head[first], head[second]) = Apply(job, {head[first], head[second]}, c, s);
  }
}

// Rotates the vector of one token and head. Returns the number of elements that saturate.
int64_t RotateHead(const RotateJob& job, int64_t token, int64_t head) {
  const int64_t bytes = ElementBytes(job.dtype);
  const int64_t stored_bytes = ElementBytes(job.stored());
  const auto* const input =
      static_cast<const uint8_t*>(job.input) +
      (token * job.input_strides.token + head * job.input_strides.head) * bytes;
  auto* const output =
      static_cast<uint8_t*>(job.output) +
      (token * job.output_strides.token + head * job.output_strides.head) * stored_bytes;
  const size_t token_index = static_cast<size_t>(token);
  std::vector<double> values;
  for (int64_t i = 0; i < job.head_dim; ++i) {
    values.push_back(ReadElement(input + i * bytes, job.dtype));
  }
  if (job.norm) Normalise(*job.norm, values);
  ApplyToPairs(job, token, values);
  const double token_scale = job.token_scales.empty() ? 1.0 : job.token_scales[token_index];
  const bool copies = job.OnlyPairs();  // channels outside the pairs are copied bit for bit
  if (copies && input != output) std::memcpy(output, input, values.size() * bytes);
  int64_t saturated = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (copies && !job.geometry.Holds(static_cast<int64_t>(i))) continue;
    const double value = values[i] * job.scale * token_scale / job.output_scale;
    saturated += Saturates(value, job.stored()) ? 1 : 0;
    WriteElement(value, job.stored(), output + static_cast<int64_t>(i) * stored_bytes);
  }
  return saturated;
}

class ReferenceBackend : public Backend {
 public:
  std::string_view name() const override { return "reference"; }
  std::string detail() const override { return "scalar double, 1 thread"; }

  absl::Status Rotate(absl::Span<const RotateJob> jobs) override {
    for (const RotateJob& job : jobs) {
      CheckJob(job);
      RotateReference(job, {0, job.tokens, 0, job.heads, 0, job.layers});
    }
    return absl::OkStatus();
  }
};

}  // namespace

void RotateReference(const RotateJob& job, const RotateRange& range) {
  int64_t saturated = 0;
  for (int64_t layer = range.layer_begin; layer < range.layer_end; ++layer) {
    const RotateJob of_layer = job.Layer(layer);
    for (int64_t token = range.token_begin; token < range.token_end; ++token) {
      for (int64_t head = range.head_begin; head < range.head_end; ++head) {
        saturated += RotateHead(of_layer, token, head);
      }
    }
  }
  job.AddSaturated(saturated);
}

std::unique_ptr<Backend> MakeReferenceBackend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace rope::kernels
