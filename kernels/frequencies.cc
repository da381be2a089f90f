#include "kernels/frequencies.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "absl/hash/hash.h"
#include "kernels/check.h"
#include "kernels/rope_formulas.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"

namespace rope::kernels {
namespace {

static_assert(std::numeric_limits<InverseFrequency>::digits >= 64,
              "angles at position 10^9 need more bits than a double has");

using Numbers = std::vector<InverseFrequency>;

constexpr char kExactAngles = 0;  // the angle mode, last byte of a key

// theta^(-2i/dim), i from 0.
Numbers Powers(long double theta, int64_t dim, int64_t count) {
  Numbers powers(static_cast<size_t>(count));
  for (size_t i = 0; i < powers.size(); ++i) {
    powers[i] = std::pow(theta, -2 * static_cast<long double>(i) / static_cast<long double>(dim));
  }
  return powers;
}

void DivideBy(long double factor, Numbers& numbers) {
  for (InverseFrequency& number : numbers) number /= factor;
}

void DivideBy(const std::vector<double>& divisors, Numbers& numbers) {
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] /= divisors[i];
}

void ScaleLlama3(const RopeConfig& config, Numbers& numbers) {
  const long double factor = *config.factor;
  const long double low = *config.low_freq_factor;
  const long double high = *config.high_freq_factor;
  const auto length = static_cast<long double>(*config.original_max_position_embeddings);
  for (InverseFrequency& number : numbers) {
    const long double turns = length * number / (2 * std::numbers::pi_v<long double>);
    // In this order, low == high leaves nothing to blend.
    if (turns >= high) continue;
    if (turns <= low) {
      number /= factor;
    } else {
      const long double kept = (turns - low) / (high - low);
      number = (1 - kept) * number / factor + kept * number;
    }
  }
}

void ScaleYarn(const RopeConfig& config, int64_t rotary_dim, Numbers& numbers) {
  const long double factor = *config.factor;
  const YarnEdges edges = YarnRampEdges(config, rotary_dim, *config.truncate);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const long double ramp = std::clamp(
        (static_cast<long double>(i) - edges.low) / (edges.high - edges.low), 0.0L, 1.0L);
    numbers[i] = (1 - ramp) * numbers[i] + ramp * numbers[i] / factor;
  }
}

Numbers Proportional(const RopeConfig& config, int64_t head_dim) {
  const auto rotating =
      static_cast<int64_t>(*config.partial_rotary_factor * static_cast<double>(head_dim) / 2);
  Numbers numbers = Powers(config.rope_theta, head_dim, rotating);
  DivideBy(*config.factor, numbers);
  numbers.resize(static_cast<size_t>(head_dim / 2), 0);
  return numbers;
}

std::shared_ptr<const Frequencies> MakeFrequencies(ResolvedRope::AtSeqLen evaluated,
                                                   double multiplier) {
  auto frequencies = std::make_shared<Frequencies>();
  frequencies->inv_freq = std::move(evaluated.inv_freq);
  if (multiplier == 1) {
    while (!frequencies->inv_freq.empty() && frequencies->inv_freq.back() == 0) {
      frequencies->inv_freq.pop_back();
    }
  }
  frequencies->multiplier = multiplier;
  frequencies->key = TableKey(frequencies->inv_freq, multiplier);
  frequencies->cacheable = evaluated.cacheable;
  return frequencies;
}

double MultiplierValue(Multiplier multiplier, double attention_factor) {
  switch (multiplier) {
    case Multiplier::kAttentionFactor:
      return attention_factor;
    case Multiplier::kOne:
      return 1;
    case Multiplier::kInverseAttentionFactor:
      return 1 / attention_factor;
  }
  return 1;
}

constexpr Multiplier kMultipliers[] = {Multiplier::kAttentionFactor, Multiplier::kOne,
                                       Multiplier::kInverseAttentionFactor};

