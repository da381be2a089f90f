#include "client/cli/diagnose/diagnose_configs.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdlib>
#include <iterator>
#include <numbers>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace rope::client {
namespace {

using kernels::Pairing;
using kernels::RopeConfig;
using kernels::RopeType;

constexpr double kTwoPi = 2 * std::numbers::pi;
constexpr double kThetas[] = {10000, 500000, 1e6, 5e6, 1e7, 150000, 130000};
constexpr double kFactors[] = {2, 4, 8, 16, 32};
constexpr double kFractions[] = {1, 0.75, 0.5, 0.4, 0.25, 0.125};  // rotated part of a head
// The next token may be at most this many times as far away as the last one; beyond that, the
// number of full turns between them would be ambiguous.
constexpr int64_t kReach = 8;

// The rotation angle of each token for one pair: the angle of the sum over all rows.
std::vector<double> AnglesOf(const RotatedSample& sample, size_t first, size_t second) {
  std::vector<double> angles;
  const auto head_dim = static_cast<size_t>(sample.head_dim);
  for (size_t token = 0; token < sample.positions.size(); ++token) {
    std::complex<double> sum = 0;
    for (size_t row = 0; row < static_cast<size_t>(sample.rows); ++row) {
      const size_t at = (token * static_cast<size_t>(sample.rows) + row) * head_dim;
      const std::complex<double> before(sample.before[at + first], sample.before[at + second]);
      const std::complex<double> after(sample.after[at + first], sample.after[at + second]);
      sum += after * std::conj(before);
    }
    angles.push_back(std::arg(sum));
  }
  return angles;
}

// Tokens with their distances from the first, nearest first; without tokens at the same position.
std::vector<std::pair<int64_t, size_t>> Distances(const RotatedSample& sample) {
  std::vector<std::pair<int64_t, size_t>> distances;
  for (size_t i = 1; i < sample.positions.size(); ++i) {
    const int64_t distance = sample.positions[i] - sample.positions[0];
    if (distance != 0) distances.emplace_back(distance, i);
  }
  std::sort(distances.begin(), distances.end(),
            [](const auto& a, const auto& b) { return std::abs(a.first) < std::abs(b.first); });
  return distances;
}

struct Frequency {
  double value = 0;
  double span = 0;  // the distance over which it was measured
};

// Frequencies are at most 1, so the angle between neighbours is less than half a turn. Each farther
// token makes the estimate more exact, which determines the number of full turns to the next token.
Frequency FrequencyOf(const std::vector<double>& angles,
                      const std::vector<std::pair<int64_t, size_t>>& distances) {
  Frequency frequency;
  int64_t reached = 1;
  for (const auto& [distance, token] : distances) {
    if (std::abs(distance) > kReach * reached) break;
    reached = std::abs(distance);
    const double turned = angles[token] - angles[0];
    const auto apart = static_cast<double>(distance);
    const double turns = std::round((frequency.value * apart - turned) / kTwoPi);
    frequency = {.value = (turned + turns * kTwoPi) / apart, .span = std::abs(apart)};
  }
  return frequency;
}

// The nearest number with three significant digits if it is close enough, else `value`: configs
// contain round numbers.
double Snapped(double value) {
  const double unit = std::pow(10.0, std::floor(std::log10(value)) - 2);
  const double near = std::round(value / unit) * unit;
  return std::abs(near - value) < 2e-4 * value ? near : value;
}

RopeConfig Unscaled(const RopeConfig& believed) {
  RopeConfig config;
  config.rope_theta = believed.rope_theta;
  config.head_dim = believed.head_dim;
  config.rotary_dim = believed.rotary_dim;
  config.rotary_offset = believed.rotary_offset;
  config.max_position_embeddings = believed.max_position_embeddings;
  config.mrope = believed.mrope;
  config.precision = believed.precision;
  return config;
}

class Builder {
 public:
  Builder(const RopeConfig& believed, size_t pairs) : believed_(believed), pairs_(pairs) {}

