#include "kernels/compat/rope_readings.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numbers>
#include <tuple>
#include <utility>

#include "absl/strings/str_join.h"
#include "kernels/compat/engine_table.h"
#include "kernels/error.h"
#include "kernels/frequencies/inverse_frequencies.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

// The model that a config without names is for: some types belong to one family.
Family FamilyOfType(const RopeConfig& config) {
  if (config.rope_type == RopeType::kLongrope) return Family::kPhi3;
  return config.rope_type == RopeType::kProportional ? Family::kGemma4 : Family::kOther;
}

// Null: no such version was compared.
const EngineVersions* VersionsOf(const EngineVersion& engine) {
  for (const EngineVersions& versions : EngineTable()) {
    if (versions.engine != engine.engine) continue;
    if (engine.version.empty() || IsBetween(versions.first, engine.version, versions.last)) {
      return &versions;
    }
  }
  return nullptr;
}

// The entry of one of `versions`; empty: the newest. A model without names is one that the config's
// type is of. DeepSeek's code reads every model.
const EngineEntry* EntryOf(const EngineVersions& versions, std::string_view version,
                           const RopeConfig& config, const ModelNames& names) {
  if (versions.engine == Name(Compat::kDeepseek)) return versions.EntryFor(Family::kDeepSeek);
  const auto family = FamilyIn(versions.engine, version.empty() ? versions.last : version, names);
  return versions.EntryFor(family.value_or(FamilyOfType(config)));
}

double LargestRelative(const std::vector<InverseFrequency>& got,
                       const std::vector<InverseFrequency>& want) {
  // Another number of channels turns.
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  long double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;
    largest = std::max(largest, want[i] == 0 ? std::numeric_limits<long double>::infinity()
                                             : std::abs(got[i] / want[i] - 1));
  }
  return static_cast<double>(largest);
}

// What one entry makes of the stated config.
struct Outcome {
  Reading reading;
  bool same = false;           // the numbers are those of the answer
  std::string_view last = {};  // the newest version with this reading
};

// Unset if the entry claims nothing about the config.
std::optional<Outcome> OutcomeOf(const EngineVersions& versions, const EngineEntry& entry,
                                 const RopeConfig& stated, const ModelNames& names,
                                 const ResolvedRope& answered, int64_t seq_len) {
  Outcome outcome;
  Reading& reading = outcome.reading;
  reading.engine = versions.engine;
  RopeConfig config = stated;
  config.precision = answered.config().precision;
  const absl::StatusOr<CompatConfig> read = Convert(versions, entry, config, names);
  if (absl::IsUnimplemented(read.status())) return std::nullopt;
  if (!read.ok()) {
    reading.difference = StrCat("has no ", read.status().message());
    return outcome;
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
  outcome.same = std::abs(reading.attention_factor - factor) <= 1e-15 * factor &&
                 reading.inv_freq_max_relative <= 1e-15 &&
                 (*rope)->rotary_dim() == answered.rotary_dim();
  return outcome;
}

bool EqualNumbers(const Outcome& a, const Outcome& b) {
  return a.same == b.same && a.reading.attention_factor == b.reading.attention_factor &&
         a.reading.inv_freq_max_relative == b.reading.inv_freq_max_relative;
}

// Whether the entry is for models that one engine treats in another way than the rest (FamilyIn).
bool SinglesOut(const EngineEntry& entry) {
  return !entry.families.empty() && entry.families.front() >= Family::kTransformers;
}

// What `versions` make of the config of a model without names. Unset unless they cover ordinary
// models and all entries that claim something claim the same. Models that an engine singles out are
// few, and named: they do not count.
std::optional<Outcome> OutcomeOfAnyModel(const EngineVersions& versions, const RopeConfig& stated,
                                         const ResolvedRope& answered, int64_t seq_len) {
  if (versions.EntryFor(Family::kOther) == nullptr) return std::nullopt;
  std::optional<Outcome> common;
  for (const EngineEntry* const entry : versions.entries) {
    if (SinglesOut(*entry)) continue;
    std::optional<Outcome> outcome = OutcomeOf(versions, *entry, stated, {}, answered, seq_len);
    if (!outcome.has_value()) continue;
    if (common.has_value() && !EqualNumbers(*common, *outcome)) return std::nullopt;
    common = std::move(outcome);
  }
  return common;
}

}  // namespace

std::string_view Name(Compat compat) {
  constexpr std::string_view kNames[] = {"default", "hf", "vllm", "llamacpp", "deepseek"};
  const auto index = static_cast<size_t>(compat);
  return index < std::size(kNames) ? kNames[index] : "invalid";
}