// Fills in what the type reads. `config` is valid and has a head_dim.
void FillDefaults(RopeConfig& config, int64_t rotary_dim, double attention_factor) {
  config.rotary_dim = rotary_dim;
  if (!config.partial_rotary_factor.has_value()) {
    config.partial_rotary_factor =
        static_cast<double>(rotary_dim) / static_cast<double>(*config.head_dim);
  }
  const RopeType type = config.rope_type;
  const bool reads_original =
      type == RopeType::kYarn || type == RopeType::kLongrope || type == RopeType::kLlama3;
  config.factor = EffectiveFactor(config);
  if (reads_original) config.original_max_position_embeddings = OriginalLength(config);
  if (type == RopeType::kYarn || type == RopeType::kLongrope) {
    config.attention_factor = attention_factor;
  }
  if (type == RopeType::kYarn) {
    config.beta_fast = BetaFast(config);
    config.beta_slow = BetaSlow(config);
    config.truncate = config.truncate.value_or(true);
  }
}

absl::Status CheckFinite(const RopeConfig& config, const ResolvedRope::AtSeqLen& evaluated) {
  bool finite = std::isfinite(evaluated.rope_theta);
  for (const InverseFrequency number : evaluated.inv_freq) {
    finite = finite && number >= 0 && std::isfinite(static_cast<double>(number));
  }
  if (finite) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("rope_theta: got ", config.rope_theta, " with factor ", config.factor.value_or(1),
             ", want a base and a factor that keep every inverse frequency finite"));
}

absl::Status CheckAttentionFactor(const RopeConfig& config, double attention_factor) {
  if (attention_factor <= std::numeric_limits<float>::max()) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("mscale: got ", config.mscale.value_or(1),
                                           ", want one whose attention factor, ", attention_factor,
                                           ", is at most 3.4e38"));
}

