#include "kernels/compat/reading_steps.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/config/model_types.h"
#include "kernels/config/rope_config.h"
#include "kernels/str_cat.h"

namespace rope::kernels {
namespace {

std::string Digits(long double number) {
  return absl::StrFormat("%.6g", static_cast<double>(number));
}

absl::Status Lacks(std::string_view what) {
  return absl::InvalidArgumentError(StrCat(what));
}
absl::Status NotChecked(std::string_view what) {
  return absl::UnimplementedError(StrCat(what));
}

bool IsYarn(const CompatConfig& result) {
  return result.config.rope_type == RopeType::kYarn;
}
bool IsLongrope(const CompatConfig& result) {
  return result.config.rope_type == RopeType::kLongrope;
}
bool FollowsLength(const RopeConfig& config) {
  return config.rope_type == RopeType::kDynamic && !config.alpha.has_value();
}

bool HasMscale(const RopeConfig& config) {
  return config.mscale.value_or(0) != 0;
}
bool HasAllDim(const RopeConfig& config) {
  return config.mscale_all_dim.value_or(0) != 0;
}

// Fixes yarn's attention factor to g(mscale) / g(all_dim), unless attention_factor is given. The
// result has neither attn_factor nor mscale.
void FixMscale(double mscale, double all_dim, std::string_view sentence, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (config.attention_factor.has_value()) return;
  const double factor = *EffectiveFactor(config);
  const long double computed = config.attn_factor.value_or(1) * YarnMagnitude(mscale, factor) /
                               YarnMagnitude(all_dim, factor);
  if (computed == AttentionFactor(config)) return;
  config.attention_factor = static_cast<double>(computed);
  config.attn_factor.reset();
  config.mscale.reset();
  config.mscale_all_dim.reset();
  result.changes.emplace_back(sentence);
}

// ggml assigns the frequencies past three times a section to its fourth row of positions.
bool HasFourthAxis(const Mrope& mrope) {
  const int64_t columns = mrope.section[0] + mrope.section[1] + mrope.section[2];
  for (int64_t j = 0; j < columns; ++j) {
    if (j % 3 != 0 && AxisOf(mrope, j) == 0) return true;
  }
  return false;
}

}  // namespace

absl::Status ClaimNothingButYarn(std::string_view, CompatConfig& result) {
  const RopeType type = result.config.rope_type;
  if (type == RopeType::kDefault || type == RopeType::kYarn) return absl::OkStatus();
  return NotChecked(StrCat("rope_type ", Name(type), " of this model"));
}

absl::Status ClaimNoDynamic(std::string_view, CompatConfig& result) {
  return FollowsLength(result.config) ? NotChecked("dynamic without alpha") : absl::OkStatus();
}

absl::Status ClaimNoLongrope(std::string_view, CompatConfig& result) {
  return IsLongrope(result) ? NotChecked("longrope of this model") : absl::OkStatus();
}

absl::Status RefuseDynamic(std::string_view, CompatConfig& result) {
  return FollowsLength(result.config) ? Lacks("rope_type dynamic") : absl::OkStatus();
}

absl::Status RefuseNtk(std::string_view, CompatConfig& result) {
  return result.config.rope_type == RopeType::kNtk ? Lacks("rope_type ntk") : absl::OkStatus();
}

absl::Status RefuseLongrope(std::string_view, CompatConfig& result) {
  return IsLongrope(result) ? Lacks("longrope for models other than Phi-3 and MiniCPM")
                            : absl::OkStatus();
}

absl::Status RefuseFourthAxis(std::string_view, CompatConfig& result) {
  const std::optional<Mrope>& mrope = result.config.mrope;
  if (!mrope.has_value() || mrope->layout != Mrope::Layout::kInterleaved) return absl::OkStatus();
  if (!HasFourthAxis(*mrope)) return absl::OkStatus();
  return Lacks(
      "interleaved mrope whose last frequencies all take t: it gives some to a fourth row of "
      "positions");
}

absl::Status TurnWholeHeads(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  const bool of_class = config.rope_type == RopeType::kDefault || config.alpha.has_value();
  if (!of_class || config.mrope.has_value()) return absl::OkStatus();
  const std::string_view key =
      config.rotary_dim.has_value() ? "rotary_dim" : "partial_rotary_factor";
  const bool whole = config.rotary_dim.has_value() ? config.rotary_dim == config.head_dim
                                                   : config.partial_rotary_factor.value_or(1) == 1;
  const std::vector<std::string>& ignored = ModelTypeOf(result.model_type).hf_ignores;
  if (whole || std::find(ignored.begin(), ignored.end(), key) == ignored.end()) {
    return absl::OkStatus();
  }
  config.rotary_dim.reset();
  config.partial_rotary_factor.reset();
  config.rotary_offset.reset();
  result.changes.push_back(StrCat(who, " turns all channels of a head: its ", result.model_type,
                                  " does not read ", key));
  return absl::OkStatus();
}

absl::Status DynamicBaseOfFactor(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (!FollowsLength(config)) return absl::OkStatus();
  // The base of length max_position_embeddings * factor is that of this alpha.
  const double factor = *config.factor;
  config.alpha = factor * (factor - 1) + 1;
  config.factor.reset();
  result.changes.push_back(
      StrCat(who, " uses one base for every length, that of max_position_embeddings * factor"));
  return absl::OkStatus();
}

absl::Status DynamicUnscaled(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (!FollowsLength(config)) return absl::OkStatus();
  config.alpha = 1;
  config.factor.reset();
  result.changes.push_back(StrCat(who, " uses rope_theta unscaled at every length"));
  return absl::OkStatus();
}

absl::Status DecideByBatch(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  const bool longrope = IsLongrope(result) && !config.longrope_branch.has_value();
  if (config.seq_len_policy.has_value() || (!FollowsLength(config) && !longrope)) {
    return absl::OkStatus();
  }
  config.seq_len_policy = SeqLenPolicy::kBatch;
  result.changes.push_back(
      StrCat(who, " decides by the longest sequence of the call, for all of its sequences"));
  return absl::OkStatus();
}

absl::Status LongropeByContext(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (!IsLongrope(result) || config.longrope_branch.has_value()) return absl::OkStatus();
  const std::optional<double> ratio = LengthRatio(config);
  if (!ratio.has_value()) return absl::OkStatus();
  config.longrope_branch = *ratio > 1 ? LongropeBranch::kLong : LongropeBranch::kShort;
  result.changes.push_back(StrCat(
      who, " takes one list of factors for every length, the long one if it is started with a ",
      "context above ", *config.original_max_position_embeddings));
  return absl::OkStatus();
}

absl::Status LongropeFactorOfLengths(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  const std::optional<double> ratio = LengthRatio(config);
  if (!IsLongrope(result) || !ratio.has_value()) return absl::OkStatus();
  RopeConfig by_ratio = config;
  by_ratio.factor = ratio;
  const long double computed = AttentionFactor(by_ratio, /*ignore_explicit=*/true);
  if (computed == AttentionFactor(config)) return absl::OkStatus();
  config.factor = ratio;
  config.attention_factor.reset();
  result.changes.push_back(
      StrCat(who, " computes the attention factor from the length ratio, ", Digits(computed)));
  return absl::OkStatus();
}

absl::Status DropProportionalFactor(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (config.rope_type != RopeType::kProportional) return absl::OkStatus();
  if (config.factor.value_or(1) != 1) {
    result.changes.push_back(StrCat(who, " ignores the factor of proportional"));
  }
  config.factor.reset();
  return absl::OkStatus();
}

absl::Status DropScaling(std::string_view who, CompatConfig& result) {
  const RopeConfig& config = result.config;
  if (config.rope_type == RopeType::kDefault) return absl::OkStatus();
  RopeConfig plain = {.rope_theta = config.rope_theta,
                      .head_dim = config.head_dim,
                      .rotary_dim = config.rotary_dim,
                      .partial_rotary_factor = config.partial_rotary_factor,
                      .max_position_embeddings = config.max_position_embeddings,
                      .mrope = config.mrope,
                      .rotary_offset = config.rotary_offset};
  plain.precision = config.precision;
  result.changes.push_back(
      StrCat(who, " ignores rope_type ", Name(config.rope_type), " for this model"));
  result.config = std::move(plain);
  return absl::OkStatus();
}

absl::Status TurnAQuarter(std::string_view who, CompatConfig& result) {
  constexpr double kFraction = 0.25;
  RopeConfig& config = result.config;
  if (config.partial_rotary_factor == kFraction) return absl::OkStatus();
  config.partial_rotary_factor = kFraction;
  config.rotary_dim.reset();
  result.changes.push_back(StrCat(who,
                                  " turns a quarter of the channels: it reads "
                                  "partial_rotary_factor at the top level only"));
  return absl::OkStatus();
}

absl::Status RefuseYarnWithoutFactor(std::string_view, CompatConfig& result) {
  if (!IsYarn(result) || result.config.factor.has_value()) return absl::OkStatus();
  return Lacks("yarn without factor");
}

absl::Status ClaimNoYarnWithoutFactor(std::string_view, CompatConfig& result) {
  if (!IsYarn(result) || result.config.factor.has_value()) return absl::OkStatus();
  return NotChecked("yarn without factor");
}

absl::Status RefuseBetaZero(std::string_view, CompatConfig& result) {
  const RopeConfig& config = result.config;
  if (!IsYarn(result) || (config.beta_fast != 0.0 && config.beta_slow != 0.0)) {
    return absl::OkStatus();
  }
  return Lacks("beta_fast or beta_slow of 0: it divides by them");
}

absl::Status DropBetas(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (!IsYarn(result) || (BetaFast(config) == 32 && BetaSlow(config) == 1)) {
    return absl::OkStatus();
  }
  config.beta_fast = 32;
  config.beta_slow = 1;
  result.changes.push_back(
      StrCat(who, " uses beta_fast 32 and beta_slow 1 for this model, whatever the config says"));
  return absl::OkStatus();
}

absl::Status DropTruncate(std::string_view who, CompatConfig& result) {
  if (!IsYarn(result) || result.config.truncate.value_or(true)) return absl::OkStatus();
  result.config.truncate = true;
  result.changes.push_back(StrCat(who, " rounds the ramp's edges regardless of truncate"));
  return absl::OkStatus();
}

absl::Status DropAttentionFactor(std::string_view who, CompatConfig& result) {
  if (!IsYarn(result) || !result.config.attention_factor.has_value()) return absl::OkStatus();
  result.config.attention_factor.reset();
  result.changes.push_back(StrCat(who, " ignores attention_factor"));
  return absl::OkStatus();
}

absl::Status DropAttnFactor(std::string_view who, CompatConfig& result) {
  if (!IsYarn(result) || !result.config.attn_factor.has_value()) return absl::OkStatus();
  if (*result.config.attn_factor != 1 && !result.config.attention_factor.has_value()) {
    result.changes.push_back(StrCat(who, " ignores attn_factor"));
  }
  result.config.attn_factor.reset();
  return absl::OkStatus();
}

absl::Status DropMscale(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (!IsYarn(result)) return absl::OkStatus();
  if (HasMscale(config) && HasAllDim(config) && !config.attention_factor.has_value()) {
    result.changes.push_back(StrCat(who, " ignores mscale and mscale_all_dim for this model"));
  }
  config.mscale.reset();
  config.mscale_all_dim.reset();
  return absl::OkStatus();
}

absl::Status MscaleOneAllDimZero(std::string_view who, CompatConfig& result) {
  if (!IsYarn(result)) return absl::OkStatus();
  const double mscale = result.config.mscale.value_or(1);
  const double all_dim = result.config.mscale_all_dim.value_or(0);
  FixMscale(
      mscale, all_dim,
      StrCat(who, " reads mscale as ", Digits(mscale), " and mscale_all_dim as ", Digits(all_dim)),
      result);
  return absl::OkStatus();
}

absl::Status MscaleZeroCounts(std::string_view who, CompatConfig& result) {
  const RopeConfig& config = result.config;
  if (!IsYarn(result) || !config.mscale.has_value() || !config.mscale_all_dim.has_value()) {
    return absl::OkStatus();
  }
  FixMscale(*config.mscale, *config.mscale_all_dim,
            StrCat(who, " uses a mscale or mscale_all_dim of 0 like any other number"), result);
  return absl::OkStatus();
}

absl::Status MscaleIsOne(std::string_view who, CompatConfig& result) {
  if (!IsYarn(result) || !HasAllDim(result.config)) return absl::OkStatus();
  FixMscale(1, *result.config.mscale_all_dim,
            StrCat(who, " reads mscale as 1 if mscale_all_dim is set"), result);
  return absl::OkStatus();
}

absl::Status MscaleIsAllDim(std::string_view who, CompatConfig& result) {
  if (!IsYarn(result) || !HasAllDim(result.config)) return absl::OkStatus();
  const double all_dim = *result.config.mscale_all_dim;
  FixMscale(all_dim, all_dim,
            StrCat(who, " reads mscale as equal to mscale_all_dim, for this model"), result);
  return absl::OkStatus();
}

absl::Status MropeRampOfFourLengths(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (!IsYarn(result) || !config.mrope.has_value()) return absl::OkStatus();
  config.factor = EffectiveFactor(config);
  config.original_max_position_embeddings = 4 * *OriginalLength(config);
  result.changes.push_back(
      StrCat(who, " places the ramp of yarn with mrope by four times the original length, ",
             *config.original_max_position_embeddings));
  return absl::OkStatus();
}

absl::Status RefuseMropeMscale(std::string_view, CompatConfig& result) {
  const RopeConfig& config = result.config;
  if (!IsYarn(result) || !config.mrope.has_value()) return absl::OkStatus();
  if (!config.mscale.has_value() && !config.mscale_all_dim.has_value()) return absl::OkStatus();
  return Lacks("mscale and mscale_all_dim with mrope");
}

}  // namespace rope::kernels