  void AddThetas(const std::vector<FrequencyEstimate>& estimates) {
    std::vector<double> thetas(std::begin(kThetas), std::end(kThetas));
    for (const FrequencyEstimate& estimate : estimates) {
      if (estimate.theta > 0) thetas.push_back(Snapped(estimate.theta));
      if (estimate.theta > 0) thetas.push_back(estimate.theta);
    }
    std::vector<double> seen = {believed_.rope_theta};
    for (const double theta : thetas) {
      // Estimates are as exact as the elements they come from.
      const auto is_same = [theta](double other) {
        return std::abs(other - theta) <= 1e-6 * theta;
      };
      if (std::any_of(seen.begin(), seen.end(), is_same)) continue;
      seen.push_back(theta);
      RopeConfig config = believed_;
      config.rope_theta = theta;
      Add(absl::StrFormat("theta %.10g", theta), config);
    }
  }

  void AddScalings(const std::vector<FrequencyEstimate>& estimates) {
    const RopeType type = believed_.rope_type;
    const RopeConfig plain = Unscaled(believed_);
    if (type != RopeType::kDefault) Add("no scaling", plain);
    std::vector<double> factors = {believed_.factor.value_or(1)};
    for (const FrequencyEstimate& estimate : estimates) factors.push_back(Snapped(estimate.factor));
    factors.insert(factors.end(), std::begin(kFactors), std::end(kFactors));
    std::vector<double> seen = {1};
    if (type == RopeType::kLinear) seen.push_back(believed_.factor.value_or(1));
    for (const double factor : factors) {
      if (std::find(seen.begin(), seen.end(), factor) != seen.end()) continue;
      seen.push_back(factor);
      AddType(plain, RopeType::kLinear, factor);
    }
    if (!believed_.factor.has_value()) return;
    for (const RopeType other : {RopeType::kYarn, RopeType::kLlama3, RopeType::kDynamic}) {
      if (type != other) AddType(plain, other, *believed_.factor);
    }
  }

  // Settings on which implementations of the same type differ.
  void AddReadings() {
    if (believed_.rope_type == RopeType::kYarn) {
      RopeConfig config = believed_;
      const bool truncates = believed_.truncate.value_or(true);
      config.truncate = !truncates;
      Add(absl::StrCat("yarn truncate ", truncates ? "false" : "true"), config);
      config = believed_;
      const bool by_turns = believed_.ramp == kernels::YarnRamp::kTurns;
      config.ramp = by_turns ? kernels::YarnRamp::kIndex : kernels::YarnRamp::kTurns;
      if (!by_turns) config.truncate.reset();
      Add(absl::StrCat("yarn ramp by ", by_turns ? "index" : "turns"), config);
      config = believed_;
      config.attention_factor.reset();
      config.attn_factor.reset();
      config.mscale.reset();
      config.mscale_all_dim.reset();
      Add("attention factor of yarn without mscale", config);
    }
    if (believed_.rope_type == RopeType::kLongrope) {
      RopeConfig config = believed_;
      config.longrope_branch = kernels::LongropeBranch::kShort;
      Add("longrope short factors", config);
      config.longrope_branch = kernels::LongropeBranch::kLong;
      Add("longrope long factors", config);
    }
  }

  void AddRotaryDims(const RotatedSample& sample) {
    const auto head_dim = static_cast<double>(sample.head_dim);
    std::vector<int64_t> dims = {EstimateRotaryDim(sample, believed_.rotary_offset.value_or(0))};
    for (const double fraction : kFractions)
      dims.push_back(static_cast<int64_t>(head_dim * fraction));
    std::vector<int64_t> seen = {static_cast<int64_t>(2 * pairs_)};
    for (const int64_t dim : dims) {
      if (dim < 2 || dim % 2 != 0 || std::find(seen.begin(), seen.end(), dim) != seen.end())
        continue;
      seen.push_back(dim);
      RopeConfig config = believed_;
      config.partial_rotary_factor.reset();
      config.rotary_dim = dim;
      Add(absl::StrCat("rotary_dim ", dim), config);
    }
    const double share = 2 * static_cast<double>(pairs_) / head_dim;
    if (share < 1) {
      RopeConfig config = believed_;
      config.rope_theta = std::pow(believed_.rope_theta, share);
      Add("exponents over head_dim in place of rotary_dim", config);
    }
  }