void AppendBits(double value, std::string& bits) {
  if (value == 0) value = 0;  // one zero
  bits.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

TableKey::TableKey(const std::vector<InverseFrequency>& inv_freq, double multiplier) {
  bits_.reserve(inv_freq.size() * 16 + 9);
  // A long double has padding; the two doubles it splits into exactly have none.
  for (const InverseFrequency number : inv_freq) {
    const auto high = static_cast<double>(number);
    AppendBits(high, bits_);
    AppendBits(static_cast<double>(number - high), bits_);
  }
  AppendBits(multiplier, bits_);
  bits_.push_back(kExactAngles);
  hash_ = absl::Hash<std::string>{}(bits_);
}

bool ResolvedRope::DependsOnSeqLen() const {
  return config_.rope_type == RopeType::kDynamic ||
         (config_.rope_type == RopeType::kLongrope && config_.short_factor != config_.long_factor);
}

ResolvedRope::AtSeqLen ResolvedRope::Evaluate(int64_t seq_len) const {
  ROPE_CHECK(seq_len >= 1);
  AtSeqLen result;
  result.rope_theta = config_.rope_theta;
  if (config_.rope_type == RopeType::kProportional) {
    result.inv_freq = Proportional(config_, head_dim_);
    return result;
  }
  long double theta = config_.rope_theta;
  if (config_.rope_type == RopeType::kDynamic) {
    theta = DynamicTheta(config_, rotary_dim_, seq_len);
    result.rope_theta = static_cast<double>(theta);
    result.cacheable = seq_len <= *config_.max_position_embeddings;
  }
  result.inv_freq = Powers(theta, rotary_dim_, rotary_dim_ / 2);
  switch (config_.rope_type) {
    case RopeType::kLinear:
      DivideBy(*config_.factor, result.inv_freq);
      break;
    case RopeType::kLlama3:
      ScaleLlama3(config_, result.inv_freq);
      break;
    case RopeType::kYarn:
      ScaleYarn(config_, rotary_dim_, result.inv_freq);
      break;
    case RopeType::kLongrope:
      DivideBy(seq_len > *config_.original_max_position_embeddings ? config_.long_factor
                                                                   : config_.short_factor,
               result.inv_freq);
      break;
    case RopeType::kDefault:
    case RopeType::kDynamic:
    case RopeType::kProportional:
      break;
  }
  return result;
}

std::shared_ptr<const Frequencies> ResolvedRope::ForSeqLen(int64_t seq_len,
                                                           Multiplier multiplier) const {
  ROPE_CHECK(seq_len >= 1);
  if (config_.rope_type == RopeType::kDynamic && seq_len > *config_.max_position_embeddings) {
    return MakeFrequencies(Evaluate(seq_len), MultiplierValue(multiplier, attention_factor_));
  }
  const bool past = config_.rope_type == RopeType::kLongrope &&
                    seq_len > *config_.original_max_position_embeddings;
  return fixed_[past ? 1 : 0][static_cast<size_t>(multiplier)];
}

absl::StatusOr<std::shared_ptr<const ResolvedRope>> Resolve(const RopeConfig& config,
                                                            std::optional<int64_t> head_dim) {
  if (config.head_dim.has_value()) head_dim = config.head_dim;
  ROPE_RETURN_IF_ERROR(Validate(config, head_dim));
  if (!head_dim.has_value()) {
    return absl::InvalidArgumentError("head_dim: got nothing, want the channels of a head");
  }
  std::shared_ptr<ResolvedRope> rope(new ResolvedRope());
  rope->config_ = config;
  rope->config_.head_dim = head_dim;
  rope->head_dim_ = *head_dim;
  rope->rotary_dim_ = *RotaryDim(config, head_dim);
  rope->attention_factor_ = static_cast<double>(AttentionFactor(config));
  FillDefaults(rope->config_, rope->rotary_dim_, rope->attention_factor_);
  ROPE_RETURN_IF_ERROR(CheckAttentionFactor(config, rope->attention_factor_));
  // Up to the length that changes something, and past it.
  std::vector<ResolvedRope::AtSeqLen> branches = {rope->Evaluate(1)};
  if (config.rope_type == RopeType::kLongrope) {
    branches.push_back(rope->Evaluate(*rope->config_.original_max_position_embeddings + 1));
  }
  for (const ResolvedRope::AtSeqLen& branch : branches) {
    ROPE_RETURN_IF_ERROR(CheckFinite(config, branch));
  }
  if (config.rope_type == RopeType::kDynamic) {
    constexpr int64_t kLongest = std::numeric_limits<int64_t>::max();
    ROPE_RETURN_IF_ERROR(CheckFinite(config, rope->Evaluate(kLongest)));
  }
  for (const Multiplier multiplier : kMultipliers) {
    const double value = MultiplierValue(multiplier, rope->attention_factor_);
    if (!std::isfinite(value)) continue;  // no inverse of an attention factor of 0
    for (size_t i = 0; i < branches.size(); ++i) {
      rope->fixed_[i][static_cast<size_t>(multiplier)] = MakeFrequencies(branches[i], value);
    }
  }
  return rope;
}

CosSin ExactCosSin(int64_t position, InverseFrequency inv_freq, double multiplier) {
  // The product of up to 30 and 64 bits needs both halves of a pair of long doubles: each half of
  // inv_freq times the position is exact.
  constexpr InverseFrequency kSplit = (1ULL << 32) + 1;
  const InverseFrequency shifted = kSplit * inv_freq;
  const InverseFrequency upper = shifted - (shifted - inv_freq);
  const auto steps = static_cast<long double>(position);
  const long double high_product = steps * upper;
  const long double low_product = steps * (inv_freq - upper);
  const long double angle = high_product + low_product;
  const long double rest = low_product - (angle - high_product);

  const long double cos = std::cos(angle);
  const long double sin = std::sin(angle);
  const long double cos_rest = std::cos(rest);
  const long double sin_rest = std::sin(rest);
  const long double factor = multiplier;
  return {.cos = static_cast<double>(factor * (cos * cos_rest - sin * sin_rest)),
          .sin = static_cast<double>(factor * (sin * cos_rest + cos * sin_rest))};
}

}  // namespace rope::kernels
