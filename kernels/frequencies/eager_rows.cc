#include "kernels/frequencies/eager_rows.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "kernels/dtype/element.h"
#include "kernels/frequencies/inverse_frequencies.h"

namespace rope::kernels {
namespace {

using Floats = std::vector<float>;

float Power(float base, float exponent) {
  return static_cast<float>(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
}

// theta^(2i/dim) for i from 0. Eager code computes these powers and then their reciprocals.
Floats FloatPowers(float theta, int64_t dim, int64_t count) {
  Floats powers(static_cast<size_t>(count));
  for (size_t i = 0; i < powers.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    powers[i] = Power(theta, exponent);
  }
  return powers;
}

Floats Reciprocals(Floats numbers) {
  for (float& number : numbers) number = 1.0F / number;
  return numbers;
}

// The base at `seq_len`. In eager code the length is a float32 tensor, so the ratio is float32.
float DynamicBase(const RopeConfig& config, int64_t rotary_dim, int64_t seq_len) {
  const auto theta = static_cast<float>(config.rope_theta);
  const double exponent = static_cast<double>(rotary_dim) / static_cast<double>(rotary_dim - 2);
  if (config.alpha.has_value()) {
    return static_cast<float>(config.rope_theta * std::pow(*config.alpha, exponent));
  }
  if (seq_len <= *config.max_position_embeddings) return theta;
  const double factor = *config.factor;
  const float ratio = static_cast<float>(factor) * static_cast<float>(seq_len) /
                      static_cast<float>(*config.max_position_embeddings);
  return theta * Power(ratio - static_cast<float>(factor - 1), static_cast<float>(exponent));
}

Floats Yarn(const RopeConfig& config, int64_t rotary_dim, const Floats& powers) {
  const YarnEdges edges = YarnRampEdges(config, rotary_dim, *config.truncate);
  const auto low = static_cast<double>(edges.low);
  const auto width = static_cast<float>(static_cast<double>(edges.high) - low);
  Floats numbers(powers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const float ramp =
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) / width, 0.0F, 1.0F);
    const float kept = 1.0F - ramp;
    const float divided = 1.0F / (static_cast<float>(*config.factor) * powers[i]);
    numbers[i] = divided * (1.0F - kept) + 1.0F / powers[i] * kept;
  }
  return numbers;
}

Floats Longrope(const std::vector<double>& divisors, const Floats& powers) {
  Floats numbers(powers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = 1.0F / (static_cast<float>(divisors[i]) * powers[i]);
  }
  return numbers;
}

Floats Llama3(const RopeConfig& config, Floats numbers) {
  const auto factor = static_cast<float>(*config.factor);
  const double low = *config.low_freq_factor;
  const double high = *config.high_freq_factor;
  const auto length = static_cast<double>(*config.original_max_position_embeddings);
  for (float& number : numbers) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / number;
    if (wavelength < static_cast<float>(length / high)) continue;
    if (wavelength > static_cast<float>(length / low)) {
      number /= factor;
    } else if (low < high) {
      const float kept = (static_cast<float>(length) / wavelength - static_cast<float>(low)) /
                         static_cast<float>(high - low);
      number = (1.0F - kept) * number / factor + kept * number;
    }
  }
  return numbers;
}

Floats DividedBy(double factor, Floats numbers) {
  for (float& number : numbers) number /= static_cast<float>(factor);
  return numbers;
}

Floats Proportional(const RopeConfig& config, int64_t head_dim) {
  const auto rotating =
      static_cast<int64_t>(*config.partial_rotary_factor * static_cast<double>(head_dim) / 2);
  Floats numbers =
      Reciprocals(FloatPowers(static_cast<float>(config.rope_theta), head_dim, rotating));
  numbers.resize(static_cast<size_t>(head_dim / 2), 0);
  return DividedBy(*config.factor, std::move(numbers));
}

bool IsHuggingFaces(const RopeConfig& config) {
  const bool axial = config.mrope.has_value() && config.mrope->layout == Mrope::Layout::kAxial;
  return config.inv_freq.empty() && !axial && config.rope_type != RopeType::kNtk &&
         config.ramp != YarnRamp::kTurns;
}

}  // namespace

std::vector<float> EagerFrequencies(const RopeConfig& config, int64_t head_dim, int64_t rotary_dim,
                                    int64_t seq_len) {
  if (!IsHuggingFaces(config)) {
    const std::vector<long double> exact =
        InverseFrequencies(config, head_dim, rotary_dim, seq_len);
    return Floats(exact.begin(), exact.end());
  }
  if (config.rope_type == RopeType::kProportional) return Proportional(config, head_dim);
  const float theta = config.rope_type == RopeType::kDynamic
                          ? DynamicBase(config, rotary_dim, seq_len)
                          : static_cast<float>(config.rope_theta);
  const Floats powers = FloatPowers(theta, rotary_dim, rotary_dim / 2);
  switch (config.rope_type) {
    case RopeType::kLinear:
      return DividedBy(*config.factor, Reciprocals(powers));
    case RopeType::kYarn:
      return Yarn(config, rotary_dim, powers);
    case RopeType::kLongrope:
      return Longrope(TakesLongFactors(config, seq_len) ? config.long_factor : config.short_factor,
                      powers);
    case RopeType::kLlama3:
      return Llama3(config, Reciprocals(powers));
    default:
      return Reciprocals(powers);
  }
}

CosSin EagerCosSin(int64_t position, float inv_freq, float multiplier, DType dtype) {
  const float angle = static_cast<float>(position) * inv_freq;
  const auto cos = static_cast<float>(std::cos(static_cast<double>(angle)));
  const auto sin = static_cast<float>(std::sin(static_cast<double>(angle)));
  const float scaled_cos = cos * multiplier;
  const float scaled_sin = sin * multiplier;
  return {.cos = RoundedTo(scaled_cos, dtype), .sin = RoundedTo(scaled_sin, dtype)};
}

}  // namespace rope::kernels
