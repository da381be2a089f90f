#include "kernels/compat/rope_readings.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/config/rope_formulas.h"
#include "kernels/frequencies/inverse_frequencies.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"

namespace rope::kernels {
namespace {

std::string Digits(long double number) {
  return absl::StrFormat("%.6g", static_cast<double>(number));
}

absl::Status HasNo(Compat compat, std::string_view what) {
  return absl::InvalidArgumentError(
      StrCat("compat: got ", Name(compat), ", which has no ", what, ", want another"));
}

// longrope by the configured length: one list of factors for every length, and an attention factor
// from the ratio of the lengths only.
void FixLongrope(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  const std::optional<double> ratio = LengthRatio(config);
  if (!ratio.has_value()) return;
  if (!config.longrope_branch.has_value()) {
    config.longrope_branch = *ratio > 1 ? LongropeBranch::kLong : LongropeBranch::kShort;
    result.changes.push_back(StrCat(who, " takes the ", *ratio > 1 ? "long" : "short",
                                    " factors at every length, by max_position_embeddings"));
  }
  RopeConfig by_ratio = config;
  by_ratio.factor = ratio;
  const long double computed = AttentionFactor(by_ratio, /*ignore_explicit=*/true);
  if (computed == AttentionFactor(config)) return;
  config.factor = ratio;
  config.attention_factor.reset();
  result.changes.push_back(
      StrCat(who, " computes the attention factor from the length ratio, ", Digits(computed)));
}

// attention_factor is a field that only Hugging Face's code uses.
void DropAttentionFactor(std::string_view who, CompatConfig& result) {
  if (!result.config.attention_factor.has_value()) return;
  result.config.attention_factor.reset();
  result.changes.push_back(StrCat(who, " ignores attention_factor and multiplies by attn_factor"));
}

void Truncate(std::string_view who, CompatConfig& result) {
  if (result.config.truncate.value_or(true)) return;
  result.config.truncate = true;
  result.changes.push_back(StrCat(who, " rounds the ramp's edges regardless of truncate"));
}

// Uses the base at length max_position_embeddings * factor for every length. This equals an alpha
// of factor * (factor - 1) + 1.
void FixDynamicBase(CompatConfig& result) {
  RopeConfig& config = result.config;
  if (config.alpha.has_value()) return;
  const double factor = *config.factor;
  config.alpha = factor * (factor - 1) + 1;
  config.factor.reset();
  result.changes.push_back(
      StrCat("vLLM uses one base for every length, that of max_position_embeddings * factor"));
}

void ReadYarnAsVllm(CompatConfig& result) {
  RopeConfig& config = result.config;
  DropAttentionFactor("vLLM", result);
  if (config.mscale.value_or(0) != 0 && config.mscale_all_dim.value_or(0) != 0) {
    result.changes.push_back("vLLM ignores mscale and mscale_all_dim outside its DeepSeek classes");
  }
  config.mscale.reset();
  config.mscale_all_dim.reset();
  if (config.mrope.has_value()) {
    config.factor = EffectiveFactor(config);
    config.original_max_position_embeddings = 4 * *OriginalLength(config);
    result.changes.push_back(
        StrCat("vLLM places the ramp of yarn with mrope by four times the "
               "original length, ",
               *config.original_max_position_embeddings));
  }
}

absl::Status ReadAsVllm(CompatConfig& result) {
  RopeConfig& config = result.config;
  switch (config.rope_type) {
    case RopeType::kDynamic:
      FixDynamicBase(result);
      break;
    case RopeType::kLongrope:
      FixLongrope("vLLM", result);
      break;
    case RopeType::kYarn:
      ReadYarnAsVllm(result);
      break;
    case RopeType::kProportional:
      if (config.factor.value_or(1) != 1) {
        result.changes.push_back("vLLM ignores the factor of proportional");
      }
      config.factor.reset();
      break;
    default:
      break;
  }
  return absl::OkStatus();
}

// ggml assigns the frequencies past three times a section to its fourth row of positions.
bool HasFourthAxis(const Mrope& mrope, int64_t columns) {
  for (int64_t j = 0; j < columns; ++j) {
    if (j % 3 != 0 && mrope.Axis(j) == 0) return true;
  }
  return false;
}

absl::Status ReadAsLlamaCpp(CompatConfig& result) {
  RopeConfig& config = result.config;
  if (config.mrope.has_value() && config.mrope->layout == Mrope::Layout::kInterleaved) {
    const std::array<int64_t, 3>& section = config.mrope->section;
    if (HasFourthAxis(*config.mrope, section[0] + section[1] + section[2])) {
      return HasNo(Compat::kLlamaCpp,
                   "interleaved mrope whose last frequencies all take t: it gives some to a "
                   "fourth row of positions");
    }
  }
  switch (config.rope_type) {
    case RopeType::kDynamic:
      if (!config.alpha.has_value()) return HasNo(Compat::kLlamaCpp, "rope_type dynamic");
      break;
    case RopeType::kNtk:
      return HasNo(Compat::kLlamaCpp, "rope_type ntk");
    case RopeType::kLongrope:
      FixLongrope("llama.cpp", result);
      break;
    case RopeType::kYarn:
      DropAttentionFactor("llama.cpp", result);
      Truncate("llama.cpp", result);
      // llama.cpp reads only mscale_all_dim (yarn_log_multiplier). It uses mscale 1 unless the two
      // are equal.
      if (config.mscale_all_dim.value_or(0) != 0 && config.mscale != config.mscale_all_dim &&
          config.mscale != 1.0) {
        config.mscale = 1;
        result.changes.push_back("llama.cpp reads mscale as 1 if mscale_all_dim is set");
      }
      break;
    default:
      break;
  }
  return absl::OkStatus();
}

// The attention factor is g(mscale) / g(mscale_all_dim) * attn_factor, with defaults mscale 1 and
// mscale_all_dim 0. The ramp's edges are always rounded.
void ReadAsDeepSeek(CompatConfig& result) {
  RopeConfig& config = result.config;
  if (config.rope_type != RopeType::kYarn) return;
  DropAttentionFactor("DeepSeek's code", result);
  Truncate("DeepSeek's code", result);
  const bool mscale = config.mscale.value_or(0) != 0;
  const bool all_dim = config.mscale_all_dim.value_or(0) != 0;
  if (mscale == all_dim) return;
  const double factor = *EffectiveFactor(config);
  const long double computed = config.attn_factor.value_or(1) *
                               YarnMagnitude(config.mscale.value_or(1), factor) /
                               YarnMagnitude(config.mscale_all_dim.value_or(0), factor);
  config.attention_factor = static_cast<double>(computed);
  config.attn_factor.reset();
  config.mscale.reset();
  config.mscale_all_dim.reset();
  result.changes.push_back(StrCat("DeepSeek's code reads mscale as ", mscale ? "given" : "1",
                                  " and mscale_all_dim as ", mscale ? "0" : "given",
                                  " (attention factor ", Digits(computed), ")"));
}

void ReadAsHuggingFace(CompatConfig& result) {
  RopeConfig& config = result.config;
  const bool dynamic = config.rope_type == RopeType::kDynamic && !config.alpha.has_value();
  const bool longrope =
      config.rope_type == RopeType::kLongrope && !config.longrope_branch.has_value();
  if ((!dynamic && !longrope) || config.seq_len_policy.has_value()) return;
  config.seq_len_policy = SeqLenPolicy::kBatch;
  result.changes.push_back(
      "Hugging Face decides by the longest sequence of the call, for all of its sequences");
}

double LargestRelative(const std::vector<InverseFrequency>& got,
                       const std::vector<InverseFrequency>& want) {
  long double largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i]) continue;
    largest = std::max(largest, want[i] == 0 ? std::numeric_limits<long double>::infinity()
                                             : std::abs(got[i] / want[i] - 1));
  }
  return static_cast<double>(largest);
}

