#include "kernels/config/rope_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "kernels/error.h"
#include "kernels/status_macros.h"

namespace rope::kernels {

int AxisOf(const Mrope& mrope, int64_t index) {
  if (!mrope.axes.empty()) return mrope.axes[static_cast<size_t>(index)];
  const auto& section = mrope.section;
  if (mrope.layout == Mrope::Layout::kSections || mrope.layout == Mrope::Layout::kAxial) {
    if (index < section[0]) return 0;
    return index < section[0] + section[1] ? 1 : 2;
  }
  if (mrope.layout == Mrope::Layout::kHwInterleaved) {
    if (index >= section[1] + section[2]) return 0;
    return index % 2 == 0 ? 1 : 2;
  }
  if (index % 3 == 1 && index < 3 * section[1]) return 1;
  if (index % 3 == 2 && index < 3 * section[2]) return 2;
  return 0;
}

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
  return config.original_max_position_embeddings.has_value()
             ? config.original_max_position_embeddings
             : config.max_position_embeddings;
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
  if (config.rope_type == RopeType::kProportional) return 1;
  const bool longrope = config.rope_type == RopeType::kLongrope;
  if (!longrope && config.rope_type != RopeType::kYarn) return std::nullopt;
  // Without an original length a model of longrope was not extended: the ratio is 1.
  const bool extended = !longrope || config.original_max_position_embeddings.has_value();
  return extended || !config.max_position_embeddings.has_value() ? LengthRatio(config) : 1;
}

double BetaFast(const RopeConfig& config) {
  return config.beta_fast.value_or(0) == 0 ? 32 : *config.beta_fast;
}

double BetaSlow(const RopeConfig& config) {
  return config.beta_slow.value_or(0) == 0 ? 1 : *config.beta_slow;
}

double YarnMagnitude(double mscale, double factor, double all_dim, double attn_factor) {
  const Quad tenth = factor <= 1 ? Quad{0} : QuadLog(factor) / 10;
  return static_cast<double>(attn_factor * (mscale * tenth + 1) / (all_dim * tenth + 1));
}

YarnEdges TurnEdges(const RopeConfig& config, int64_t rotary_dim, double fast, double slow) {
  const auto length = static_cast<Quad>(*OriginalLength(config));
  const Quad half_dim = static_cast<Quad>(rotary_dim) / 2;
  const Quad log_theta = QuadLog(config.rope_theta);
  const auto edge = [&](double turns) {
    return ToSignificand64(half_dim * QuadLog(length / (2 * kQuadPi * turns)) / log_theta);
  };
  return {.low = edge(fast), .high = edge(slow)};
}

YarnEdges YarnRampEdges(const RopeConfig& config, int64_t rotary_dim, bool truncate) {
  YarnEdges edges = TurnEdges(config, rotary_dim, BetaFast(config), BetaSlow(config));
  if (truncate) edges = {.low = std::floor(edges.low), .high = std::ceil(edges.high)};
  edges.low = std::max(edges.low, 0.0L);
  edges.high = std::min(edges.high, static_cast<long double>(rotary_dim - 1));
  if (edges.low == edges.high) edges.high = ToSignificand64(edges.high + Quad{1} / 1000);
  return edges;
}

double AttentionFactor(const RopeConfig& config, bool ignore_explicit) {
  if (!ReadsAttentionFactor(config)) return 1;
  if (config.attention_factor.has_value() && !ignore_explicit) return *config.attention_factor;
  if (!config.inv_freq.empty()) return 1;
  const double factor = *EffectiveFactor(config);
  if (config.rope_type == RopeType::kYarn) {
    const double mscale = config.mscale.value_or(0);
    const double all_dim = config.mscale_all_dim.value_or(0);
    const double attn_factor = config.attn_factor.value_or(1);
    if (mscale == 0 || all_dim == 0) return YarnMagnitude(1, factor, 0, attn_factor);
    return YarnMagnitude(mscale, factor, all_dim, attn_factor);
  }
  if (factor <= 1) return 1;
  const auto length = static_cast<Quad>(*OriginalLength(config));
  return static_cast<double>(QuadSqrt(1 + QuadLog(factor) / QuadLog(length)));
}

