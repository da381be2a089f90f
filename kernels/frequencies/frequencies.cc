#include "kernels/frequencies/frequencies.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/hash/hash.h"
#include "kernels/check.h"
#include "kernels/config/layer_config.h"
#include "kernels/error.h"
#include "kernels/frequencies/inverse_frequencies.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

static_assert(std::numeric_limits<InverseFrequency>::digits >= 64,
              "angles at position 10^9 need more bits than a double has");

// The angle mode is the last byte of a key. Eager modes follow, one per dtype.
constexpr char kExactAngles = 0;
constexpr char kScaledAngles = 1;
constexpr char kFirstEagerMode = 2;

// ln of the xPos scale of one position, per column, for q. k uses the negative.
std::vector<long double> Growth(const XPos& xpos, int64_t rotary_dim) {
  std::vector<long double> growth(static_cast<size_t>(rotary_dim / 2));
  const auto dim = static_cast<long double>(rotary_dim);
  for (size_t i = 0; i < growth.size(); ++i) {
    const long double zeta = (2 * static_cast<long double>(i) + 0.4L * dim) / (1.4L * dim);
    growth[i] = std::log(zeta) / xpos.scale_base;
  }
  return growth;
}

// The positions at which exp(growth * distance) times the attention factor is a normal float32 for
// q and for k. `fastest` is the largest |growth|.
PositionRange RangeOf(const XPos& xpos, long double fastest, double attention_factor) {
  constexpr long double kLogRange = 87;  // ln 2^126 is 87.3
  const long double spent = attention_factor > 0 ? std::abs(std::log(attention_factor)) : 0;
  const auto reach =
      static_cast<int64_t>(std::min(std::max(kLogRange - spent, 0.0L) / fastest, 1e15L));
  return {xpos.centre - reach, xpos.centre + reach};
}

double MultiplierValue(Multiplier multiplier, double attention_factor) {
  if (multiplier == Multiplier::kAttentionFactor) return attention_factor;
  return multiplier == Multiplier::kOne ? 1 : 1 / attention_factor;
}

// Sets every field that the rope_type uses. REQUIRES: `config` is valid and has a head_dim.
void FillDefaults(RopeConfig& config, double attention_factor) {
  const int64_t rotary_dim = *RotaryDim(config, config.head_dim);
  config.rotary_dim = rotary_dim;
  if (!config.partial_rotary_factor.has_value()) {
    config.partial_rotary_factor =
        static_cast<double>(rotary_dim) / static_cast<double>(*config.head_dim);
  }
  const RopeType type = config.rope_type;
  if (ReadsFactor(config)) config.factor = EffectiveFactor(config);
  if (type == RopeType::kYarn || type == RopeType::kLongrope || type == RopeType::kLlama3) {
    config.original_max_position_embeddings = OriginalLength(config);
  }
  if (ReadsAttentionFactor(config)) config.attention_factor = attention_factor;
  if (type == RopeType::kYarn) {
    config.beta_fast = BetaFast(config);
    config.beta_slow = BetaSlow(config);
    config.ramp = config.ramp.value_or(YarnRamp::kIndex);
    if (config.ramp == YarnRamp::kIndex) config.truncate = config.truncate.value_or(true);
  }
  if (type == RopeType::kDynamic || type == RopeType::kLongrope) {
    config.seq_len_policy = config.seq_len_policy.value_or(SeqLenPolicy::kSequence);
  }
}

absl::Status CheckFinite(const RopeConfig& config, const ResolvedRope::AtSeqLen& evaluated) {
  bool finite = std::isfinite(evaluated.rope_theta);
  for (const InverseFrequency number : evaluated.inv_freq) {
    finite =
        finite && (config.reverse || number >= 0) && std::isfinite(static_cast<double>(number));
  }
  if (finite) return absl::OkStatus();
  return InvalidField("rope_theta",
                      StrCat(config.rope_theta, " with factor ", config.factor.value_or(1)),
                      "a base and a factor that keep every inverse frequency finite");
}

void AppendBits(double value, std::string& bits) {
  if (value == 0) value = 0;  // -0 and 0 have the same key
  bits.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A long double has padding bytes. 64 bits are exactly the sum of two doubles, which have none.
void AppendBits(long double value, std::string& bits) {
  const auto high = static_cast<double>(value);
  AppendBits(high, bits);
  AppendBits(static_cast<double>(value - high), bits);
}

}  // namespace

