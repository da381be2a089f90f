#include "kernels/config/gguf_scaling.h"

#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/config/gguf_architectures.h"
#include "kernels/config/rope_config.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

constexpr std::string_view kTypeKey = "rope.scaling.type";
constexpr std::string_view kAttnFactor = "rope.scaling.attn_factor";
constexpr double kStillDivisor = 1e30;

const std::vector<double>* TensorOf(const GgufFields& fields, std::string_view name) {
  const auto found = fields.header().tensors.find(name);
  return found == fields.header().tensors.end() ? nullptr : &found->second;
}

// The number of frequencies. Unset without head_dim and rotary_dim.
std::optional<int64_t> FrequenciesOf(const RopeConfig& config) {
  const std::optional<int64_t> rotary_dim = RotaryDim(config, config.head_dim);
  return rotary_dim.has_value() ? std::optional<int64_t>(*rotary_dim / 2) : std::nullopt;
}

absl::Status CheckDivisors(std::string_view name, const std::vector<double>& divisors) {
  for (size_t i = 0; i < divisors.size(); ++i) {
    if (std::isfinite(divisors[i]) && divisors[i] > 0) continue;
    return InvalidField(StrCat(name, "[", i, "]"), divisors[i], "a finite number > 0");
  }
  return absl::OkStatus();
}

// The positive number at `key`, or `otherwise`.
absl::StatusOr<double> ReadPositive(const GgufFields& fields, std::string_view key,
                                    double otherwise) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<double> value, fields.Number(key));
  if (!value.has_value()) return otherwise;
  if (!std::isfinite(*value) || *value <= 0) {
    return fields.Invalid(key, StrCat(*value), "a finite number > 0");
  }
  return *value;
}

// llama.cpp reads 0 as absent.
absl::StatusOr<std::optional<double>> ReadFactor(const GgufFields& fields) {
  const std::string_view key =
      fields.Has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
  ROPE_ASSIGN_OR_RETURN(const std::optional<double> factor, fields.Number(key));
  if (!factor.has_value() || *factor == 0) return std::optional<double>();
  if (!std::isfinite(*factor) || *factor < 0) {
    return fields.Invalid(key, StrCat(*factor), "a finite number > 0");
  }
  return factor;
}

// Types without an attention factor have no place for rope.scaling.attn_factor.
absl::Status WantNoAttnFactor(const GgufFields& fields) {
  ROPE_ASSIGN_OR_RETURN(const double attn_factor, ReadPositive(fields, kAttnFactor, 1));
  if (attn_factor == 1) return absl::OkStatus();
  return fields.Invalid(kAttnFactor, StrCat(attn_factor), "1 without yarn, longrope or rope_freqs");
}

absl::Status ReadLongrope(const GgufFields& fields, const std::vector<double>* long_factor,
                          const std::vector<double>* short_factor, std::optional<double> factor,
                          LayerConfig& entry) {
  RopeConfig& config = entry.config;
  if (long_factor == nullptr || short_factor == nullptr) {
    return InvalidField(long_factor == nullptr ? kRopeFactorsLong : kRopeFactorsShort, "no tensor",
                        "one for longrope");
  }
  ROPE_RETURN_IF_ERROR(CheckDivisors(kRopeFactorsLong, *long_factor));
  ROPE_RETURN_IF_ERROR(CheckDivisors(kRopeFactorsShort, *short_factor));
  config.rope_type = RopeType::kLongrope;
  config.long_factor = *long_factor;
  config.short_factor = *short_factor;
  // The factor divides the frequencies once more.
  for (double& number : config.long_factor) number *= factor.value_or(1);
  for (double& number : config.short_factor) number *= factor.value_or(1);
  ROPE_ASSIGN_OR_RETURN(config.attention_factor, ReadPositive(fields, kAttnFactor, 1));
  if (!fields.Has(kAttnFactor)) {
    entry.remarks.push_back(
        {RemarkKind::kDefaultAssumed,
         StrCat(fields.PathOf(kAttnFactor), " absent, taken as 1, as llama.cpp does")});
  }
  return absl::OkStatus();
}

