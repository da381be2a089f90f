#include "kernels/frequencies/inverse_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "kernels/dtype/element.h"
#include "kernels/dtype/quad.h"

namespace rope::kernels {
namespace {

// Every type starts from Powers(theta) and then
//   linear, proportional  divides all frequencies by factor
//   llama3                ScaleByTurns, with low_freq_factor and high_freq_factor
//   yarn                  ScaleYarn: a ramp over the index, or ScaleByTurns with ramp "turns"
//   longrope              divides frequency i by short_factor[i] or long_factor[i]
//   dynamic               enlarges theta with the length, and scales nothing
//   ntk                   Ntk: enlarges theta and divides, or divides more and more with mixed_b
// Explicit inv_freq skip all of this.
using Numbers = std::vector<Quad>;

// theta^(-2i/dim) for i from 0 to count - 1, by products: a product takes far less time than a
// power. Each adds an error of a unit in the last of 113 bits.
Numbers Powers(Quad theta, int64_t dim, int64_t count) {
  const Quad step = QuadPow(theta, Quad{-2} / static_cast<Quad>(dim));
  Numbers powers(static_cast<size_t>(count));
  Quad power = 1;
  for (Quad& number : powers) {
    number = power;
    power *= step;
  }
  return powers;
}

bool IsAxial(const RopeConfig& config) {
  return config.mrope.has_value() && config.mrope->layout == Mrope::Layout::kAxial;
}

// Each axis of an axial layout starts at i = 0 and has its own dim.
Numbers PowersOf(const RopeConfig& config, Quad theta) {
  if (!IsAxial(config)) return Powers(theta, *config.rotary_dim, *config.rotary_dim / 2);
  Numbers powers;
  for (const int64_t count : config.mrope->section) {
    const Numbers axis = Powers(theta, 2 * count, count);
    powers.insert(powers.end(), axis.begin(), axis.end());
  }
  return powers;
}

void DivideBy(Quad factor, Numbers& numbers) {
  for (Quad& number : numbers) number /= factor;
}

void DivideBy(const std::vector<double>& divisors, Numbers& numbers) {
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] /= divisors[i];
}

// Scales each frequency by its number of full turns over `length` positions. At least `high` turns:
// kept. At most `low` turns: divided by `factor`. Between: a blend that is linear in the turns. If
// low == high, no frequency is between.
void ScaleByTurns(double factor, double low, double high, int64_t length, Numbers& numbers) {
  const Quad turns_of_one = static_cast<Quad>(length) / (2 * kQuadPi);
  for (Quad& number : numbers) {
    const Quad turns = turns_of_one * number;
    if (turns >= high) continue;
    if (turns <= low) {
      number /= factor;
    } else {
      const Quad kept = (turns - low) / (static_cast<Quad>(high) - low);
      number = (1 - kept) * number / factor + kept * number;
    }
  }
}

// The ramp is 0 up to index edges.low (kept) and 1 from edges.high on (divided by the factor).
void ScaleYarn(const RopeConfig& config, Numbers& numbers) {
  const double factor = *config.factor;
  if (config.ramp == YarnRamp::kTurns) {
    return ScaleByTurns(factor, *config.beta_slow, *config.beta_fast,
                        *config.original_max_position_embeddings, numbers);
  }
  const YarnEdges edges = YarnRampEdges(config, *config.rotary_dim, *config.truncate);
  const Quad width = static_cast<Quad>(edges.high) - edges.low;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const Quad ramp = (static_cast<Quad>(i) - edges.low) / width;
    if (ramp >= 1) {
      numbers[i] /= factor;
    } else if (ramp > 0) {
      numbers[i] = (1 - ramp) * numbers[i] + ramp * numbers[i] / factor;
    }
  }
}

// vLLM's NTKScalingRotaryEmbedding. Without mixed_b the base is multiplied by factor and every
// frequency divided by factor^(2/d) ("NTK-RoPE-fixed"); with it, frequency i is divided by
// exp(a (i+1)^b), a = ln(factor) / (d/2)^b ("NTK-RoPE-mixed", kexue.fm/archives/9706).
Numbers Ntk(const RopeConfig& config) {
  const double factor = *config.factor;
  if (!config.mixed_b.has_value()) {
    Numbers numbers = PowersOf(config, static_cast<Quad>(config.rope_theta) * factor);
    DivideBy(QuadPow(factor, Quad{2} / static_cast<Quad>(*config.rotary_dim)), numbers);
    return numbers;
  }
  const double mixed_b = *config.mixed_b;
  Numbers numbers = PowersOf(config, config.rope_theta);
  const Quad a = QuadLog(factor) / QuadPow(static_cast<Quad>(numbers.size()), mixed_b);
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] /= QuadExp(a * QuadPow(static_cast<Quad>(i + 1), mixed_b));
  }
  return numbers;
}

// The pairs of proportional that rotate; the others, up to head_dim/2, have frequency 0.
int64_t RotatingPairs(const RopeConfig& config) {
  const auto head_dim = static_cast<double>(*config.head_dim);
  return static_cast<int64_t>(*config.partial_rotary_factor * head_dim / 2);
}