// The bits are: inv_freq (two doubles each), the multiplier, with xPos also growth (two doubles
// each) and the centre, and the mode byte. Equal bits mean equal rows.
TableKey::TableKey(const Frequencies& frequencies) {
  bits_.reserve((frequencies.inv_freq.size() + frequencies.growth.size()) * 16 + 17);
  for (const InverseFrequency number : frequencies.inv_freq) AppendBits(number, bits_);
  AppendBits(frequencies.multiplier, bits_);
  if (!frequencies.growth.empty()) {
    for (const long double number : frequencies.growth) AppendBits(number, bits_);
    AppendBits(static_cast<double>(frequencies.centre), bits_);
    bits_.push_back(kScaledAngles);
  } else if (frequencies.eager.has_value()) {
    bits_.push_back(static_cast<char>(kFirstEagerMode + static_cast<char>(*frequencies.eager)));
  } else {
    bits_.push_back(kExactAngles);
  }
  hash_ = absl::Hash<std::string>{}(bits_);
}

bool ResolvedRope::DependsOnSeqLen() const {
  if (config_.rope_type == RopeType::kDynamic) return !config_.alpha.has_value();
  return config_.rope_type == RopeType::kLongrope && !config_.longrope_branch.has_value() &&
         config_.short_factor != config_.long_factor;
}

ResolvedRope::AtSeqLen ResolvedRope::Evaluate(int64_t seq_len) const {
  ROPE_CHECK(seq_len >= 1);
  AtSeqLen result;
  result.rope_theta = config_.rope_theta;
  if (config_.rope_type == RopeType::kDynamic) {
    result.rope_theta = static_cast<double>(DynamicTheta(config_, rotary_dim(), seq_len));
    result.cacheable = config_.alpha.has_value() || seq_len <= *config_.max_position_embeddings;
  }
  if (config_.precision == Precision::kHf) {
    const std::vector<float> eager = EagerFrequencies(config_, seq_len);
    result.inv_freq.assign(eager.begin(), eager.end());
  } else {
    result.inv_freq = InverseFrequencies(config_, seq_len);
  }
  if (config_.reverse) {
    for (InverseFrequency& number : result.inv_freq) number = -number;
  }
  return result;
}

// With xPos every column scales, even one with frequency 0, so no column is left out. Nor is one
// where frequencies depend on the length: all tokens of a tensor have the same columns.
std::shared_ptr<const Frequencies> ResolvedRope::Make(AtSeqLen evaluated, double multiplier,
                                                      const RowUse& use) const {
  auto frequencies = std::make_shared<Frequencies>();
  frequencies->inv_freq = std::move(evaluated.inv_freq);
  frequencies->multiplier = multiplier;
  frequencies->cacheable = evaluated.cacheable;
  if (config_.xpos.has_value()) {
    frequencies->growth = growth_;
    frequencies->centre = config_.xpos->centre;
    if (use.side == Side::kK) {
      for (long double& number : frequencies->growth) number = -number;
    }
  } else if (multiplier == 1 && !DependsOnSeqLen()) {
    while (!frequencies->inv_freq.empty() && frequencies->inv_freq.back() == 0) {
      frequencies->inv_freq.pop_back();
    }
  }
  if (DependsOnDType()) frequencies->eager = use.dtype;
  frequencies->key = TableKey(*frequencies);
  return frequencies;
}

// Resolve calls this once per branch, so that ForSeqLen usually returns a stored pointer and needs
// no lock. Only dynamic past its length builds frequencies per call.
void ResolvedRope::MakeFixed(size_t branch, const AtSeqLen& evaluated) {
  const size_t sides = DependsOnSide() ? 2 : 1;
  const size_t dtypes = DependsOnDType() ? 3 : 1;
  for (const Multiplier multiplier :
       {Multiplier::kAttentionFactor, Multiplier::kOne, Multiplier::kInverseAttentionFactor}) {
    const double value = MultiplierValue(multiplier, attention_factor_);
    if (!std::isfinite(value)) continue;  // an attention factor of 0 has no inverse
    for (size_t side = 0; side < sides; ++side) {
      for (size_t dtype = 0; dtype < dtypes; ++dtype) {
        auto& fixed = fixed_[branch][static_cast<size_t>(multiplier)][side][dtype];
        fixed = Make(evaluated, value, {static_cast<Side>(side), static_cast<DType>(dtype)});
        fixed_numbers_ += fixed->inv_freq.size() + fixed->growth.size();
      }
    }
  }
}