std::optional<Reading> ReadingOf(const RopeConfig& stated, Compat compat,
                                 const ResolvedRope& answered, int64_t seq_len) {
  Reading reading = {.implementation = std::string(Name(compat)), .difference = ""};
  RopeConfig config = stated;
  config.precision = answered.config().precision;
  const absl::StatusOr<CompatConfig> read = ApplyCompat(config, compat);
  if (!read.ok()) {
    reading.difference = std::string(read.status().message());
    return reading;
  }
  const auto rope = Resolve(read->config, answered.head_dim());
  if (!rope.ok()) return std::nullopt;
  reading.difference = absl::StrJoin(read->changes, "; ");
  if (reading.difference.empty()) reading.difference = "reads the config as written";
  reading.attention_factor = (*rope)->attention_factor();
  reading.inv_freq_max_relative =
      LargestRelative((*rope)->Evaluate(seq_len).inv_freq, answered.Evaluate(seq_len).inv_freq);
  const double factor = answered.attention_factor();
  // A difference of one unit in the last place is rounding, not another reading.
  const bool same = std::abs(reading.attention_factor - factor) <= 1e-15 * factor &&
                    reading.inv_freq_max_relative <= 1e-15;
  return same ? std::nullopt : std::optional<Reading>(std::move(reading));
}

}  // namespace

