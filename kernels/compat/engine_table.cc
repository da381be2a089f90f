#include "kernels/compat/engine_table.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "kernels/config/model_types.h"
#include "kernels/config/rope_config.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

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
  const double computed = YarnMagnitude(mscale, factor, all_dim, config.attn_factor.value_or(1));
  if (computed == AttentionFactor(config)) return;
  config.attention_factor = computed;
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

// The conversions of which a reading consists. A step changes the config to explicit fields and
// adds a sentence for each change. It does nothing if its subject is not in the config: another
// rope_type, or a field that is unset. It keeps a field that only this service has (ramp,
// longrope_branch, alpha, seq_len_policy), if the field is set. Refuse...: the engine has no such
// rotation. Claim...: how the engine reads this was not checked.

absl::Status RefuseModel(std::string_view, CompatConfig&) {
  return Lacks("class for this architecture: it does not load");
}

// rope_type.
absl::Status ClaimNothingButYarn(std::string_view, CompatConfig& result) {
  const RopeType type = result.config.rope_type;
  if (type == RopeType::kDefault || type == RopeType::kYarn) return absl::OkStatus();
  return NotChecked(StrCat("rope_type ", Name(type), " of this model"));
}

// DeepSeek's class makes yarn of every other rope_type, from its factor and its two lengths.
absl::Status MakeYarn(std::string_view who, bool with_defaults, CompatConfig& result) {
  const RopeConfig& config = result.config;
  if (config.rope_type == RopeType::kDefault || IsYarn(result)) return absl::OkStatus();
  if (result.model_type.empty()) {  // hardly one of DeepSeek's
    return NotChecked(StrCat("rope_type ", Name(config.rope_type), " of this model"));
  }
  const std::optional<int64_t> original = config.original_max_position_embeddings;
  if (!with_defaults && (!config.factor.has_value() || !original.has_value())) {
    return Lacks(StrCat("rope_type ", Name(config.rope_type),
                        " of this model without a factor and an original length"));
  }
  RopeConfig yarn = WithoutScaling(config);
  yarn.rope_type = RopeType::kYarn;
  yarn.factor = config.factor.value_or(1);
  yarn.original_max_position_embeddings =
      original.has_value() ? original : config.max_position_embeddings;
  yarn.mscale = config.mscale;
  yarn.mscale_all_dim = config.mscale_all_dim;
  result.changes.push_back(
      StrCat(who, " makes yarn of rope_type ", Name(config.rope_type), " for this model"));
  result.config = std::move(yarn);
  return absl::OkStatus();
}

absl::Status YarnOfEveryType(std::string_view who, CompatConfig& result) {
  return MakeYarn(who, /*with_defaults=*/false, result);
}

// A missing factor is 1, a missing original length is max_position_embeddings.
absl::Status YarnOfEveryTypeWithDefaults(std::string_view who, CompatConfig& result) {
  return MakeYarn(who, /*with_defaults=*/true, result);
}

absl::Status ClaimNoDynamic(std::string_view, CompatConfig& result) {
  return FollowsLength(result.config) ? NotChecked("dynamic without alpha") : absl::OkStatus();
}

absl::Status ClaimNoLongrope(std::string_view, CompatConfig& result) {
  return IsLongrope(result) ? NotChecked("longrope of this model") : absl::OkStatus();
}

absl::Status RefuseFourthAxis(std::string_view, CompatConfig& result) {
  const std::optional<Mrope>& mrope = result.config.mrope;
  if (!mrope.has_value() || mrope->layout != Mrope::Layout::kInterleaved) return absl::OkStatus();
  if (!HasFourthAxis(*mrope)) return absl::OkStatus();
  return Lacks(
      "interleaved mrope whose last frequencies all take t: it gives some to a fourth row of "
      "positions");
}

// dynamic: the base of length max_position_embeddings * factor, or rope_theta, for every length.
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

// dynamic and longrope: the longest sequence of a call decides for all of them.
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

