// Each Remark function checks one kind of setting. Remarks(), at the end, calls all of them.
#include "kernels/compat/rope_remarks.h"

#include <cmath>
#include <string>
#include <tuple>

#include "kernels/error.h"

namespace rope::kernels {
namespace {

using List = std::vector<Remark>;

// The types whose factor should equal the ratio of the lengths.
bool HasLengthRatio(RopeType type) {
  return type == RopeType::kYarn || type == RopeType::kLongrope;
}

// A setting that the type does not use is probably meant for another type.
void RemarkUnread(const RopeConfig& config, List& list) {
  const RopeType type = config.rope_type;
  const bool yarn = type == RopeType::kYarn;
  const bool llama3 = type == RopeType::kLlama3;
  const bool longrope = type == RopeType::kLongrope;
  const bool dynamic = type == RopeType::kDynamic;
  const struct {
    std::string_view field;
    bool given;
    bool read;
  } settings[] = {
      {"factor", config.factor.has_value(), type != RopeType::kDefault},
      {"attention_factor", config.attention_factor.has_value(), ReadsAttentionFactor(config)},
      {"attn_factor", config.attn_factor.has_value(), yarn},
      {"mscale", config.mscale.has_value(), yarn},
      {"mscale_all_dim", config.mscale_all_dim.has_value(), yarn},
      {"beta_fast", config.beta_fast.has_value(), yarn},
      {"beta_slow", config.beta_slow.has_value(), yarn},
      {"truncate", config.truncate.has_value(), yarn},
      {"ramp", config.ramp.has_value(), yarn},
      {"low_freq_factor", config.low_freq_factor.has_value(), llama3},
      {"high_freq_factor", config.high_freq_factor.has_value(), llama3},
      {"short_factor", !config.short_factor.empty(), longrope},
      {"long_factor", !config.long_factor.empty(), longrope},
      {"longrope_branch", config.longrope_branch.has_value(), longrope},
      {"alpha", config.alpha.has_value(), dynamic},
      {"mixed_b", config.mixed_b.has_value(), type == RopeType::kNtk},
      {"seq_len_policy", config.seq_len_policy.has_value(), dynamic || longrope},
  };
  for (const auto& setting : settings) {
    if (setting.given && !setting.read) {
      // A factor or its lists without a type that uses them: the scaling was forgotten.
      const bool loud = type == RopeType::kDefault &&
                        (setting.field == "factor" || setting.field == "short_factor" ||
                         setting.field == "long_factor");
      list.push_back({loud ? RemarkKind::kNoEffect : RemarkKind::kUnusedSetting,
                      StrCat(setting.field, " has no effect for rope_type ", Name(type))});
    }
  }
}

// Settings that have no effect because of another setting.
void RemarkUnusedFields(const RopeConfig& config, List& list) {
  if (config.rope_type == RopeType::kYarn) {
    if (config.attention_factor.has_value() && config.attn_factor.has_value()) {
      list.push_back(
          {RemarkKind::kUnusedSetting, "attn_factor has no effect with attention_factor"});
    }
    if (config.truncate.has_value() && config.ramp == YarnRamp::kTurns) {
      list.push_back({RemarkKind::kUnusedSetting,
                      "truncate has no effect with ramp turns, which has no edges to round"});
    }
  }
  if (config.rope_type == RopeType::kDynamic && config.alpha.has_value() &&
      config.factor.value_or(1) != 1) {
    list.push_back(
        {RemarkKind::kUnusedSetting,
         StrCat("factor ", *config.factor, " has no effect with alpha, which fixes the base")});
  }
}

// Explicit values that replace the result of a formula.
void RemarkExplicit(const RopeConfig& config, List& list) {
  if (config.longrope_branch.has_value() && config.rope_type == RopeType::kLongrope) {
    list.push_back({RemarkKind::kExplicitNumbers,
                    StrCat("longrope_branch: the ",
                           config.longrope_branch == LongropeBranch::kLong ? "long" : "short",
                           " list is used for every length")});
  }
  for (size_t i = 1; i < config.inv_freq.size(); ++i) {
    if (config.inv_freq[i] <= config.inv_freq[i - 1]) continue;
    list.push_back(
        {RemarkKind::kExplicitNumbers,
         StrCat("inv_freq[", i, "] ", config.inv_freq[i], " is larger than ",
                config.inv_freq[i - 1], " before it: inverse frequencies usually fall")});
    break;
  }
}

void RemarkNtk(const RopeConfig& config, std::optional<int64_t> head_dim, List& list) {
  const std::optional<int64_t> rotary_dim = RotaryDim(config, head_dim);
  if (config.rope_type == RopeType::kDynamic && config.alpha.has_value() &&
      rotary_dim.has_value()) {
    list.push_back(
        {RemarkKind::kExplicitNumbers,
         StrCat("alpha ", *config.alpha, " enlarges the base to ",
                static_cast<double>(DynamicTheta(config, *rotary_dim, 1)), " at every length")});
  }
}

void RemarkXPos(const RopeConfig& config, List& list) {
  if (!config.xpos.has_value()) return;
  list.push_back(
      {RemarkKind::kExplicitNumbers,
       StrCat("xpos: q and k scale in opposite directions, so each tensor's role counts; "
              "FlashAttention's centre moves with its cache, here it stays at ",
              config.xpos->centre)});
}

void RemarkRotaryDim(const RopeConfig& config, std::optional<int64_t> head_dim, List& list) {
  if (!config.partial_rotary_factor.has_value() || !head_dim.has_value() ||
      config.rope_type == RopeType::kProportional) {
    return;
  }
  const double product = static_cast<double>(*head_dim) * *config.partial_rotary_factor;
  const int64_t rotary_dim = *RotaryDim(config, head_dim);
  if (config.rotary_dim.has_value() && rotary_dim != static_cast<int64_t>(product)) {
    list.push_back({RemarkKind::kOverriddenValue,
                    StrCat("rotary_dim ", rotary_dim, " is used; partial_rotary_factor would give ",
                           static_cast<int64_t>(product))});
  } else if (!config.rotary_dim.has_value() && product != std::floor(product)) {
    list.push_back(
        {RemarkKind::kRotaryChannels, StrCat("head_dim * partial_rotary_factor is ", product,
                                             ", truncated to a rotary_dim of ", rotary_dim)});
  }
}

void RemarkOffset(const RopeConfig& config, std::optional<int64_t> head_dim, List& list) {
  if (!config.rotary_offset.has_value() || !head_dim.has_value()) return;
  const int64_t end = *config.rotary_offset + *RotaryDim(config, head_dim);
  if (end <= *head_dim) return;
  list.push_back(
      {RemarkKind::kRotaryChannels,
       StrCat("rotary_offset ", *config.rotary_offset, ": the window ends at channel ", end,
              ", past head_dim ", *head_dim, "; tensors need at least ", end, " channels a head")});
}

void RemarkFactor(const RopeConfig& config, List& list) {
  if (!ReadsFactor(config)) return;
  const std::optional<double> factor = EffectiveFactor(config);
  if (!factor.has_value()) return;
  if (*factor < 1) {
    list.push_back({RemarkKind::kFactorBelowOne,
                    StrCat("factor ", *factor, " is below 1: scaled frequencies turn ", 1 / *factor,
                           " times faster instead of slower")});
  }
}

// yarn and longrope: compares the factor with the ratio of the two lengths.
void RemarkLengths(const RopeConfig& config, List& list) {
  const RopeType type = config.rope_type;
  if (!HasLengthRatio(type)) return;
  if (!config.original_max_position_embeddings.has_value()) {
    list.push_back({RemarkKind::kNoOriginalLength,
                    StrCat("original_max_position_embeddings absent, taken as ",
                           "max_position_embeddings, ", *config.max_position_embeddings),
                    "original_max_position_embeddings"});
    return;
  }
  const std::optional<double> ratio = LengthRatio(config);
  if (!ratio.has_value()) return;
  RopeConfig by_ratio = config;
  by_ratio.factor = ratio;
  if (!config.factor.has_value()) {
    if (type == RopeType::kYarn) {
      list.push_back(
          {RemarkKind::kDefaultAssumed, StrCat("factor absent, taken as max_position_embeddings / ",
                                               "original_max_position_embeddings, ", *ratio)});
    }
  } else if (*config.factor != *ratio) {
    list.push_back({RemarkKind::kLengthRatio,
                    StrCat("factor ", *config.factor, " contradicts max_position_embeddings / ",
                           "original_max_position_embeddings, ", *ratio, "; ", *config.factor,
                           " is used (attention factor ", AttentionFactor(config),
                           "; the ratio would give ", AttentionFactor(by_ratio), ")")});
  }
}

void RemarkLlama3(const RopeConfig& config, List& list) {
  if (config.rope_type != RopeType::kLlama3) return;
  const int64_t original = *OriginalLength(config);
  const int64_t length = config.max_position_embeddings.value_or(original + 1);
  if (length <= original) {
    list.push_back({RemarkKind::kNoExtension,
                    StrCat("max_position_embeddings ", length,
                           " is not above original_max_position_embeddings, ", original,
                           ": llama3 scales for a length that the model does not have")});
  }
  if (*config.high_freq_factor == *config.low_freq_factor) {
    list.push_back(
        {RemarkKind::kEqualFrequencyFactors,
         StrCat("high_freq_factor equals low_freq_factor, ", *config.low_freq_factor,
                ": frequencies are kept or divided by ", *config.factor, ", none is blended")});
  }
}

void RemarkAttentionFactor(const RopeConfig& config, List& list) {
  if (config.rope_type != RopeType::kYarn) return;
  if (config.attention_factor.has_value()) {
    const double computed = AttentionFactor(config, /*ignore_explicit=*/true);
    if (std::abs(computed - *config.attention_factor) > 1e-6 * computed) {
      list.push_back(
          {RemarkKind::kExplicitNumbers, StrCat("attention_factor ", *config.attention_factor,
                                                " replaces the computed one, ", computed)});
    }
    return;
  }
  const bool mscale = config.mscale.value_or(0) != 0;
  const bool all_dim = config.mscale_all_dim.value_or(0) != 0;
  if (mscale == all_dim) return;
  const double factor = *EffectiveFactor(config);
  const double other = mscale ? YarnMagnitude(*config.mscale, factor)
                              : YarnMagnitude(1, factor, *config.mscale_all_dim);
  if (std::abs(other - AttentionFactor(config)) <= 1e-12 * other) return;
  list.push_back({RemarkKind::kLoneMscale,
                  StrCat(mscale ? "mscale without mscale_all_dim" : "mscale_all_dim without mscale",
                         " is ignored, as Hugging Face does (attention factor ",
                         AttentionFactor(config), "); DeepSeek-style code uses it with 1 as the ",
                         mscale ? "denominator" : "mscale", " and gets ", other)});
}

void RemarkYarnRamp(const RopeConfig& config, std::optional<int64_t> head_dim, List& list) {
  if (config.rope_type != RopeType::kYarn) return;
  for (const auto& [field, beta, taken] :
       {std::tuple("beta_fast", config.beta_fast, BetaFast(config)),
        std::tuple("beta_slow", config.beta_slow, BetaSlow(config))}) {
    if (beta == 0.0) {
      list.push_back({RemarkKind::kDefaultAssumed,
                      StrCat(field, " 0 is read as ", taken, ", as Hugging Face does")});
    }
  }
  const std::optional<int64_t> rotary_dim = RotaryDim(config, head_dim);
  if (!rotary_dim.has_value() || config.ramp == YarnRamp::kTurns) return;
  if (config.truncate.has_value()) return;
  const YarnEdges rounded = YarnRampEdges(config, *rotary_dim, true);
  const YarnEdges exact = YarnRampEdges(config, *rotary_dim, false);
  if (rounded.low == exact.low && rounded.high == exact.high) return;
  const std::string edges =
      StrCat(rounded.low, " and ", rounded.high, " instead of ", exact.low, " and ", exact.high);
  list.push_back({RemarkKind::kRoundedRamp,
                  StrCat("truncate absent, taken as true; the ramp runs between ", edges)});
}

}  // namespace

std::vector<Remark> Remarks(const RopeConfig& config, std::optional<int64_t> head_dim) {
  if (config.head_dim.has_value()) head_dim = config.head_dim;
  List list;
  RemarkUnread(config, list);
  RemarkRotaryDim(config, head_dim, list);
  RemarkOffset(config, head_dim, list);
  RemarkFactor(config, list);
  RemarkLengths(config, list);
  RemarkLlama3(config, list);
  RemarkAttentionFactor(config, list);
  RemarkYarnRamp(config, head_dim, list);
  RemarkUnusedFields(config, list);
  RemarkExplicit(config, list);
  RemarkNtk(config, head_dim, list);
  RemarkXPos(config, list);
  return list;
}

}  // namespace rope::kernels