std::string_view Name(Compat compat) {
  switch (compat) {
    case Compat::kDefault:
      return "default";
    case Compat::kHuggingFace:
      return "hf";
    case Compat::kVllm:
      return "vllm";
    case Compat::kLlamaCpp:
      return "llamacpp";
    case Compat::kDeepSeek:
      return "deepseek";
  }
  return "invalid";
}

absl::StatusOr<CompatConfig> ApplyCompat(const RopeConfig& config, Compat compat) {
  CompatConfig result = {.config = config, .changes = {}};
  switch (compat) {
    case Compat::kDefault:
      break;
    case Compat::kHuggingFace:
      ReadAsHuggingFace(result);
      break;
    case Compat::kVllm:
      ROPE_RETURN_IF_ERROR(ReadAsVllm(result));
      break;
    case Compat::kLlamaCpp:
      ROPE_RETURN_IF_ERROR(ReadAsLlamaCpp(result));
      break;
    case Compat::kDeepSeek:
      ReadAsDeepSeek(result);
      break;
  }
  return result;
}

std::vector<Reading> Readings(const RopeConfig& stated, const ResolvedRope& answered,
                              int64_t seq_len) {
  std::vector<Reading> readings;
  for (const Compat compat :
       {Compat::kHuggingFace, Compat::kVllm, Compat::kLlamaCpp, Compat::kDeepSeek}) {
    std::optional<Reading> reading = ReadingOf(stated, compat, answered, seq_len);
    if (reading.has_value()) readings.push_back(*std::move(reading));
  }
  return readings;
}

std::optional<Ramp> RampOf(const ResolvedRope& rope) {
  const RopeConfig& config = rope.config();
  YarnEdges edges;
  if (config.rope_type == RopeType::kLlama3) {
    edges = TurnEdges(config, rope.rotary_dim(), *config.high_freq_factor, *config.low_freq_factor);
  } else if (config.rope_type == RopeType::kYarn && config.ramp == YarnRamp::kTurns) {
    edges = TurnEdges(config, rope.rotary_dim(), *config.beta_fast, *config.beta_slow);
  } else if (config.rope_type == RopeType::kYarn) {
    edges = YarnRampEdges(config, rope.rotary_dim(), *config.truncate);
  } else {
    return std::nullopt;
  }
  const auto wavelength = [&](long double index) {
    const long double exponent = 2 * index / static_cast<long double>(rope.rotary_dim());
    const long double turn = 2 * std::numbers::pi_v<long double>;
    return static_cast<double>(turn *
                               std::pow(static_cast<long double>(config.rope_theta), exponent));
  };
  return Ramp{.low_index = static_cast<double>(edges.low),
              .high_index = static_cast<double>(edges.high),
              .low_wavelength = wavelength(edges.low),
              .high_wavelength = wavelength(edges.high)};
}

std::vector<ColumnScaling> ScalingOf(const ResolvedRope& rope,
                                     const ResolvedRope::AtSeqLen& evaluated) {
  const RopeConfig& config = rope.config();
  const auto plain = config.inv_freq.empty()
                         ? UnscaledFrequencies(config, rope.head_dim(), rope.rotary_dim())
                         : evaluated.inv_freq;
  const bool blends = config.rope_type == RopeType::kYarn || config.rope_type == RopeType::kLlama3;
  const long double rounding = config.precision == Precision::kExact ? 1e-15L : 1e-5L;
  std::vector<ColumnScaling> columns;
  for (size_t i = 0; i < evaluated.inv_freq.size(); ++i) {
    const long double number = evaluated.inv_freq[i];
    const auto is = [&](long double other) { return std::abs(number - other) <= rounding * other; };
    if (number == 0) {
      columns.push_back(ColumnScaling::kStill);
    } else if (is(plain[i])) {
      columns.push_back(ColumnScaling::kKept);
    } else {
      columns.push_back(blends && !is(plain[i] / *config.factor) ? ColumnScaling::kBlended
                                                                 : ColumnScaling::kScaled);
    }
  }
  return columns;
}

double Float32AngleError(const ResolvedRope::AtSeqLen& evaluated, int64_t position) {
  constexpr int64_t kPositions = 16;
  double largest = 0;
  for (int64_t p = std::max(position - kPositions + 1, int64_t{0}); p <= position; ++p) {
    for (const InverseFrequency number : evaluated.inv_freq) {
      const auto angle = static_cast<double>(static_cast<float>(p) * static_cast<float>(number));
      const CosSin exact = ExactCosSin(p, number, 1);
      largest = std::max(
          {largest, std::abs(std::cos(angle) - exact.cos), std::abs(std::sin(angle) - exact.sin)});
    }
  }
  return largest;
}

}  // namespace rope::kernels