absl::StatusOr<EngineVersion> SplitEngine(std::string_view text) {
  const size_t at = text.find('@');
  EngineVersion engine = {.engine = std::string(text.substr(0, at))};
  const std::vector<std::string> names = EngineNames();
  const bool known = std::find(names.begin(), names.end(), engine.engine) != names.end();
  if (!known || at + 1 == text.size()) {
    return InvalidField("engine", text.empty() ? "nothing" : text,
                        StrCat("NAME or NAME@VERSION, NAME one of ", absl::StrJoin(names, ", ")));
  }
  if (at != std::string_view::npos) engine.version = std::string(text.substr(at + 1));
  return engine;
}

absl::StatusOr<EngineVersion> ParseEngine(std::string_view text) {
  ROPE_ASSIGN_OR_RETURN(EngineVersion engine, SplitEngine(text));
  if (engine.version.empty()) return engine;
  if (VersionsOf(engine) != nullptr) return engine;
  return InvalidField("engine", text,
                      StrCat("a version that was compared: ",
                             absl::StrJoin(ComparedVersions(engine.engine), ", ")));
}

absl::StatusOr<EngineConfig> ReadAs(const RopeConfig& config, const EngineVersion& engine,
                                    const ModelNames& names, std::optional<int64_t> max_model_len,
                                    std::string_view field) {
  const auto has_no = [&](std::string_view what) {
    return InvalidField(field,
                        StrCat(engine.engine, engine.version.empty() ? "" : "@", engine.version,
                               ", which has no ", what),
                        "another");
  };
  const EngineVersions* const versions = VersionsOf(engine);
  const EngineEntry* const entry =
      versions == nullptr ? nullptr : EntryOf(*versions, engine.version, config, names);
  if (entry == nullptr) return has_no("reading of this model that was checked");
  absl::StatusOr<CompatConfig> read = Convert(*versions, *entry, config, names, max_model_len);
  if (absl::IsUnimplemented(read.status())) {
    return has_no(StrCat("reading that was checked of ", read.status().message()));
  }
  if (!read.ok()) return has_no(StrCat(read.status().message()));
  return EngineConfig{*std::move(read), std::string(versions->who),
                      Versions(versions->first, versions->last)};
}

absl::StatusOr<CompatConfig> ApplyCompat(const RopeConfig& config, Compat compat,
                                         const ModelNames& names) {
  if (compat == Compat::kDefault) return CompatConfig{.config = config, .changes = {}};
  ROPE_ASSIGN_OR_RETURN(EngineConfig read, ReadAs(config, {.engine = std::string(Name(compat))},
                                                  names, std::nullopt, "compat"));
  return std::move(read.read);
}

