#include "kernels/frequencies/inverse_frequencies.h"

#include <algorithm>
#include <iterator>

#include "kernels/dtype/quad.h"

namespace rope::kernels {
namespace {

// Every type starts from Powers(theta) and then
//   linear, proportional  divides all frequencies by factor
//   llama3                ScaleByTurns, with low_freq_factor and high_freq_factor
//   yarn                  ScaleYarn: a ramp over the index, or ScaleByTurns with ramp "turns"
//   longrope              divides frequency i by short_factor[i] or long_factor[i]
//   dynamic               enlarges theta with the length, and scales nothing
//   ntk                   Ntk: enlarges theta and divides, or ScaleNtkMixed with mixed_b
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

// Concatenates the frequencies of the axes. Each axis starts at i = 0 and has its own dim.
Numbers AxialPowers(Quad theta, const Mrope& mrope) {
  Numbers powers;
  for (const int64_t count : mrope.section) {
    const Numbers axis = Powers(theta, 2 * count, count);
    powers.insert(powers.end(), axis.begin(), axis.end());
  }
  return powers;
}

Numbers PowersOf(const RopeConfig& config, Quad theta, int64_t rotary_dim) {
  if (config.mrope.has_value() && config.mrope->layout == Mrope::Layout::kAxial) {
    return AxialPowers(theta, *config.mrope);
  }
  return Powers(theta, rotary_dim, rotary_dim / 2);
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
void ScaleYarn(const RopeConfig& config, int64_t rotary_dim, Numbers& numbers) {
  const double factor = *config.factor;
  if (config.ramp == YarnRamp::kTurns) {
    return ScaleByTurns(factor, *config.beta_slow, *config.beta_fast,
                        *config.original_max_position_embeddings, numbers);
  }
  const YarnEdges edges = YarnRampEdges(config, rotary_dim, *config.truncate);
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
void ScaleNtkMixed(double factor, double mixed_b, Numbers& numbers) {
  const Quad a = QuadLog(factor) / QuadPow(static_cast<Quad>(numbers.size()), mixed_b);
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] /= QuadExp(a * QuadPow(static_cast<Quad>(i + 1), mixed_b));
  }
}

Numbers Ntk(const RopeConfig& config, int64_t rotary_dim) {
  const double factor = *config.factor;
  if (config.mixed_b.has_value()) {
    Numbers numbers = PowersOf(config, config.rope_theta, rotary_dim);
    ScaleNtkMixed(factor, *config.mixed_b, numbers);
    return numbers;
  }
  Numbers numbers = PowersOf(config, static_cast<Quad>(config.rope_theta) * factor, rotary_dim);
  DivideBy(QuadPow(factor, Quad{2} / static_cast<Quad>(rotary_dim)), numbers);
  return numbers;
}

// theta^(-2i/head_dim) for the rotating part, then zeros up to head_dim/2 pairs.
Numbers UnscaledProportional(const RopeConfig& config, int64_t head_dim) {
  const auto rotating =
      static_cast<int64_t>(*config.partial_rotary_factor * static_cast<double>(head_dim) / 2);
  Numbers numbers = Powers(config.rope_theta, head_dim, rotating);
  numbers.resize(static_cast<size_t>(head_dim / 2), 0);
  return numbers;
}

Numbers Unscaled(const RopeConfig& config, int64_t head_dim, int64_t rotary_dim) {
  return config.rope_type == RopeType::kProportional
             ? UnscaledProportional(config, head_dim)
             : PowersOf(config, config.rope_theta, rotary_dim);
}

Numbers Scaled(const RopeConfig& config, int64_t head_dim, int64_t rotary_dim, int64_t seq_len) {
  if (!config.inv_freq.empty()) return Numbers(config.inv_freq.begin(), config.inv_freq.end());
  if (config.rope_type == RopeType::kDynamic) {
    return PowersOf(config, DynamicTheta(config, rotary_dim, seq_len), rotary_dim);
  }
  if (config.rope_type == RopeType::kNtk) return Ntk(config, rotary_dim);
  Numbers numbers = Unscaled(config, head_dim, rotary_dim);
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
      ScaleYarn(config, rotary_dim, numbers);
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
  std::vector<long double> rounded;
  rounded.reserve(numbers.size());
  std::transform(numbers.begin(), numbers.end(), std::back_inserter(rounded), ToSignificand64);
  return rounded;
}

}  // namespace

std::vector<long double> InverseFrequencies(const RopeConfig& config, int64_t head_dim,
                                            int64_t rotary_dim, int64_t seq_len) {
  return Rounded(Scaled(config, head_dim, rotary_dim, seq_len));
}

std::vector<long double> UnscaledFrequencies(const RopeConfig& config, int64_t head_dim,
                                             int64_t rotary_dim) {
  return Rounded(Unscaled(config, head_dim, rotary_dim));
}

}  // namespace rope::kernels
