// Each Warn function checks one kind of doubtful setting. Warnings(), at the end, calls all of
// them.
#include "kernels/compat/rope_warnings.h"

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/config/rope_formulas.h"
#include "kernels/str_cat.h"

namespace rope::kernels {
namespace {

using Lines = std::vector<std::string>;

std::string Digits(long double number) {
  return absl::StrFormat("%.6g", static_cast<double>(number));
}

// The types whose factor should equal the ratio of the lengths.
bool HasLengthRatio(RopeType type) {
  return type == RopeType::kYarn || type == RopeType::kLongrope;
}

// A setting that the type does not use is probably meant for another type.
void WarnUnread(const RopeConfig& config, Lines& lines) {
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
      lines.push_back(StrCat(setting.field, " has no effect for rope_type ", Name(type)));
    }
  }
}

// Settings that have no effect because of another setting.
void WarnUnusedFields(const RopeConfig& config, Lines& lines) {
  if (config.rope_type == RopeType::kYarn) {
    if (config.attention_factor.has_value() && config.attn_factor.has_value()) {
      lines.push_back("attn_factor has no effect with attention_factor");
    }
    if (config.truncate.has_value() && config.ramp == YarnRamp::kTurns) {
      lines.push_back("truncate has no effect with ramp turns, which has no edges to round");
    }
  }
  if (config.rope_type == RopeType::kDynamic && config.alpha.has_value() &&
      config.factor.value_or(1) != 1) {
    lines.push_back(StrCat("factor ", Digits(*config.factor),
                           " has no effect with alpha, which fixes the base"));
  }
}

// Explicit values that replace the result of a formula.
void WarnExplicit(const RopeConfig& config, Lines& lines) {
  if (config.longrope_branch.has_value() && config.rope_type == RopeType::kLongrope) {
    lines.push_back(StrCat("longrope_branch: the ",
                           config.longrope_branch == LongropeBranch::kLong ? "long" : "short",
                           " list is used for every length"));
  }
  for (size_t i = 1; i < config.inv_freq.size(); ++i) {
    if (config.inv_freq[i] <= config.inv_freq[i - 1]) continue;
    lines.push_back(StrCat("inv_freq[", i, "] ", Digits(config.inv_freq[i]), " is larger than ",
                           Digits(config.inv_freq[i - 1]),
                           " before it: inverse frequencies usually fall"));
    break;
  }
}

void WarnNtk(const RopeConfig& config, std::optional<int64_t> head_dim, Lines& lines) {
  const std::optional<int64_t> rotary_dim = RotaryDim(config, head_dim);
  if (config.rope_type == RopeType::kDynamic && config.alpha.has_value() &&
      rotary_dim.has_value()) {
    lines.push_back(StrCat("alpha ", Digits(*config.alpha), " enlarges the base to ",
                           Digits(DynamicTheta(config, *rotary_dim, 1)), " at every length"));
  }
}

void WarnXPos(const RopeConfig& config, Lines& lines) {
  if (!config.xpos.has_value()) return;
  lines.push_back(
      StrCat("xpos: q and k scale in opposite directions, so each tensor's role counts; "
             "FlashAttention's centre moves with its cache, here it stays at ",
             config.xpos->centre));
}

void WarnRotaryDim(const RopeConfig& config, std::optional<int64_t> head_dim, Lines& lines) {
  if (!config.partial_rotary_factor.has_value() || !head_dim.has_value() ||
      config.rope_type == RopeType::kProportional) {
    return;
  }
  const double product = static_cast<double>(*head_dim) * *config.partial_rotary_factor;
  const int64_t rotary_dim = *RotaryDim(config, head_dim);
  if (config.rotary_dim.has_value() && rotary_dim != static_cast<int64_t>(product)) {
    lines.push_back(StrCat("rotary_dim ", rotary_dim, " is used; partial_rotary_factor would give ",
                           static_cast<int64_t>(product)));
  } else if (!config.rotary_dim.has_value() && product != std::floor(product)) {
    lines.push_back(StrCat("head_dim * partial_rotary_factor is ", Digits(product),
                           ", truncated to a rotary_dim of ", rotary_dim));
  }
}