// longrope: one list for every length, by the context that the engine is started with.
absl::Status LongropeByContext(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (!IsLongrope(result) || config.longrope_branch.has_value()) return absl::OkStatus();
  const std::optional<int64_t> original = config.original_max_position_embeddings;
  const std::optional<int64_t> length =
      result.max_model_len.has_value() ? result.max_model_len : config.max_position_embeddings;
  if (!original.has_value() || !length.has_value()) return absl::OkStatus();
  config.longrope_branch = *length > *original ? LongropeBranch::kLong : LongropeBranch::kShort;
  result.changes.push_back(StrCat(
      who, " takes one list of factors for every length, the long one if it is started with a ",
      "context above ", *original));
  return absl::OkStatus();
}

// longrope: the attention factor follows from the two lengths only.
absl::Status LongropeFactorOfLengths(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  const std::optional<double> ratio = LengthRatio(config);
  if (!IsLongrope(result) || !ratio.has_value()) return absl::OkStatus();
  RopeConfig by_ratio = config;
  by_ratio.factor = ratio;
  const double computed = AttentionFactor(by_ratio, /*ignore_explicit=*/true);
  if (computed == AttentionFactor(config)) return absl::OkStatus();
  config.factor = ratio;
  config.attention_factor.reset();
  result.changes.push_back(
      StrCat(who, " computes the attention factor from the length ratio, ", computed));
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

// Plain rotation, whatever the rope_type.
absl::Status DropScaling(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (config.rope_type == RopeType::kDefault) return absl::OkStatus();
  result.changes.push_back(
      StrCat(who, " ignores rope_type ", Name(config.rope_type), " for this model"));
  config = WithoutScaling(config);
  return absl::OkStatus();
}

absl::Status DropAllButLongrope(std::string_view who, CompatConfig& result) {
  if (IsLongrope(result)) return absl::OkStatus();
  if (result.model_type.empty()) return NotChecked("this model");  // hardly a Phi-3
  return DropScaling(who, result);
}

// Plain rotation for the types of which llama.cpp's converter writes nothing that counts.
absl::Status DropUnwrittenButLlama3(std::string_view who, CompatConfig& result) {
  const RopeConfig& config = result.config;
  const bool unwritten = FollowsLength(config) || config.rope_type == RopeType::kNtk ||
                         IsLongrope(result) || (IsYarn(result) && !config.factor.has_value());
  return unwritten ? DropScaling(who, result) : absl::OkStatus();
}

absl::Status DropUnwritten(std::string_view who, CompatConfig& result) {
  return result.config.rope_type == RopeType::kLlama3 ? DropScaling(who, result)
                                                      : DropUnwrittenButLlama3(who, result);
}

// linear of every rope_type that has a factor.
absl::Status LinearOfFactor(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  const std::optional<double> factor = config.factor;
  if (config.rope_type == RopeType::kLinear) return absl::OkStatus();
  ROPE_RETURN_IF_ERROR(DropScaling(who, result));
  if (!factor.has_value()) return absl::OkStatus();
  config.rope_type = RopeType::kLinear;
  config.factor = factor;
  result.changes.push_back(StrCat(who, " makes linear of the factor"));
  return absl::OkStatus();
}

// The engine does not find rope_theta, and takes its default.
template <int64_t kTheta>
absl::Status DefaultTheta(std::string_view who, CompatConfig& result) {
  if (result.config.rope_theta == kTheta) return absl::OkStatus();
  result.config.rope_theta = kTheta;
  result.changes.push_back(StrCat(who, " uses rope_theta ", kTheta, " for this model, always"));
  return absl::OkStatus();
}

// A quarter of the channels turns, whatever partial_rotary_factor says.
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

// yarn: fields that the engine does not read.
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

// yarn: mscale and mscale_all_dim. Let g(m) be 0.1 m ln(factor) + 1. Hugging Face's attention
// factor is g(mscale) / g(mscale_all_dim) if both are set and not 0, else g(1).
// The engine's attention factor is always g(1).
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

// yarn: everything but factor and the original length.
absl::Status DropYarnDetails(std::string_view who, CompatConfig& result) {
  constexpr ReadingStep kSteps[] = {DropAttentionFactor, DropAttnFactor, DropMscale, DropBetas,
                                    DropTruncate};
  for (const ReadingStep step : kSteps) ROPE_RETURN_IF_ERROR(step(who, result));
  return absl::OkStatus();
}

// An absent mscale is 1, an absent mscale_all_dim is 0: DeepSeek's formula.
absl::Status MscaleOneAllDimZero(std::string_view who, CompatConfig& result) {
  if (!IsYarn(result)) return absl::OkStatus();
  const double mscale = result.config.mscale.value_or(1);
  const double all_dim = result.config.mscale_all_dim.value_or(0);
  FixMscale(mscale, all_dim,
            StrCat(who, " reads mscale as ", mscale, " and mscale_all_dim as ", all_dim), result);
  return absl::OkStatus();
}

// A 0 counts as set.
absl::Status MscaleZeroCounts(std::string_view who, CompatConfig& result) {
  const RopeConfig& config = result.config;
  if (!IsYarn(result) || !config.mscale.has_value() || !config.mscale_all_dim.has_value()) {
    return absl::OkStatus();
  }
  FixMscale(*config.mscale, *config.mscale_all_dim,
            StrCat(who, " uses a mscale or mscale_all_dim of 0 like any other number"), result);
  return absl::OkStatus();
}

// mscale is 1, or equal to mscale_all_dim, if mscale_all_dim is set and not 0.
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

// yarn with mrope: four times the original length places the ramp; no mscale.
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

// Every claim names the file it was read from. Paths of vLLM are below vllm/, of SGLang below
// sglang/srt/, of Transformers below transformers/, in the packages of PyPI; those of llama.cpp are
// below its root at commit 0c1e57098.

using enum Family;

// -- Hugging Face ---------------------------------------------------------------------------------
// modeling_rope_utils.py, dynamic_rope_update: dynamic and longrope follow the largest position of
// the call. _compute_yarn_parameters reads no attn_factor, nor does a file in models/. Its
// attention_factor and mscale are the fields of RopeConfig.
constexpr ReadingStep kHuggingFace[] = {DecideByBatch, DropAttnFactor};

// -- vLLM -----------------------------------------------------------------------------------------
// Models of its Transformers backend (model_family.cc) have the modules of the installed
// Transformers: kHuggingFace. get_rope never runs for them.
//
// model_executor/models/deepseek_v2.py, DeepseekV2Attention and DeepseekV2MLAAttention: a rope_type
// other than default becomes deepseek_yarn or deepseek_llama_scaling, whose cos and sin are equal:
// layers/rotary_embedding/__init__.py, get_rope, passes neither attention_factor nor truncate, and
// deepseek_scaling_rope.py has the defaults mscale 1 and mscale_all_dim 0. Until 0.29.0 it
// multiplies by attn_factor.
constexpr ReadingStep kVllmDeepSeek[] = {
    YarnOfEveryType, RefuseYarnWithoutFactor, RefuseBetaZero, DropAttentionFactor, DropAttnFactor,
    DropTruncate,    MscaleOneAllDimZero};
constexpr ReadingStep kVllm29DeepSeek[] = {YarnOfEveryType, RefuseYarnWithoutFactor,
                                           RefuseBetaZero,  DropAttentionFactor,
                                           DropTruncate,    MscaleOneAllDimZero};

// From 0.30.0 on get_rope passes mscale, mscale_all_dim and attention_factor, and no attn_factor;
// yarn_scaling_rope.py treats them as Hugging Face does. dynamic_ntk_scaling_rope.py scales by
// max_trained_positions, which get_rope takes to be max_position if the config has none.
// phi3_long_rope_scaled_rope.py: the list by max_model_len, the factor by the two lengths.
// gemma4_rope.py has no factor.
constexpr ReadingStep kVllm[] = {
    DynamicUnscaled,         LongropeByContext, LongropeFactorOfLengths, DropProportionalFactor,
    RefuseYarnWithoutFactor, RefuseBetaZero,    DropAttnFactor};
// mrope.py, MRotaryEmbedding: max_position_embeddings of the ramp times positions_factor, which is
// 4; from 0.32.0 on 1 for models/qwen3_vl.py and its relatives, without video pruning.
constexpr ReadingStep kVllmMrope[] = {
    DynamicUnscaled,         LongropeByContext, LongropeFactorOfLengths, DropProportionalFactor,
    RefuseYarnWithoutFactor, RefuseBetaZero,    DropAttnFactor,          MropeRampOfFourLengths};
// models/gpt_oss.py passes theta, factor, the original length, betas and truncate of yarn only.
constexpr ReadingStep kVllmGptOss[] = {ClaimNothingButYarn, RefuseYarnWithoutFactor, RefuseBetaZero,
                                       DropAttentionFactor, DropAttnFactor,          DropMscale};
// Until 0.29.0 get_rope passes attn_factor, and neither mscale nor attention_factor.
constexpr ReadingStep kVllm29[] = {
    DynamicUnscaled,         LongropeByContext, LongropeFactorOfLengths, DropProportionalFactor,
    RefuseYarnWithoutFactor, RefuseBetaZero,    DropAttentionFactor,     DropMscale,
    MropeRampOfFourLengths};
// Until 0.21.0 dynamic_ntk_scaling_rope.py takes the base of max_position_embeddings * factor.
constexpr ReadingStep kVllm21[] = {DynamicBaseOfFactor,
                                   LongropeByContext,
                                   LongropeFactorOfLengths,
                                   RefuseYarnWithoutFactor,
                                   RefuseBetaZero,
                                   DropAttentionFactor,
                                   DropMscale,
                                   MropeRampOfFourLengths};
// Until 0.11.2 get_rope passes no truncate.
constexpr ReadingStep kVllm11[] = {DynamicBaseOfFactor,
                                   LongropeByContext,
                                   LongropeFactorOfLengths,
                                   RefuseYarnWithoutFactor,
                                   RefuseBetaZero,
                                   DropAttentionFactor,
                                   DropMscale,
                                   DropTruncate,
                                   MropeRampOfFourLengths};
constexpr ReadingStep kVllm11GptOss[] = {ClaimNothingButYarn, RefuseYarnWithoutFactor,
                                         RefuseBetaZero,      DropAttentionFactor,
                                         DropAttnFactor,      DropMscale,
                                         DropTruncate};
// Until 0.11.0 phi3_long_rope_scaled_rope.py takes the list by the largest position of the call.
constexpr ReadingStep kVllm10[] = {DynamicBaseOfFactor,
                                   DecideByBatch,
                                   LongropeFactorOfLengths,
                                   RefuseYarnWithoutFactor,
                                   RefuseBetaZero,
                                   DropAttentionFactor,
                                   DropMscale,
                                   DropTruncate,
                                   MropeRampOfFourLengths};

// -- SGLang ---------------------------------------------------------------------------------------
// models/deepseek_v2.py, DeepseekV2AttentionMLA: rope_type becomes deepseek_yarn.
// layers/rotary_embedding/factory.py, get_rope, and rope_variant.py: as vLLM until 0.29.0.
constexpr ReadingStep kSglangDeepSeek[] = {YarnOfEveryTypeWithDefaults,
                                           ClaimNoYarnWithoutFactor,
                                           RefuseBetaZero,
                                           DropAttentionFactor,
                                           DropTruncate,
                                           MscaleOneAllDimZero};
// Until 0.5.15 it reads the factor and the original length without defaults.
constexpr ReadingStep kSglang15DeepSeek[] = {YarnOfEveryType, ClaimNoYarnWithoutFactor,
                                             RefuseBetaZero,  DropAttentionFactor,
                                             DropTruncate,    MscaleOneAllDimZero};
// get_rope passes attn_factor, truncate, mscale and mscale_all_dim. yarn.py uses the last two if
// neither is None; mrope.py, YaRNScalingMRotaryEmbedding, has no such parameters.
// rope_variant.py: dynamic has the base of max_position_embeddings * factor; longrope takes the
// list by the largest position of the call and the factor by the two lengths.
constexpr ReadingStep kSglang[] = {
    DynamicBaseOfFactor,      DecideByBatch,  LongropeFactorOfLengths, DropProportionalFactor,
    ClaimNoYarnWithoutFactor, RefuseBetaZero, RefuseMropeMscale,       DropAttentionFactor,
    MscaleZeroCounts};
// configs/laguna.py turns attention_factor into an attn_factor of the same product.
constexpr ReadingStep kSglangLaguna[] = {
    DynamicBaseOfFactor,      DecideByBatch,  LongropeFactorOfLengths, DropProportionalFactor,
    ClaimNoYarnWithoutFactor, RefuseBetaZero, RefuseMropeMscale,       MscaleZeroCounts};
// models/exaone4.py: getattr(config, "rope_theta", 1000000).
constexpr ReadingStep kSglangExaone4[] = {
    DefaultTheta<1000000>,  DynamicBaseOfFactor,      DecideByBatch,  LongropeFactorOfLengths,
    DropProportionalFactor, ClaimNoYarnWithoutFactor, RefuseBetaZero, RefuseMropeMscale,
    DropAttentionFactor,    MscaleZeroCounts};
// model_family.cc says which classes call get_rope without rope_scaling, and which it lacks.
constexpr ReadingStep kUnscaledSteps[] = {DropScaling};
constexpr ReadingStep kAbsentSteps[] = {RefuseModel};
constexpr ReadingStep kSglangUnscaledQuarter[] = {DropScaling, TurnAQuarter};
// Until 0.5.15 get_rope passes no mscale to yarn.
constexpr ReadingStep kSglang15[] = {DynamicBaseOfFactor,
                                     DecideByBatch,
                                     LongropeFactorOfLengths,
                                     ClaimNoYarnWithoutFactor,
                                     RefuseBetaZero,
                                     DropAttentionFactor,
                                     DropMscale};

// -- llama.cpp ------------------------------------------------------------------------------------
// conversion/base.py, TextModel.set_gguf_parameters, writes no scaling for rope_type dynamic, ntk,
// and yarn without factor, and of longrope its name only. ggml/src/ggml.c,
// ggml_rope_yarn_corr_dims, always rounds. src/llama-context.cpp computes yarn's attention factor
// from factor and yarn_log_multiplier alone, and overwrites the one of the file. Only
// src/models/{mistral3,deepseek2,deepseek32}.cpp load yarn_log_multiplier, and of the models here
// only mistral3.cpp loads the betas. ggml/src/ggml-cpu/ops.cpp, ggml_mrope_cache_init, has the
// fourth row of positions.
constexpr ReadingStep kLlamaCpp[] = {RefuseFourthAxis, DropUnwrittenButLlama3, DropYarnDetails};
// llama3: generate_extra_tensors of conversion/{llama,exaone,deci,step3}.py alone write of it.
constexpr ReadingStep kLlamaCppBase[] = {RefuseFourthAxis, DropUnwritten, DropYarnDetails};
// conversion/hunyuan.py has its own default of alpha.
constexpr ReadingStep kLlamaCppHunyuan[] = {RefuseFourthAxis, ClaimNoDynamic, DropUnwritten,
                                            DropYarnDetails};
// conversion/gemma.py: the factors of proportional are 1, and 1e30 where nothing rotates.
constexpr ReadingStep kLlamaCppGemma4[] = {RefuseFourthAxis, DropUnwritten, DropProportionalFactor,
                                           DropYarnDetails};
// conversion/phi.py, Phi3MiniModel: both lists, the attention factor of the two lengths, and
// nothing of another rope_type. src/llama-model.cpp, get_rope_factors: the list by the context
// (n_ctx_seq).
constexpr ReadingStep kLlamaCppPhi3[] = {DropAllButLongrope, LongropeByContext,
                                         LongropeFactorOfLengths};
// conversion/minicpm.py writes both lists, but neither the original length nor a factor.
constexpr ReadingStep kLlamaCppMiniCpm[] = {RefuseFourthAxis, ClaimNoLongrope, DropUnwritten,
                                            DropYarnDetails};
// conversion/mistral3.py asserts yarn and writes mscale_all_dim. src/llama-context.cpp takes mscale
// as 1.
constexpr ReadingStep kLlamaCppMinistral3[] = {
    RefuseFourthAxis, ClaimNothingButYarn, ClaimNoYarnWithoutFactor,
    RefuseBetaZero,   DropAttentionFactor, DropAttnFactor,
    MscaleIsOne,      DropTruncate};
// conversion/deepseek.py writes mscale_all_dim.
constexpr ReadingStep kLlamaCppDeepSeek32[] = {RefuseFourthAxis, DropUnwritten, DropAttentionFactor,
                                               DropAttnFactor,   MscaleIsOne,   DropBetas,
                                               DropTruncate};
// src/llama-context.cpp: LLM_ARCH_DEEPSEEK2 takes mscale as mscale_all_dim.
constexpr ReadingStep kLlamaCppDeepSeek[] = {RefuseFourthAxis, DropUnwritten,  DropAttentionFactor,
                                             DropAttnFactor,   MscaleIsAllDim, DropBetas,
                                             DropTruncate};
// conversion/nemotron.py: linear, if rope_parameters have a factor.
constexpr ReadingStep kLlamaCppLinear[] = {LinearOfFactor};
// conversion/{gemma,stablelm}.py write neither rope_theta nor a scaling, and src/llama-model.cpp
// has the default 10000.
constexpr ReadingStep kLlamaCppDefaultTheta[] = {DefaultTheta<10000>, DropScaling};

// -- DeepSeek -------------------------------------------------------------------------------------
// deepseek-ai/DeepSeek-VL2 at 8ed2d7f, deepseek_vl2/models/modeling_deepseek.py:
// DeepseekV2Attention._init_rope and DeepseekV2YarnRotaryEmbedding.
constexpr ReadingStep kDeepSeekCode[] = {
    RefuseYarnWithoutFactor, RefuseBetaZero, DropAttentionFactor,
    DropAttnFactor,          DropTruncate,   MscaleOneAllDimZero};

// -- Models ---------------------------------------------------------------------------------------
// Models join a list where the versions that have them begin.
template <Family kFamily>
constexpr Family kOnly[] = {kFamily};
constexpr Family kDeepSeekLike[] = {kDeepSeek, kDeepSeek32, kGlm4MoeLite, kGlmMoeDsa, kLongcat};
constexpr Family kDeepSeekOnly[] = {kDeepSeek, kGlm4MoeLite};
constexpr Family kOrdinary[] = {kOther,   kMinistral3, kLaguna, kPhi3,
                                kMiniCpm, kHunyuan,    kGemma4, kQwen3Vl};
constexpr Family kOrdinaryWithoutQwen3Vl[] = {kOther,   kMinistral3, kLaguna, kPhi3,
                                              kMiniCpm, kHunyuan,    kGemma4};
constexpr Family kOrdinary20[] = {kOther, kMinistral3, kPhi3, kMiniCpm, kHunyuan, kQwen3Vl};
constexpr Family kOrdinaryOld[] = {kOther, kPhi3, kMiniCpm, kHunyuan, kQwen3Vl};
constexpr Family kOrdinarySglang[] = {kOther,   kMinistral3, kGptOss,  kPhi3,
                                      kMiniCpm, kHunyuan,    kQwen3Vl, kGemma4};
constexpr Family kOrdinarySglangOld[] = {kOther,   kMinistral3, kGptOss, kPhi3,
                                         kMiniCpm, kHunyuan,    kQwen3Vl};
constexpr Family kOrdinaryLlamaCpp[] = {kGptOss, kLaguna, kQwen3Vl, kGlmMoeDsa, kBaseConverter};

constexpr EngineEntry kEntries[] = {
    {"hf", "5.23.0", "5.23.0", {}, kHuggingFace},

    {"vllm", "0.10.2", "0.33.0", kOnly<kTransformers>, kHuggingFace},
    {"vllm", "0.10.2", "0.33.0", kOnly<kAbsent>, kAbsentSteps},
    {"vllm", "0.10.2", "0.11.2", kOnly<kUnscaled>, kUnscaledSteps},
    {"vllm", "0.30.0", "0.33.0", kDeepSeekLike, kVllmDeepSeek},
    {"vllm", "0.22.0", "0.29.0", kDeepSeekLike, kVllm29DeepSeek},
    {"vllm", "0.10.2", "0.21.0", kOnly<kDeepSeek>, kVllm29DeepSeek},
    {"vllm", "0.12.0", "0.33.0", kOnly<kGptOss>, kVllmGptOss},
    {"vllm", "0.10.2", "0.11.2", kOnly<kGptOss>, kVllm11GptOss},
    {"vllm", "0.32.0", "0.33.0", kOnly<kQwen3Vl>, kVllm},
    {"vllm", "0.32.0", "0.33.0", kOrdinaryWithoutQwen3Vl, kVllmMrope},
    {"vllm", "0.30.0", "0.31.0", kOrdinary, kVllmMrope},
    {"vllm", "0.22.0", "0.29.0", kOrdinary, kVllm29},
    {"vllm", "0.20.0", "0.21.0", kOrdinary20, kVllm21},
    {"vllm", "0.12.0", "0.19.1", kOrdinaryOld, kVllm21},
    {"vllm", "0.11.1", "0.11.2", kOrdinaryOld, kVllm11},
    {"vllm", "0.10.2", "0.11.0", kOrdinaryOld, kVllm10},

    {"sglang", "0.5.9", "0.5.23", kOnly<kTransformers>, kHuggingFace},
    {"sglang", "0.5.9", "0.5.23", kOnly<kAbsent>, kAbsentSteps},
    {"sglang", "0.5.16", "0.5.23", kOnly<kDefaultTheta>, kSglangExaone4},
    {"sglang", "0.5.9", "0.5.23", kOnly<kUnscaled>, kUnscaledSteps},
    {"sglang", "0.5.9", "0.5.23", kOnly<kUnscaledQuarter>, kSglangUnscaledQuarter},
    {"sglang", "0.5.16", "0.5.23", kDeepSeekLike, kSglangDeepSeek},
    {"sglang", "0.5.9", "0.5.15", kDeepSeekLike, kSglang15DeepSeek},
    {"sglang", "0.5.16", "0.5.23", kOnly<kLaguna>, kSglangLaguna},
    {"sglang", "0.5.16", "0.5.23", kOrdinarySglang, kSglang},
    {"sglang", "0.5.9", "0.5.15", kOrdinarySglangOld, kSglang15},

    {"llamacpp", "0c1e57098", "0c1e57098", kOnly<kAbsent>, kAbsentSteps},
    {"llamacpp", "0c1e57098", "0c1e57098", kOnly<kUnscaled>, kUnscaledSteps},
    {"llamacpp", "0c1e57098", "0c1e57098", kOnly<kDefaultTheta>, kLlamaCppDefaultTheta},
    {"llamacpp", "0c1e57098", "0c1e57098", kOnly<kLinearOfFactor>, kLlamaCppLinear},
    {"llamacpp", "0c1e57098", "0c1e57098", kDeepSeekOnly, kLlamaCppDeepSeek},
    {"llamacpp", "0c1e57098", "0c1e57098", kOnly<kDeepSeek32>, kLlamaCppDeepSeek32},
    {"llamacpp", "0c1e57098", "0c1e57098", kOnly<kMinistral3>, kLlamaCppMinistral3},
    {"llamacpp", "0c1e57098", "0c1e57098", kOnly<kMiniCpm>, kLlamaCppMiniCpm},
    {"llamacpp", "0c1e57098", "0c1e57098", kOnly<kPhi3>, kLlamaCppPhi3},
    {"llamacpp", "0c1e57098", "0c1e57098", kOnly<kGemma4>, kLlamaCppGemma4},
    {"llamacpp", "0c1e57098", "0c1e57098", kOnly<kHunyuan>, kLlamaCppHunyuan},
    {"llamacpp", "0c1e57098", "0c1e57098", kOrdinaryLlamaCpp, kLlamaCppBase},
    {"llamacpp", "0c1e57098", "0c1e57098", kOnly<kOther>, kLlamaCpp},

    {"deepseek", "VL2-8ed2d7f", "VL2-8ed2d7f", kOnly<kDeepSeek>, kDeepSeekCode},
};

// The versions that were compared. A range begins where an entry begins, or a fact of
// model_family.cc.
std::vector<EngineVersions> MakeTable() {
  std::vector<EngineVersions> table = {
      {"hf", "Hugging Face", "5.23.0", "5.23.0"},
      {"vllm", "vLLM", "0.32.0", "0.33.0"},
      {"vllm", "vLLM", "0.30.0", "0.31.0"},
      {"vllm", "vLLM", "0.29.0", "0.29.0"},
      {"vllm", "vLLM", "0.27.0", "0.28.0"},
      {"vllm", "vLLM", "0.26.0", "0.26.0"},
      {"vllm", "vLLM", "0.25.0", "0.25.1"},
      {"vllm", "vLLM", "0.22.0", "0.24.0"},
      {"vllm", "vLLM", "0.20.0", "0.21.0"},
      {"vllm", "vLLM", "0.19.0", "0.19.1"},
      {"vllm", "vLLM", "0.12.0", "0.18.1"},
      {"vllm", "vLLM", "0.11.1", "0.11.2"},
      {"vllm", "vLLM", "0.10.2", "0.11.0"},
      {"sglang", "SGLang", "0.5.16", "0.5.23"},
      {"sglang", "SGLang", "0.5.10", "0.5.15"},
      {"sglang", "SGLang", "0.5.9", "0.5.9"},
      {"llamacpp", "llama.cpp", "0c1e57098", "0c1e57098"},
      {"deepseek", "DeepSeek's code", "VL2-8ed2d7f", "VL2-8ed2d7f"},
  };
  for (EngineVersions& versions : table) {
    for (const EngineEntry& entry : kEntries) {
      if (entry.engine != versions.engine) continue;
      if (IsBetween(entry.first, versions.first, entry.last)) versions.entries.push_back(&entry);
    }
  }
  return table;
}

// -- Versions whose code was run -----------------------------------------------------------------
// Each has a file in tests/peers/engines/data, the oldest first within an engine.
struct ExecutedVersion {
  std::string_view engine;
  std::string_view version;
};
constexpr ExecutedVersion kExecuted[] = {
    {"hf", "5.23.0"},    {"vllm", "0.11.2"},   {"vllm", "0.21.0"},
    {"vllm", "0.29.0"},  {"vllm", "0.32.0"},   {"vllm", "0.33.0"},
    {"sglang", "0.5.9"}, {"sglang", "0.5.23"}, {"llamacpp", "0c1e57098"},
};

}  // namespace