std::vector<Reading> Readings(const RopeConfig& stated, const ModelNames& names,
                              const ResolvedRope& answered, int64_t seq_len) {
  std::vector<Reading> readings;
  std::optional<Outcome> newer;  // of the versions after `versions`
  for (const EngineVersions& versions : EngineTable()) {
    const auto& [engine, who, first, newest, entries] = versions;
    const std::optional<Family> family = FamilyIn(engine, first, names, newest);
    std::optional<Outcome> outcome;
    if (!family.has_value()) {
      outcome = OutcomeOfAnyModel(versions, stated, answered, seq_len);
    } else if (const EngineEntry* entry = versions.EntryFor(*family); entry != nullptr) {
      outcome = OutcomeOf(versions, *entry, stated, names, answered, seq_len);
    }
    if (outcome.has_value() && !outcome->same) {
      const bool joins = newer.has_value() && newer->reading.engine == engine &&
                         newer->reading.difference == outcome->reading.difference &&
                         EqualNumbers(*newer, *outcome);
      outcome->last = joins ? newer->last : newest;
      outcome->reading.version = Versions(first, outcome->last);
      outcome->reading.executed = ExecutedVersions(engine, first, outcome->last);
      if (joins) readings.pop_back();
      readings.push_back(outcome->reading);
    }
    newer = std::move(outcome);
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

std::vector<FrequencyScaling> ScalingOf(const ResolvedRope& rope,
                                        const ResolvedRope::AtSeqLen& evaluated) {
  const RopeConfig& config = rope.config();
  const auto plain = config.inv_freq.empty() ? UnscaledFrequencies(config) : evaluated.inv_freq;
  const bool blends = RampOf(rope).has_value();
  const long double rounding = config.precision == Precision::kExact ? 1e-15L : 1e-5L;
  std::vector<FrequencyScaling> columns;
  for (size_t i = 0; i < evaluated.inv_freq.size(); ++i) {
    const long double number = evaluated.inv_freq[i];
    const auto is = [&](long double other) { return std::abs(number - other) <= rounding * other; };
    if (number == 0) {
      columns.push_back(FrequencyScaling::kStill);
    } else if (is(plain[i])) {
      columns.push_back(FrequencyScaling::kKept);
    } else {
      columns.push_back(blends && !is(plain[i] / *config.factor) ? FrequencyScaling::kBlended
                                                                 : FrequencyScaling::kScaled);
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

namespace {

// Each Remark function checks one kind of setting. Remarks(), at the end, calls all of them.
using List = std::vector<Remark>;

// A setting that the type does not use is probably meant for another type.
void RemarkUnread(const RopeConfig& config, List& list) {
  const RopeType type = config.rope_type;
  const bool yarn = type == RopeType::kYarn;
  const bool llama3 = type == RopeType::kLlama3;
  const bool longrope = type == RopeType::kLongrope;
  const bool dynamic = type == RopeType::kDynamic;
  const std::tuple<std::string_view, bool, bool> settings[] = {
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
  for (const auto& [field, given, read] : settings) {
    if (!given || read) continue;
    // A factor or its lists without a type that uses them: the scaling was forgotten.
    const bool loud = type == RopeType::kDefault &&
                      (field == "factor" || field == "short_factor" || field == "long_factor");
    AddRemark(list, loud ? RemarkKind::kNoEffect : RemarkKind::kUnusedSetting, field,
              " has no effect for rope_type ", Name(type));
  }
}

// Settings that have no effect because of another setting.
void RemarkUnusedFields(const RopeConfig& config, List& list) {
  if (config.rope_type == RopeType::kYarn) {
    if (config.attention_factor.has_value() && config.attn_factor.has_value()) {
      AddRemark(list, RemarkKind::kUnusedSetting,
                "attn_factor has no effect with attention_factor");
    }
    if (config.truncate.has_value() && config.ramp == YarnRamp::kTurns) {
      AddRemark(list, RemarkKind::kUnusedSetting,
                "truncate has no effect with ramp turns, which has no edges to round");
    }
  }
  if (config.rope_type == RopeType::kDynamic && config.alpha.has_value() &&
      config.factor.value_or(1) != 1) {
    AddRemark(list, RemarkKind::kUnusedSetting, "factor ", *config.factor,
              " has no effect with alpha, which fixes the base");
  }
}

// Explicit values that replace the result of a formula.
void RemarkExplicit(const RopeConfig& config, std::optional<int64_t> head_dim, List& list) {
  if (config.longrope_branch.has_value() && config.rope_type == RopeType::kLongrope) {
    AddRemark(list, RemarkKind::kExplicitNumbers, "longrope_branch: the ",
              config.longrope_branch == LongropeBranch::kLong ? "long" : "short",
              " list is used for every length");
  }
  for (size_t i = 1; i < config.inv_freq.size(); ++i) {
    if (config.inv_freq[i] <= config.inv_freq[i - 1]) continue;
    AddRemark(list, RemarkKind::kExplicitNumbers, "inv_freq[", i, "] ", config.inv_freq[i],
              " is larger than ", config.inv_freq[i - 1],
              " before it: inverse frequencies usually fall");
    break;
  }
  const std::optional<int64_t> rotary_dim = RotaryDim(config, head_dim);
  if (config.rope_type == RopeType::kDynamic && config.alpha.has_value() &&
      rotary_dim.has_value()) {
    AddRemark(list, RemarkKind::kExplicitNumbers, "alpha ", *config.alpha, " enlarges the base to ",
              static_cast<double>(DynamicTheta(config, *rotary_dim, 1)), " at every length");
  }
  if (!config.xpos.has_value()) return;
  AddRemark(list, RemarkKind::kExplicitNumbers,
            "xpos: q and k scale in opposite directions, so each tensor's role counts; "
            "FlashAttention's centre moves with its cache, here it stays at ",
            config.xpos->centre);
}

void RemarkRotaryDim(const RopeConfig& config, std::optional<int64_t> head_dim, List& list) {
  if (!config.partial_rotary_factor.has_value() || !head_dim.has_value() ||
      config.rope_type == RopeType::kProportional) {
    return;
  }
  const double product = static_cast<double>(*head_dim) * *config.partial_rotary_factor;
  const int64_t rotary_dim = *RotaryDim(config, head_dim);
  if (config.rotary_dim.has_value() && rotary_dim != static_cast<int64_t>(product)) {
    AddRemark(list, RemarkKind::kOverriddenValue, "rotary_dim ", rotary_dim,
              " is used; partial_rotary_factor would give ", static_cast<int64_t>(product));
  } else if (!config.rotary_dim.has_value() && product != std::floor(product)) {
    AddRemark(list, RemarkKind::kRotaryChannels, "head_dim * partial_rotary_factor is ", product,
              ", truncated to a rotary_dim of ", rotary_dim);
  }
}

void RemarkOffset(const RopeConfig& config, std::optional<int64_t> head_dim, List& list) {
  if (!config.rotary_offset.has_value() || !head_dim.has_value()) return;
  const int64_t end = *config.rotary_offset + *RotaryDim(config, head_dim);
  if (end <= *head_dim) return;
  AddRemark(list, RemarkKind::kRotaryChannels, "rotary_offset ", *config.rotary_offset,
            ": the window ends at channel ", end, ", past head_dim ", *head_dim,
            "; tensors need at least ", end, " channels a head");
}

void RemarkFactor(const RopeConfig& config, List& list) {
  const std::optional<double> factor = EffectiveFactor(config);
  if (!ReadsFactor(config) || factor.value_or(1) >= 1) return;
  AddRemark(list, RemarkKind::kFactorBelowOne, "factor ", *factor,
            " is below 1: scaled frequencies turn ", 1 / *factor,
            " times faster instead of slower");
}

// yarn and longrope: the factor should equal the ratio of the two lengths.
void RemarkLengths(const RopeConfig& config, List& list) {
  const RopeType type = config.rope_type;
  if (type != RopeType::kYarn && type != RopeType::kLongrope) return;
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
      AddRemark(list, RemarkKind::kDefaultAssumed,
                "factor absent, taken as max_position_embeddings / "
                "original_max_position_embeddings, ",
                *ratio);
    }
  } else if (*config.factor != *ratio) {
    AddRemark(list, RemarkKind::kLengthRatio, "factor ", *config.factor,
              " contradicts max_position_embeddings / original_max_position_embeddings, ", *ratio,
              "; ", *config.factor, " is used (attention factor ", AttentionFactor(config),
              "; the ratio would give ", AttentionFactor(by_ratio), ")");
  }
}

void RemarkLlama3(const RopeConfig& config, List& list) {
  if (config.rope_type != RopeType::kLlama3) return;
  const int64_t original = *OriginalLength(config);
  const int64_t length = config.max_position_embeddings.value_or(original + 1);
  if (length <= original) {
    AddRemark(list, RemarkKind::kNoExtension, "max_position_embeddings ", length,
              " is not above original_max_position_embeddings, ", original,
              ": llama3 scales for a length that the model does not have");
  }
  if (*config.high_freq_factor == *config.low_freq_factor) {
    AddRemark(list, RemarkKind::kEqualFrequencyFactors, "high_freq_factor equals low_freq_factor, ",
              *config.low_freq_factor, ": frequencies are kept or divided by ", *config.factor,
              ", none is blended");
  }
}

void RemarkAttentionFactor(const RopeConfig& config, List& list) {
  if (config.rope_type != RopeType::kYarn) return;
  if (config.attention_factor.has_value()) {
    const double computed = AttentionFactor(config, /*ignore_explicit=*/true);
    if (std::abs(computed - *config.attention_factor) > 1e-6 * computed) {
      AddRemark(list, RemarkKind::kExplicitNumbers, "attention_factor ", *config.attention_factor,
                " replaces the computed one, ", computed);
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
  AddRemark(list, RemarkKind::kLoneMscale,
            mscale ? "mscale without mscale_all_dim" : "mscale_all_dim without mscale",
            " is ignored, as Hugging Face does (attention factor ", AttentionFactor(config),
            "); DeepSeek-style code uses it with 1 as the ", mscale ? "denominator" : "mscale",
            " and gets ", other);
}

void RemarkYarnRamp(const RopeConfig& config, std::optional<int64_t> head_dim, List& list) {
  if (config.rope_type != RopeType::kYarn) return;
  for (const auto& [field, beta, taken] :
       {std::tuple("beta_fast", config.beta_fast, BetaFast(config)),
        std::tuple("beta_slow", config.beta_slow, BetaSlow(config))}) {
    if (beta == 0.0) {
      AddRemark(list, RemarkKind::kDefaultAssumed, field, " 0 is read as ", taken,
                ", as Hugging Face does");
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
  AddRemark(list, RemarkKind::kRoundedRamp,
            "truncate absent, taken as true; the ramp runs between ", edges);
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
  RemarkExplicit(config, head_dim, list);
  return list;
}

}  // namespace rope::kernels