void WarnOffset(const RopeConfig& config, std::optional<int64_t> head_dim, Lines& lines) {
  if (!config.rotary_offset.has_value() || !head_dim.has_value()) return;
  const int64_t end = *config.rotary_offset + *RotaryDim(config, head_dim);
  if (end <= *head_dim) return;
  lines.push_back(StrCat("rotary_offset ", *config.rotary_offset, ": the window ends at channel ",
                         end, ", past head_dim ", *head_dim, "; tensors need at least ", end,
                         " channels a head"));
}

void WarnFactor(const RopeConfig& config, Lines& lines) {
  if (!ReadsFactor(config)) return;
  const std::optional<double> factor = EffectiveFactor(config);
  if (!factor.has_value()) return;
  if (*factor < 1) {
    lines.push_back(StrCat("factor ", Digits(*factor), " is below 1: scaled frequencies turn ",
                           Digits(1 / *factor), " times faster instead of slower"));
  }
  if (config.rope_type == RopeType::kProportional && *factor != 1) {
    lines.push_back(StrCat("factor ", Digits(*factor),
                           " divides every frequency; vLLM ignores it for rope_type "
                           "proportional"));
  }
}

// yarn and longrope: compares the factor with the ratio of the two lengths.
void WarnLengths(const RopeConfig& config, Lines& lines) {
  const RopeType type = config.rope_type;
  if (!HasLengthRatio(type)) return;
  if (!config.original_max_position_embeddings.has_value()) {
    lines.push_back(StrCat("original_max_position_embeddings absent, taken as ",
                           "max_position_embeddings, ", *config.max_position_embeddings));
    return;
  }
  const std::optional<double> ratio = LengthRatio(config);
  if (!ratio.has_value()) return;
  RopeConfig by_ratio = config;
  by_ratio.factor = ratio;
  if (!config.factor.has_value()) {
    if (type == RopeType::kYarn) {
      lines.push_back(StrCat("factor absent, taken as max_position_embeddings / ",
                             "original_max_position_embeddings, ", Digits(*ratio)));
    }
  } else if (*config.factor != *ratio) {
    lines.push_back(
        StrCat("factor ", Digits(*config.factor), " contradicts max_position_embeddings / ",
               "original_max_position_embeddings, ", Digits(*ratio), "; ", Digits(*config.factor),
               " is used (attention factor ", Digits(AttentionFactor(config)),
               "; the ratio would give ", Digits(AttentionFactor(by_ratio)), ")"));
  }
}

void WarnLlama3(const RopeConfig& config, Lines& lines) {
  if (config.rope_type != RopeType::kLlama3) return;
  if (*config.high_freq_factor == *config.low_freq_factor) {
    lines.push_back(StrCat("high_freq_factor equals low_freq_factor, ",
                           Digits(*config.low_freq_factor), ": frequencies are kept or divided by ",
                           Digits(*config.factor), ", none is blended"));
  }
}

void WarnAttentionFactor(const RopeConfig& config, Lines& lines) {
  if (config.rope_type != RopeType::kYarn) return;
  if (config.attention_factor.has_value()) {
    const long double computed = AttentionFactor(config, /*ignore_explicit=*/true);
    if (std::abs(computed - *config.attention_factor) > 1e-6L * computed) {
      lines.push_back(StrCat("attention_factor ", Digits(*config.attention_factor),
                             " replaces the computed one, ", Digits(computed),
                             "; vLLM up to 0.29.0 ignores it"));
    }
    return;
  }
  const bool mscale = config.mscale.value_or(0) != 0;
  const bool all_dim = config.mscale_all_dim.value_or(0) != 0;
  if (mscale == all_dim) return;
  const double factor = *EffectiveFactor(config);
  const long double other =
      mscale ? YarnMagnitude(*config.mscale, factor)
             : YarnMagnitude(1, factor) / YarnMagnitude(*config.mscale_all_dim, factor);
  lines.push_back(StrCat(mscale ? "mscale without mscale_all_dim" : "mscale_all_dim without mscale",
                         " is ignored, as Hugging Face does (attention factor ",
                         Digits(AttentionFactor(config)),
                         "); DeepSeek-style code uses it with 1 as the ",
                         mscale ? "denominator" : "mscale", " and gets ", Digits(other)));
}