bool EngineEntry::Covers(Family family) const {
  return families.empty() || std::find(families.begin(), families.end(), family) != families.end();
}

const EngineEntry* EngineVersions::EntryFor(Family family) const {
  for (const EngineEntry* const entry : entries) {
    if (entry->Covers(family)) return entry;
  }
  return nullptr;
}

std::span<const EngineVersions> EngineTable() {
  static const std::vector<EngineVersions> table = MakeTable();
  return table;
}

absl::StatusOr<CompatConfig> Convert(const EngineVersions& versions, const EngineEntry& entry,
                                     const RopeConfig& config, const ModelNames& names,
                                     std::optional<int64_t> max_model_len) {
  CompatConfig result = {.config = config,
                         .changes = {},
                         .model_type = names.model_type,
                         .max_model_len = max_model_len};
  const auto& [engine, who, first, last, entries] = versions;
  ROPE_RETURN_IF_ERROR(CheckOldName(engine, first, names));
  const bool own = entry.families.empty() || !entry.Covers(kTransformers);
  ROPE_RETURN_IF_ERROR(ReadFile({engine, who, first, own && engine != "hf"}, names, result));
  for (const ReadingStep step : entry.steps) ROPE_RETURN_IF_ERROR(step(who, result));
  return result;
}

std::vector<std::string> EngineNames() {
  std::vector<std::string> names;
  for (const EngineVersions& versions : EngineTable()) {
    if (names.empty() || names.back() != versions.engine) names.emplace_back(versions.engine);
  }
  return names;
}

std::vector<std::string> ComparedVersions(std::string_view engine) {
  std::vector<std::string> compared;
  for (const EngineVersions& versions : EngineTable()) {
    if (versions.engine == engine) compared.push_back(Versions(versions.first, versions.last));
  }
  std::reverse(compared.begin(), compared.end());
  return compared;
}

std::string ExecutedVersions(std::string_view engine, std::string_view first,
                             std::string_view last) {
  std::string versions;
  for (const ExecutedVersion& executed : kExecuted) {
    if (executed.engine != engine || !IsBetween(first, executed.version, last)) continue;
    versions += StrCat(versions.empty() ? "" : ", ", executed.version);
  }
  return versions;
}

// SGLang, layers/rotary_embedding/base.py: on CUDA. ggml-cpu/ops.cpp and rope.cu compute in
// float32. vLLM, layers/rotary_embedding/base.py, and the rotary classes of Transformers and of
// DeepSeek round to the model's dtype.
bool KeepsFloat32Tables(std::string_view engine) {
  return engine == "sglang" || engine == "llamacpp";
}

std::string Versions(std::string_view first, std::string_view last) {
  return first == last ? StrCat(first) : StrCat(first, " to ", last);
}

}  // namespace rope::kernels