std::shared_ptr<const Frequencies> ResolvedRope::ForSeqLen(int64_t seq_len, Multiplier multiplier,
                                                           RowUse use) const {
  ROPE_CHECK(seq_len >= 1);
  if (!DependsOnSide()) use.side = Side::kQ;
  if (!DependsOnDType()) use.dtype = DType::kFloat32;
  if (config_.rope_type == RopeType::kDynamic && !config_.alpha.has_value() &&
      seq_len > *config_.max_position_embeddings) {
    return Make(Evaluate(seq_len), MultiplierValue(multiplier, attention_factor_), use);
  }
  const bool past = config_.rope_type == RopeType::kLongrope && TakesLongFactors(config_, seq_len);
  return fixed_[past ? 1 : 0][static_cast<size_t>(multiplier)][static_cast<size_t>(use.side)]
               [static_cast<size_t>(use.dtype)];
}

int64_t ResolvedRope::KeptBytes() const {
  return static_cast<int64_t>(sizeof(*this)) + kernels::KeptBytes(config_) +
         static_cast<int64_t>(2 * fixed_numbers_ * sizeof(InverseFrequency)) +
         kernels::KeptBytes(growth_);
}

std::shared_ptr<const Frequencies> ResolvedRope::ForDifferences(int64_t seq_len, Side side) const {
  auto frequencies = std::make_shared<Frequencies>();
  AtSeqLen evaluated = Evaluate(seq_len);
  frequencies->inv_freq = std::move(evaluated.inv_freq);
  frequencies->cacheable = evaluated.cacheable;
  frequencies->growth = growth_;
  if (side == Side::kK) {
    for (long double& number : frequencies->growth) number = -number;
  }
  frequencies->key = TableKey(*frequencies);
  return frequencies;
}

absl::StatusOr<std::shared_ptr<const ResolvedRope>> Resolve(const RopeConfig& config,
                                                            std::optional<int64_t> head_dim) {
  if (config.head_dim.has_value()) head_dim = config.head_dim;
  ROPE_RETURN_IF_ERROR(Validate(config, head_dim));
  if (!head_dim.has_value()) {
    return InvalidField("head_dim", "nothing", "the number of channels of a head");
  }
  std::shared_ptr<ResolvedRope> rope(new ResolvedRope());  // owned by rope
  rope->config_ = config;
  rope->config_.head_dim = head_dim;
  rope->attention_factor_ = AttentionFactor(config);
  FillDefaults(rope->config_, rope->attention_factor_);
  if (!(rope->attention_factor_ <= std::numeric_limits<float>::max())) {
    return InvalidField(
        "mscale", config.mscale.value_or(1),
        StrCat("one whose attention factor, ", rope->attention_factor_, ", is at most 3.4e38"));
  }
  if (config.xpos.has_value()) {
    rope->growth_ = Growth(*config.xpos, rope->rotary_dim());
    rope->position_range_ =
        RangeOf(*config.xpos, std::abs(rope->growth_.front()), rope->attention_factor_);
  }
  // Branch 0 is evaluated at length 1, longrope's branch 1 one past its original length.
  std::vector<ResolvedRope::AtSeqLen> branches = {rope->Evaluate(1)};
  if (config.rope_type == RopeType::kLongrope) {
    branches.push_back(rope->Evaluate(*rope->config_.original_max_position_embeddings + 1));
  }
  for (size_t branch = 0; branch < branches.size(); ++branch) {
    ROPE_RETURN_IF_ERROR(CheckFinite(config, branches[branch]));
    rope->MakeFixed(branch, branches[branch]);
  }
  if (rope->DependsOnSeqLen() && config.rope_type == RopeType::kDynamic) {
    // The base grows with the length, so checking the longest length checks all.
    constexpr int64_t kLongest = std::numeric_limits<int64_t>::max();
    ROPE_RETURN_IF_ERROR(CheckFinite(config, rope->Evaluate(kLongest)));
  }
  return rope;
}

CosSin ExactCosSin(int64_t position, InverseFrequency inv_freq, double multiplier) {
  // A position has up to 31 bits and inv_freq 64, so their product does not fit into one
  // long double. inv_freq is split into an upper and a lower half (Dekker); each half times the
  // position is exact. `angle` is the rounded sum and `rest` its rounding error, and the angle
  // addition at the end applies both.
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

CosSin CosSinAt(const Frequencies& frequencies, size_t column, int64_t position) {
  const InverseFrequency inv_freq = frequencies.inv_freq[column];
  if (frequencies.eager.has_value()) {
    return EagerCosSin(position, static_cast<float>(inv_freq),
                       static_cast<float>(frequencies.multiplier), *frequencies.eager);
  }
  double multiplier = frequencies.multiplier;
  if (!frequencies.growth.empty()) {
    const auto distance = static_cast<long double>(position - frequencies.centre);
    multiplier = static_cast<double>(multiplier * std::exp(frequencies.growth[column] * distance));
  }
  return ExactCosSin(position, inv_freq, multiplier);
}

}  // namespace rope::kernels