Numbers Unscaled(const RopeConfig& config) {
  if (config.rope_type != RopeType::kProportional) return PowersOf(config, config.rope_theta);
  Numbers numbers = Powers(config.rope_theta, *config.head_dim, RotatingPairs(config));
  numbers.resize(static_cast<size_t>(*config.head_dim / 2), 0);
  return numbers;
}

Numbers Scaled(const RopeConfig& config, int64_t seq_len) {
  if (!config.inv_freq.empty()) return Numbers(config.inv_freq.begin(), config.inv_freq.end());
  if (config.rope_type == RopeType::kDynamic) {
    return PowersOf(config, DynamicTheta(config, *config.rotary_dim, seq_len));
  }
  if (config.rope_type == RopeType::kNtk) return Ntk(config);
  Numbers numbers = Unscaled(config);
  switch (config.rope_type) {
    case RopeType::kLinear:
    case RopeType::kProportional:
      DivideBy(*config.factor, numbers);
      break;
    case RopeType::kLlama3:
      ScaleByTurns(*config.factor, *config.low_freq_factor, *config.high_freq_factor,
                   *config.original_max_position_embeddings, numbers);
      break;
    case RopeType::kYarn:
      ScaleYarn(config, numbers);
      break;
    case RopeType::kLongrope:
      DivideBy(TakesLongFactors(config, seq_len) ? config.long_factor : config.short_factor,
               numbers);
      break;
    case RopeType::kDefault:
    case RopeType::kDynamic:
    case RopeType::kNtk:
      break;
  }
  return numbers;
}

std::vector<long double> Rounded(const Numbers& numbers) {
  std::vector<long double> rounded(numbers.size());
  std::ranges::transform(numbers, rounded.begin(), ToSignificand64);
  return rounded;
}

}  // namespace

std::vector<long double> InverseFrequencies(const RopeConfig& config, int64_t seq_len) {
  return Rounded(Scaled(config, seq_len));
}

std::vector<long double> UnscaledFrequencies(const RopeConfig& config) {
  return Rounded(Unscaled(config));
}

namespace {

using Floats = std::vector<float>;

float Power(float base, float exponent) {
  return static_cast<float>(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
}

// theta^(2i/dim) for i from 0. Eager code computes these powers and then their reciprocals.
Floats FloatPowers(float theta, int64_t dim, int64_t count) {
  Floats powers(static_cast<size_t>(count));
  for (size_t i = 0; i < powers.size(); ++i) {
    powers[i] = Power(theta, static_cast<float>(2 * i) / static_cast<float>(dim));
  }
  return powers;
}

Floats Reciprocals(Floats numbers) {
  for (float& number : numbers) number = 1.0F / number;
  return numbers;
}

// The base at `seq_len`. In eager code the length is a float32 tensor, so the ratio is float32.
float DynamicBase(const RopeConfig& config, int64_t seq_len) {
  const auto theta = static_cast<float>(config.rope_theta);
  const auto dim = static_cast<double>(*config.rotary_dim);
  const double exponent = dim / (dim - 2);
  if (config.alpha.has_value()) {
    return static_cast<float>(config.rope_theta * std::pow(*config.alpha, exponent));
  }
  if (seq_len <= *config.max_position_embeddings) return theta;
  const double factor = *config.factor;
  const float ratio = static_cast<float>(factor) * static_cast<float>(seq_len) /
                      static_cast<float>(*config.max_position_embeddings);
  return theta * Power(ratio - static_cast<float>(factor - 1), static_cast<float>(exponent));
}

Floats Yarn(const RopeConfig& config, const Floats& powers) {
  const YarnEdges edges = YarnRampEdges(config, *config.rotary_dim, *config.truncate);
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

Floats Proportional(const RopeConfig& config) {
  Floats numbers = Reciprocals(
      FloatPowers(static_cast<float>(config.rope_theta), *config.head_dim, RotatingPairs(config)));
  numbers.resize(static_cast<size_t>(*config.head_dim / 2), 0);
  return DividedBy(*config.factor, std::move(numbers));
}

}  // namespace

std::vector<float> EagerFrequencies(const RopeConfig& config, int64_t seq_len) {
  if (!config.inv_freq.empty() || IsAxial(config) || config.rope_type == RopeType::kNtk ||
      config.ramp == YarnRamp::kTurns) {  // Hugging Face has none of them
    const std::vector<long double> exact = InverseFrequencies(config, seq_len);
    return Floats(exact.begin(), exact.end());
  }
  if (config.rope_type == RopeType::kProportional) return Proportional(config);
  const float theta = config.rope_type == RopeType::kDynamic
                          ? DynamicBase(config, seq_len)
                          : static_cast<float>(config.rope_theta);
  const Floats powers = FloatPowers(theta, *config.rotary_dim, *config.rotary_dim / 2);
  switch (config.rope_type) {
    case RopeType::kLinear:
      return DividedBy(*config.factor, Reciprocals(powers));
    case RopeType::kYarn:
      return Yarn(config, powers);
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
  return {.cos = RoundedTo(cos * multiplier, dtype), .sin = RoundedTo(sin * multiplier, dtype)};
}

}  // namespace rope::kernels