bool TakesLongFactors(const RopeConfig& config, int64_t seq_len) {
  if (config.longrope_branch.has_value()) return config.longrope_branch == LongropeBranch::kLong;
  return seq_len > *OriginalLength(config);
}

Quad DynamicTheta(const RopeConfig& config, int64_t rotary_dim, int64_t seq_len) {
  const Quad theta = config.rope_theta;
  const auto dim = static_cast<Quad>(rotary_dim);
  const Quad exponent = dim / (dim - 2);
  if (config.alpha.has_value()) return theta * QuadPow(*config.alpha, exponent);
  const int64_t length = *config.max_position_embeddings;
  if (seq_len <= length) return theta;
  const Quad factor = *config.factor;
  const Quad ratio = static_cast<Quad>(seq_len) / static_cast<Quad>(length);
  // factor * ratio - factor + 1, rearranged to avoid cancellation.
  return theta * QuadPow(factor * (ratio - 1) + 1, exponent);
}

namespace {

constexpr int64_t kLengthMax = int64_t{1} << 53;      // a double holds every length
constexpr int64_t kXPosCentreMax = int64_t{1} << 30;  // the largest position

absl::Status CheckPositive(std::string_view field, std::optional<double> value) {
  if (value.has_value() && (!std::isfinite(*value) || *value <= 0)) {
    return InvalidField(field, *value, "a finite number > 0");
  }
  return absl::OkStatus();
}

absl::Status CheckNotNegative(std::string_view field, const std::optional<double>& value) {
  if (value.has_value() && (!std::isfinite(*value) || *value < 0)) {
    return InvalidField(field, *value, "a finite number >= 0");
  }
  return absl::OkStatus();
}

absl::Status CheckLength(std::string_view field, const std::optional<int64_t>& value) {
  if (value.has_value() && (*value < 1 || *value > kLengthMax)) {
    return InvalidField(field, *value, "a length from 1 to 2^53");
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers(const RopeConfig& config) {
  ROPE_RETURN_IF_ERROR(CheckPositive("rope_theta", config.rope_theta));
  ROPE_RETURN_IF_ERROR(CheckPositive("factor", config.factor));
  ROPE_RETURN_IF_ERROR(CheckNotNegative("attention_factor", config.attention_factor));
  // Tables hold float32; a larger multiplier would make every entry infinite.
  if (config.attention_factor.value_or(0) > std::numeric_limits<float>::max()) {
    return InvalidField("attention_factor", *config.attention_factor, "at most 3.4e38");
  }
  ROPE_RETURN_IF_ERROR(CheckNotNegative("attn_factor", config.attn_factor));
  ROPE_RETURN_IF_ERROR(CheckPositive("alpha", config.alpha));
  ROPE_RETURN_IF_ERROR(CheckNotNegative("mixed_b", config.mixed_b));
  ROPE_RETURN_IF_ERROR(CheckNotNegative("mscale", config.mscale));
  ROPE_RETURN_IF_ERROR(CheckNotNegative("mscale_all_dim", config.mscale_all_dim));
  ROPE_RETURN_IF_ERROR(CheckNotNegative("beta_fast", config.beta_fast));
  ROPE_RETURN_IF_ERROR(CheckNotNegative("beta_slow", config.beta_slow));
  if (BetaFast(config) < BetaSlow(config)) {
    return InvalidField("beta_fast", BetaFast(config),
                        StrCat("at least beta_slow, ", BetaSlow(config)));
  }
  ROPE_RETURN_IF_ERROR(CheckPositive("low_freq_factor", config.low_freq_factor));
  ROPE_RETURN_IF_ERROR(CheckPositive("high_freq_factor", config.high_freq_factor));
  if (config.low_freq_factor.has_value() && config.high_freq_factor.has_value() &&
      *config.high_freq_factor < *config.low_freq_factor) {
    return InvalidField("high_freq_factor", *config.high_freq_factor,
                        StrCat("at least low_freq_factor, ", *config.low_freq_factor));
  }
  ROPE_RETURN_IF_ERROR(CheckLength("max_position_embeddings", config.max_position_embeddings));
  return CheckLength("original_max_position_embeddings", config.original_max_position_embeddings);
}

// If partial_rotary_factor gives an invalid rotary_dim, the error names partial_rotary_factor.
absl::Status CheckFraction(const RopeConfig& config, std::optional<int64_t> head_dim) {
  const std::optional<double> fraction = config.partial_rotary_factor;
  if (fraction.has_value() && !(*fraction > 0 && *fraction <= 1)) {
    return InvalidField("partial_rotary_factor", *fraction, "a number in (0, 1]");
  }
  if (!head_dim.has_value()) return absl::OkStatus();
  if (config.rope_type == RopeType::kProportional) {
    if (config.rotary_dim.has_value() && *config.rotary_dim != *head_dim) {
      return InvalidField("rotary_dim", *config.rotary_dim,
                          StrCat("head_dim, ", *head_dim, ", for rope_type proportional"));
    }
    if (static_cast<double>(*head_dim) * fraction.value_or(1) < 2) {
      return InvalidField("partial_rotary_factor", *fraction,
                          StrCat("at least one rotating pair of head_dim ", *head_dim));
    }
  }
  const int64_t rotary_dim = *RotaryDim(config, head_dim);
  if (rotary_dim >= 2 && rotary_dim % 2 == 0) return absl::OkStatus();
  if (!fraction.has_value() || rotary_dim == *head_dim) {
    return InvalidField("head_dim", *head_dim, "an even number where all of it rotates");
  }
  return InvalidField("partial_rotary_factor", *fraction,
                      StrCat("one that gives an even rotary_dim >= 2, which is ", rotary_dim,
                             " of head_dim ", *head_dim));
}

// The config's head_dim does not bound the offset, because tensors may have more channels.
absl::Status CheckOffset(const RopeConfig& config, std::optional<int64_t> head_dim) {
  if (!config.rotary_offset.has_value()) return absl::OkStatus();
  const bool of_tensor = head_dim.has_value() && !config.head_dim.has_value();
  const int64_t most =
      (of_tensor ? *head_dim : kHeadDimMax) - RotaryDim(config, head_dim).value_or(2);
  if (*config.rotary_offset >= 0 && *config.rotary_offset <= most) return absl::OkStatus();
  return InvalidField(
      "rotary_offset", *config.rotary_offset,
      of_tensor ? StrCat("0 to head_dim - rotary_dim, ", most) : StrCat("0 to ", most));
}

absl::Status CheckDims(const RopeConfig& config, std::optional<int64_t> head_dim) {
  const std::string range = StrCat("2 to ", kHeadDimMax);
  if (head_dim.has_value() && (*head_dim < 2 || *head_dim > kHeadDimMax)) {
    return InvalidField("head_dim", *head_dim, range);
  }
  if (const std::optional<int64_t> rotary_dim = config.rotary_dim; rotary_dim.has_value()) {
    if (*rotary_dim < 2 || *rotary_dim > kHeadDimMax || *rotary_dim % 2 != 0) {
      return InvalidField("rotary_dim", *rotary_dim, StrCat("an even number, ", range));
    }
    if (head_dim.has_value() && *rotary_dim > *head_dim) {
      return InvalidField("rotary_dim", *rotary_dim, StrCat("at most head_dim, ", *head_dim));
    }
  }
  ROPE_RETURN_IF_ERROR(CheckFraction(config, head_dim));
  return CheckOffset(config, head_dim);
}

bool HasFactor(const RopeConfig& config) {
  return !ReadsFactor(config) || EffectiveFactor(config).has_value();
}
bool HasOriginalLength(const RopeConfig& config) {
  return OriginalLength(config).has_value();
}

// A field that a type requires.
struct Need {
  RopeType type;
  std::string_view field;
  std::string_view want;
  bool (*is_met)(const RopeConfig& config);
};
constexpr std::string_view kOriginal = "original_max_position_embeddings";
constexpr std::string_view kNumber = "a number > 0";
constexpr std::string_view kLength = "a length >= 1";
constexpr std::string_view kNumbers = "rotary_dim/2 numbers > 0";
constexpr Need kNeeds[] = {
    {RopeType::kLinear, "factor", kNumber, HasFactor},
    {RopeType::kNtk, "factor", kNumber, HasFactor},
    {RopeType::kDynamic, "factor", kNumber, HasFactor},
    {RopeType::kDynamic, "max_position_embeddings", kLength,
     [](const RopeConfig& c) { return c.max_position_embeddings || c.alpha; }},
    {RopeType::kYarn, kOriginal, kLength, HasOriginalLength},
    {RopeType::kYarn, "factor", kNumber, HasFactor},
    {RopeType::kLongrope, kOriginal, kLength, HasOriginalLength},
    {RopeType::kLongrope, "short_factor", kNumbers,
     [](const RopeConfig& c) { return !c.short_factor.empty(); }},
    {RopeType::kLongrope, "long_factor", kNumbers,
     [](const RopeConfig& c) { return !c.long_factor.empty(); }},
    {RopeType::kLongrope, "factor", "a number > 0, or max_position_embeddings,",
     [](const RopeConfig& c) { return c.attention_factor.has_value() || HasFactor(c); }},
    {RopeType::kLlama3, "factor", kNumber, HasFactor},
    {RopeType::kLlama3, "low_freq_factor", kNumber,
     [](const RopeConfig& c) { return c.low_freq_factor.has_value(); }},
    {RopeType::kLlama3, "high_freq_factor", kNumber,
     [](const RopeConfig& c) { return c.high_freq_factor.has_value(); }},
    {RopeType::kLlama3, kOriginal, kLength, HasOriginalLength},
};

// Checks that the fields that the type requires are set, and values that its formulas cannot have.
absl::Status CheckType(const RopeConfig& config, std::optional<int64_t> rotary_dim) {
  const RopeType type = config.rope_type;
  for (const Need& need : kNeeds) {
    if (need.type != type || need.is_met(config)) continue;
    return InvalidField(need.field, "nothing", StrCat(need.want, " for rope_type ", Name(type)));
  }
  if (type == RopeType::kDynamic && rotary_dim == 2) {
    return InvalidField("rotary_dim", 2, "at least 4 for rope_type dynamic");
  }
  if (type == RopeType::kYarn && config.rope_theta == 1) {
    return InvalidField("rope_theta", config.rope_theta, "a base other than 1 for rope_type yarn");
  }
  const bool computes = type == RopeType::kLongrope && !config.attention_factor.has_value();
  if (computes && *EffectiveFactor(config) > 1 && *OriginalLength(config) == 1) {
    return InvalidField(kOriginal, 1, "at least 2 for rope_type longrope without attention_factor");
  }
  const bool is_known = type >= RopeType::kDefault && type <= RopeType::kProportional;
  return is_known ? absl::OkStatus() : InvalidField("rope_type", Name(type), "a known type");
}

absl::Status CheckCount(std::string_view field, size_t count, std::optional<int64_t> rotary_dim) {
  if (!rotary_dim.has_value() || static_cast<int64_t>(count) == *rotary_dim / 2) {
    return absl::OkStatus();
  }
  return InvalidField(field, StrCat(count, " numbers"), StrCat("rotary_dim/2, ", *rotary_dim / 2));
}

absl::Status CheckList(std::string_view field, const std::vector<double>& list,
                       std::optional<int64_t> rotary_dim) {
  for (size_t i = 0; i < list.size(); ++i) {
    ROPE_RETURN_IF_ERROR(CheckPositive(StrCat(field, "[", i, "]"), list[i]));
  }
  return list.empty() ? absl::OkStatus() : CheckCount(field, list.size(), rotary_dim);
}

absl::Status CheckMrope(const RopeConfig& config, std::optional<int64_t> rotary_dim) {
  const std::vector<int8_t>& axes = config.mrope->axes;
  if (!axes.empty() && !rotary_dim.has_value()) {
    return InvalidField("mrope_axes", StrCat(axes.size(), " axes"), "a head_dim");
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] >= 0 && axes[i] <= 2) continue;
    return InvalidField(StrCat("mrope_axes[", i, "]"), static_cast<int64_t>(axes[i]),
                        "0 (t), 1 (h) or 2 (w)");
  }
  if (!axes.empty()) return CheckCount("mrope_axes", axes.size(), rotary_dim);
  const std::array<int64_t, 3>& section = config.mrope->section;
  const std::string got = StrCat("[", section[0], ", ", section[1], ", ", section[2], "]");
  for (const int64_t count : section) {
    if (count < 0 || count > kHeadDimMax) {
      return InvalidField("mrope_section", got, StrCat("counts from 0 to ", kHeadDimMax));
    }
  }
  if (rotary_dim.has_value() && section[0] + section[1] + section[2] != *rotary_dim / 2) {
    return InvalidField("mrope_section", got,
                        StrCat("counts whose sum is rotary_dim/2, ", *rotary_dim / 2));
  }
  if (config.mrope->layout == Mrope::Layout::kHwInterleaved && section[1] != section[2]) {
    return InvalidField("mrope_section", got,
                        "equal counts of h and w (t, h, w), which are interleaved before t");
  }
  const bool index_decides =
      config.rope_type != RopeType::kDefault && config.rope_type != RopeType::kLinear;
  if (config.mrope->layout == Mrope::Layout::kAxial && index_decides) {
    return InvalidField("rope_type", Name(config.rope_type),
                        "default or linear with the axial layout of mrope");
  }
  return absl::OkStatus();
}

absl::Status CheckInvFreq(const RopeConfig& config, std::optional<int64_t> rotary_dim) {
  if (config.inv_freq.empty()) return absl::OkStatus();
  if (config.rope_type != RopeType::kDefault) {
    return InvalidField("rope_type", Name(config.rope_type), "default together with inv_freq");
  }
  bool turns = false;
  for (size_t i = 0; i < config.inv_freq.size(); ++i) {
    ROPE_RETURN_IF_ERROR(CheckNotNegative(StrCat("inv_freq[", i, "]"), config.inv_freq[i]));
    turns = turns || config.inv_freq[i] > 0;
  }
  if (!turns) return InvalidField("inv_freq", "only zeros", "at least one frequency > 0");
  return CheckCount("inv_freq", config.inv_freq.size(), rotary_dim);
}

absl::Status CheckXPos(const RopeConfig& config) {
  if (!config.xpos.has_value()) return absl::OkStatus();
  const XPos& xpos = *config.xpos;
  // Rows of a page differ by up to 64 steps of up to zeta^(1/scale_base). If scale_base were below
  // 1, doubles could overflow.
  if (!std::isfinite(xpos.scale_base) || xpos.scale_base < 1) {
    return InvalidField("xpos.scale_base", xpos.scale_base, "a finite number >= 1");
  }
  if (xpos.centre < 0 || xpos.centre > kXPosCentreMax) {
    return InvalidField("xpos.centre", xpos.centre, "a position from 0 to 2^30");
  }
  if (config.mrope.has_value()) {
    return InvalidField("xpos", "xpos and mrope_section", "only one of them: xPos has one axis");
  }
  if (config.precision == Precision::kHf) {
    return InvalidField("xpos", "xpos with precision hf",
                        "precision exact: Hugging Face has no xPos");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const RopeConfig& config, std::optional<int64_t> head_dim) {
  if (config.head_dim.has_value()) head_dim = config.head_dim;
  ROPE_RETURN_IF_ERROR(CheckNumbers(config));
  ROPE_RETURN_IF_ERROR(CheckDims(config, head_dim));
  const std::optional<int64_t> rotary_dim = RotaryDim(config, head_dim);
  ROPE_RETURN_IF_ERROR(CheckType(config, rotary_dim));
  ROPE_RETURN_IF_ERROR(CheckList("short_factor", config.short_factor, rotary_dim));
  ROPE_RETURN_IF_ERROR(CheckList("long_factor", config.long_factor, rotary_dim));
  ROPE_RETURN_IF_ERROR(CheckInvFreq(config, rotary_dim));
  ROPE_RETURN_IF_ERROR(CheckXPos(config));
  return config.mrope.has_value() ? CheckMrope(config, rotary_dim) : absl::OkStatus();
}

}  // namespace rope::kernels
