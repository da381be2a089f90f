#include "kernels/config/rope_formulas.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace rope::kernels {
namespace {

constexpr long double kTwoPi = 2 * std::numbers::pi_v<long double>;

long double YarnAttentionFactor(const RopeConfig& config) {
  const double factor = *EffectiveFactor(config);
  const double mscale = config.mscale.value_or(0);
  const double mscale_all_dim = config.mscale_all_dim.value_or(0);
  const long double multiplied = config.attn_factor.value_or(1);
  if (mscale != 0 && mscale_all_dim != 0) {
    return multiplied * YarnMagnitude(mscale, factor) / YarnMagnitude(mscale_all_dim, factor);
  }
  return multiplied * YarnMagnitude(1, factor);
}

long double LongropeAttentionFactor(const RopeConfig& config) {
  const long double factor = *EffectiveFactor(config);
  if (factor <= 1) return 1;
  return std::sqrt(1 +
                   std::log(factor) / std::log(static_cast<long double>(*OriginalLength(config))));
}

}  // namespace

std::optional<int64_t> RotaryDim(const RopeConfig& config, std::optional<int64_t> head_dim) {
  if (config.head_dim.has_value()) head_dim = config.head_dim;
  if (config.rope_type == RopeType::kProportional) return head_dim;
  if (config.rotary_dim.has_value()) return config.rotary_dim;
  if (!head_dim.has_value()) return std::nullopt;
  const double channels = static_cast<double>(*head_dim) * config.partial_rotary_factor.value_or(1);
  constexpr double kMost = int64_t{1} << 53;
  return channels > 0 ? static_cast<int64_t>(std::min(channels, kMost)) : 0;  // 0 for a NaN
}

std::optional<int64_t> OriginalLength(const RopeConfig& config) {
  if (config.original_max_position_embeddings.has_value()) {
    return config.original_max_position_embeddings;
  }
  return config.max_position_embeddings;
}

std::optional<double> LengthRatio(const RopeConfig& config) {
  if (!config.max_position_embeddings.has_value() ||
      !config.original_max_position_embeddings.has_value()) {
    return std::nullopt;
  }
  return static_cast<double>(*config.max_position_embeddings) /
         static_cast<double>(*config.original_max_position_embeddings);
}

bool ReadsFactor(const RopeConfig& config) {
  return config.rope_type != RopeType::kDefault &&
         !(config.rope_type == RopeType::kDynamic && config.alpha.has_value());
}

bool ReadsAttentionFactor(const RopeConfig& config) {
  return config.rope_type == RopeType::kYarn || config.rope_type == RopeType::kLongrope ||
         !config.inv_freq.empty();
}

std::optional<double> EffectiveFactor(const RopeConfig& config) {
  if (config.factor.has_value()) return config.factor;
  switch (config.rope_type) {
    case RopeType::kYarn:
      return LengthRatio(config);
    case RopeType::kLongrope:
      // Without an original length the model was not extended: the ratio is 1.
      if (config.original_max_position_embeddings.has_value()) return LengthRatio(config);
      return config.max_position_embeddings.has_value() ? std::optional<double>(1) : std::nullopt;
    case RopeType::kProportional:
      return 1;
    default:
      return std::nullopt;
  }
}

double BetaFast(const RopeConfig& config) {
  const double beta = config.beta_fast.value_or(0);
  return beta == 0 ? 32 : beta;
}

double BetaSlow(const RopeConfig& config) {
  const double beta = config.beta_slow.value_or(0);
  return beta == 0 ? 1 : beta;
}

long double YarnMagnitude(long double mscale, long double factor) {
  return factor <= 1 ? 1 : 0.1L * mscale * std::log(factor) + 1;
}

YarnEdges TurnEdges(const RopeConfig& config, int64_t rotary_dim, double fast, double slow) {
  const auto length = static_cast<long double>(*OriginalLength(config));
  const auto dim = static_cast<long double>(rotary_dim);
  const long double log_theta = std::log(static_cast<long double>(config.rope_theta));
  const auto edge = [&](double turns) {
    return dim * std::log(length / (kTwoPi * static_cast<long double>(turns))) / (2 * log_theta);
  };
  return {.low = edge(fast), .high = edge(slow)};
}

YarnEdges YarnRampEdges(const RopeConfig& config, int64_t rotary_dim, bool truncate) {
  YarnEdges edges = TurnEdges(config, rotary_dim, BetaFast(config), BetaSlow(config));
  if (truncate) edges = {.low = std::floor(edges.low), .high = std::ceil(edges.high)};
  edges.low = std::max(edges.low, 0.0L);
  edges.high = std::min(edges.high, static_cast<long double>(rotary_dim - 1));
  if (edges.low == edges.high) edges.high += 0.001L;
  return edges;
}

long double AttentionFactor(const RopeConfig& config, bool ignore_explicit) {
  if (!ReadsAttentionFactor(config)) return 1;
  if (config.attention_factor.has_value() && !ignore_explicit) return *config.attention_factor;
  if (!config.inv_freq.empty()) return 1;
  return config.rope_type == RopeType::kYarn ? YarnAttentionFactor(config)
                                             : LongropeAttentionFactor(config);
}

bool TakesLongFactors(const RopeConfig& config, int64_t seq_len) {
  if (config.longrope_branch.has_value()) return config.longrope_branch == LongropeBranch::kLong;
  return seq_len > *OriginalLength(config);
}

long double DynamicTheta(const RopeConfig& config, int64_t rotary_dim, int64_t seq_len) {
  const long double theta = config.rope_theta;
  const auto dim = static_cast<long double>(rotary_dim);
  const long double exponent = dim / (dim - 2);
  if (config.alpha.has_value()) {
    return theta * std::pow(static_cast<long double>(*config.alpha), exponent);
  }
  const int64_t length = *config.max_position_embeddings;
  if (seq_len <= length) return theta;
  const long double factor = *config.factor;
  const long double ratio = static_cast<long double>(seq_len) / static_cast<long double>(length);
  // factor * ratio - factor + 1, rearranged to avoid cancellation.
  return theta * std::pow(factor * (ratio - 1) + 1, exponent);
}

}  // namespace rope::kernels