void WarnYarnRamp(const RopeConfig& config, std::optional<int64_t> head_dim, Lines& lines) {
  if (config.rope_type != RopeType::kYarn) return;
  for (const auto& [field, beta, taken] :
       {std::tuple("beta_fast", config.beta_fast, BetaFast(config)),
        std::tuple("beta_slow", config.beta_slow, BetaSlow(config))}) {
    if (beta == 0.0) {
      lines.push_back(StrCat(field, " 0 is read as ", taken, ", as Hugging Face does"));
    }
  }
  if (config.mrope.has_value()) {
    lines.push_back(StrCat("yarn with mrope: the ramp is placed by an original length of ",
                           *OriginalLength(config), "; vLLM up to 0.31.0 takes ",
                           4 * *OriginalLength(config)));
  }
  const std::optional<int64_t> rotary_dim = RotaryDim(config, head_dim);
  if (!rotary_dim.has_value() || config.ramp == YarnRamp::kTurns) return;
  const YarnEdges rounded = YarnRampEdges(config, *rotary_dim, true);
  const YarnEdges exact = YarnRampEdges(config, *rotary_dim, false);
  if (rounded.low == exact.low && rounded.high == exact.high) return;
  const std::string edges = StrCat(Digits(rounded.low), " and ", Digits(rounded.high),
                                   " instead of ", Digits(exact.low), " and ", Digits(exact.high));
  if (!config.truncate.has_value()) {
    lines.push_back(StrCat("truncate absent, taken as true; the ramp runs between ", edges));
  } else if (!*config.truncate) {
    lines.push_back(
        StrCat("truncate false: llama.cpp rounds anyway and runs the ramp between ", edges));
  }
}

void WarnDynamic(const RopeConfig& config, std::optional<int64_t> head_dim, Lines& lines) {
  const std::optional<int64_t> rotary_dim = RotaryDim(config, head_dim);
  if (config.rope_type != RopeType::kDynamic || !rotary_dim.has_value() ||
      config.alpha.has_value()) {
    return;
  }
  const double length = static_cast<double>(*config.max_position_embeddings) * *config.factor;
  if (length < 1 || length > 1e15) return;
  lines.push_back(StrCat("dynamic: the base follows the length, from ", Digits(config.rope_theta),
                         "; vLLM up to 0.21.0 uses ",
                         Digits(DynamicTheta(config, *rotary_dim, static_cast<int64_t>(length))),
                         " at every length"));
}

}  // namespace

std::vector<std::string> Warnings(const RopeConfig& config, std::optional<int64_t> head_dim) {
  if (config.head_dim.has_value()) head_dim = config.head_dim;
  Lines lines;
  WarnUnread(config, lines);
  WarnRotaryDim(config, head_dim, lines);
  WarnOffset(config, head_dim, lines);
  WarnFactor(config, lines);
  WarnLengths(config, lines);
  WarnLlama3(config, lines);
  WarnAttentionFactor(config, lines);
  WarnYarnRamp(config, head_dim, lines);
  WarnDynamic(config, head_dim, lines);
  WarnUnusedFields(config, lines);
  WarnExplicit(config, lines);
  WarnNtk(config, head_dim, lines);
  WarnXPos(config, lines);
  return lines;
}

}  // namespace rope::kernels