  std::vector<ConfigChange> Build() { return std::move(changes_); }

 private:
  void Add(std::string words, const RopeConfig& config) {
    if (changes_.size() < kConfigChangesMax) changes_.push_back({std::move(words), config});
  }

  // llama3 with the factors of every known model.
  void AddType(RopeConfig config, RopeType type, double factor) {
    config.rope_type = type;
    config.factor = factor;
    if (type == RopeType::kLlama3) {
      config.low_freq_factor = 1;
      config.high_freq_factor = 4;
    }
    if (type == RopeType::kLlama3 || type == RopeType::kYarn) {
      config.original_max_position_embeddings = believed_.original_max_position_embeddings;
    }
    Add(absl::StrFormat("%s scaling, factor %.7g", Name(type), factor), config);
  }

  const RopeConfig& believed_;
  const size_t pairs_;
  std::vector<ConfigChange> changes_;
};

}  // namespace

std::optional<FrequencyEstimate> EstimateFrequencies(const RotatedSample& sample, Pairing pairing,
                                                     size_t window, size_t pairs) {
  const auto distances = Distances(sample);
  if (distances.empty() || std::abs(distances.front().first) != 1) return std::nullopt;
  FrequencyEstimate estimate;
  double first_value = 0;
  double best_weight = 0;
  for (size_t i = 0; i < pairs; ++i) {
    const bool is_half = pairing == Pairing::kHalf;
    const size_t first = window + (is_half ? i : 2 * i);
    const Frequency frequency =
        FrequencyOf(AnglesOf(sample, first, first + (is_half ? pairs : 1)), distances);
    const double value = std::abs(frequency.value);  // negative for an inverse rotation
    if (i == 0) {
      if (!(value > 0)) return std::nullopt;
      first_value = value;
      estimate.factor = 1 / value;
      continue;
    }
    // value = theta^(-i/pairs): an error of the angle counts less the larger i * value * span is.
    const double weight = static_cast<double>(i) * value * frequency.span;
    if (!(weight > best_weight) || !(value < first_value)) continue;
    best_weight = weight;
    estimate.theta =
        std::pow(first_value / value, static_cast<double>(pairs) / static_cast<double>(i));
  }
  if (!(estimate.theta > 1 && estimate.theta < 1e15)) estimate.theta = 0;
  if (!(estimate.factor > 1.001 && estimate.factor < 1e6)) estimate.factor = 1;
  return estimate;
}

int64_t EstimateRotaryDim(const RotatedSample& sample, int64_t window) {
  int64_t end = window;
  for (size_t i = 0; i < sample.before.size(); ++i) {
    const auto channel = static_cast<int64_t>(i) % sample.head_dim;
    if (sample.before[i] != sample.after[i]) end = std::max(end, channel + 1);
  }
  return end - window + (end - window) % 2;
}

std::vector<ConfigChange> ConfigChanges(const RopeConfig& believed, size_t pairs, Pairing pairing,
                                        const RotatedSample& sample) {
  std::vector<FrequencyEstimate> estimates;
  for (const Pairing candidate : {Pairing::kHalf, Pairing::kInterleaved}) {
    const auto estimate = EstimateFrequencies(
        sample, candidate, static_cast<size_t>(believed.rotary_offset.value_or(0)), pairs);
    if (estimate.has_value()) {
      estimates.insert(candidate == pairing ? estimates.begin() : estimates.end(), *estimate);
    }
  }
  Builder builder(believed, pairs);
  builder.AddScalings(estimates);
  builder.AddReadings();
  builder.AddThetas(estimates);
  builder.AddRotaryDims(sample);
  return builder.Build();
}

}  // namespace rope::client
