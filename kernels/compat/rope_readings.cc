#include "kernels/compat/rope_readings.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numbers>
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

// `field`: the one that named the engine.
absl::StatusOr<EngineConfig> ReadFor(std::string_view field, const RopeConfig& config,
                                     const EngineVersion& engine, const ModelNames& names,
                                     std::optional<int64_t> max_model_len) {
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

double LargestRelative(const std::vector<InverseFrequency>& got,
                       const std::vector<InverseFrequency>& want) {
  // Another number of channels turns.
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  long double largest = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
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
                                    const ModelNames& names, std::optional<int64_t> max_model_len) {
  return ReadFor("engine", config, engine, names, max_model_len);
}

absl::StatusOr<CompatConfig> ApplyCompat(const RopeConfig& config, Compat compat,
                                         const ModelNames& names) {
  if (compat == Compat::kDefault) return CompatConfig{.config = config, .changes = {}};
  ROPE_ASSIGN_OR_RETURN(
      EngineConfig read,
      ReadFor("compat", config, {.engine = std::string(Name(compat))}, names, std::nullopt));
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
  const auto plain = config.inv_freq.empty()
                         ? UnscaledFrequencies(config, rope.head_dim(), rope.rotary_dim())
                         : evaluated.inv_freq;
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

}  // namespace rope::kernels