absl::Status ReadRopeFreqs(const GgufFields& fields, const std::vector<double>& divisors,
                           std::optional<double> factor, LayerConfig& entry) {
  RopeConfig& config = entry.config;
  ROPE_RETURN_IF_ERROR(CheckDivisors(kRopeFreqs, divisors));
  const std::optional<int64_t> count = FrequenciesOf(config);
  // llama.cpp reads as many numbers as there are frequencies (Step 3.5 has one tensor for layers
  // with different dimensions).
  if (!count.has_value() || static_cast<int64_t>(divisors.size()) < *count) {
    return InvalidField(kRopeFreqs, StrCat(divisors.size(), " numbers"),
                        StrCat("rotary_dim/2, ", count.value_or(0)));
  }
  const auto dim = static_cast<long double>(2 * *count);
  for (int64_t i = 0; i < *count; ++i) {
    const double divisor = divisors[static_cast<size_t>(i)];
    const long double frequency =
        std::pow(static_cast<long double>(config.rope_theta),
                 -2 * static_cast<long double>(i) / dim) /
        (static_cast<long double>(divisor) * static_cast<long double>(factor.value_or(1)));
    // The float32 nearest to 1e30 lies above it.
    config.inv_freq.push_back(divisor >= kStillDivisor ? 0 : static_cast<double>(frequency));
  }
  ROPE_ASSIGN_OR_RETURN(const double attn_factor, ReadPositive(fields, kAttnFactor, 1));
  if (attn_factor != 1) config.attention_factor = attn_factor;
  return absl::OkStatus();
}

// mscale and mscale_all_dim from the architecture's yarn_log_multiplier.
absl::Status ReadLogMultiplier(const GgufFields& fields, LayerConfig& entry) {
  constexpr std::string_view kKey = "rope.scaling.yarn_log_multiplier";
  ROPE_ASSIGN_OR_RETURN(const std::optional<double> value, fields.Number(kKey));
  if (!value.has_value() || *value == 0) return absl::OkStatus();
  const GgufLogMultiplier* const meaning = GgufLogMultiplierOf(fields.architecture());
  if (meaning == nullptr) {
    entry.remarks.push_back(
        {RemarkKind::kUnusedSetting,
         StrCat(fields.PathOf(kKey), " is not used: llama.cpp does not read it for ",
                fields.architecture())});
    return absl::OkStatus();
  }
  if (!std::isfinite(*value) || *value < 0) {
    return fields.Invalid(kKey, StrCat(*value), "a finite number >= 0");
  }
  entry.config.mscale_all_dim = *value * meaning->scale;
  entry.config.mscale = meaning->mscale_too ? *entry.config.mscale_all_dim : 1;
  return absl::OkStatus();
}

// The edges of the ramp are rounded: the format has no key for it, and llama.cpp always does. Only
// gpt-oss was trained without (truncate false in its config.json).
absl::Status ReadYarn(const GgufFields& fields, std::optional<double> factor, LayerConfig& entry) {
  RopeConfig& config = entry.config;
  const bool grok = fields.architecture() == "grok";
  config.rope_type = RopeType::kYarn;
  config.factor = factor.value_or(1);
  if (!factor.has_value()) {
    entry.remarks.push_back(
        {RemarkKind::kDefaultAssumed,
         StrCat(fields.PathOf("rope.scaling.factor"), " absent, taken as 1, as llama.cpp does")});
  }
  ROPE_ASSIGN_OR_RETURN(config.beta_fast,
                        ReadPositive(fields, "rope.scaling.yarn_beta_fast", grok ? 8 : 32));
  ROPE_ASSIGN_OR_RETURN(config.beta_slow, ReadPositive(fields, "rope.scaling.yarn_beta_slow", 1));
  config.truncate = fields.architecture() != "gpt-oss";
  if (!*config.truncate) {
    entry.remarks.push_back(
        {RemarkKind::kDefaultAssumed,
         "truncate taken as false, as in gpt-oss's config.json; GGUF has no key for it, and "
         "llama.cpp "
         "rounds the ramp's edges"});
  }
  ROPE_ASSIGN_OR_RETURN(const double ext_factor,
                        ReadPositive(fields, "rope.scaling.yarn_ext_factor", 1));
  if (ext_factor != 1) {
    return fields.Invalid("rope.scaling.yarn_ext_factor", StrCat(ext_factor), "1");
  }
  ROPE_RETURN_IF_ERROR(ReadLogMultiplier(fields, entry));
  if (fields.Has(kAttnFactor)) {
    ROPE_ASSIGN_OR_RETURN(config.attn_factor, ReadPositive(fields, kAttnFactor, 1));
  }
  // The conversion writes config.json's attention_factor to this key. Grok's conversion writes
  // attn_factor.
  constexpr std::string_view kYarnAttnFactor = "rope.scaling.yarn_attn_factor";
  if (!fields.Has(kYarnAttnFactor)) return absl::OkStatus();
  ROPE_ASSIGN_OR_RETURN(const double given, ReadPositive(fields, kYarnAttnFactor, 1));
  if (!grok) {
    config.attention_factor = given * config.attn_factor.value_or(1);
  } else if (given != 1) {
    config.attn_factor = given * config.attn_factor.value_or(1);
  }
  return absl::OkStatus();
}

absl::Status ReadLinear(const GgufFields& fields, std::optional<double> factor,
                        LayerConfig& entry) {
  ROPE_RETURN_IF_ERROR(WantNoAttnFactor(fields));
  if (factor.value_or(1) == 1) return absl::OkStatus();
  entry.config.rope_type = RopeType::kLinear;
  entry.config.factor = factor;
  return absl::OkStatus();
}

// Hunyuan's base is theta * alpha^(d/(d-2)).
absl::StatusOr<bool> ReadAlpha(const GgufFields& fields, RopeConfig& config) {
  constexpr std::string_view kAlpha = "rope.scaling.alpha";
  if (fields.architecture() != "hunyuan_vl" || !fields.Has(kAlpha)) return false;
  ROPE_ASSIGN_OR_RETURN(config.alpha, ReadPositive(fields, kAlpha, 1));
  config.rope_type = RopeType::kDynamic;
  return true;
}

}  // namespace

absl::Status ReadGgufScaling(const GgufFields& fields, LayerConfig& entry) {
  ROPE_ASSIGN_OR_RETURN(const std::optional<std::string> type, fields.String(kTypeKey));
  const std::string name = type.value_or("linear");
  ROPE_ASSIGN_OR_RETURN(std::optional<double> factor, ReadFactor(fields));
  if (name == "none") factor = std::nullopt;
  const std::vector<double>* const freqs = TensorOf(fields, kRopeFreqs);
  const std::vector<double>* const long_factor = TensorOf(fields, kRopeFactorsLong);
  const std::vector<double>* const short_factor = TensorOf(fields, kRopeFactorsShort);
  const bool factors = long_factor != nullptr || short_factor != nullptr;
  if (name != "none" && name != "linear" && name != "yarn" && name != "longrope") {
    return fields.Invalid(kTypeKey, ShowText(name), "none, linear, yarn or longrope");
  }
  if (name == "yarn" && (factors || freqs != nullptr)) {
    return fields.Invalid(kTypeKey, "yarn beside a tensor of factors", "only one of them");
  }
  if (freqs != nullptr) return ReadRopeFreqs(fields, *freqs, factor, entry);
  if (factors || name == "longrope") {
    return ReadLongrope(fields, long_factor, short_factor, factor, entry);
  }
  if (name == "yarn") return ReadYarn(fields, factor, entry);
  ROPE_ASSIGN_OR_RETURN(const bool by_alpha, ReadAlpha(fields, entry.config));
  return by_alpha ? WantNoAttnFactor(fields) : ReadLinear(fields, factor, entry);
}

}  // namespace rope::kernels
