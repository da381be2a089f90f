#include "kernels/compat/engine_table.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/check.h"
#include "kernels/config/embedded_data.h"
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
// kWithDefaults: a missing factor is 1, a missing original length is max_position_embeddings.
template <bool kWithDefaults>
absl::Status YarnOfEveryType(std::string_view who, CompatConfig& result) {
  const RopeConfig& config = result.config;
  if (config.rope_type == RopeType::kDefault || IsYarn(result)) return absl::OkStatus();
  if (result.model_type.empty()) {  // hardly one of DeepSeek's
    return NotChecked(StrCat("rope_type ", Name(config.rope_type), " of this model"));
  }
  const std::optional<int64_t> original = config.original_max_position_embeddings;
  if (!kWithDefaults && (!config.factor.has_value() || !original.has_value())) {
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

absl::Status ClaimNoDynamic(std::string_view, CompatConfig& result) {
  return FollowsLength(result.config) ? NotChecked("dynamic without alpha") : absl::OkStatus();
}

absl::Status ClaimNoLongrope(std::string_view, CompatConfig& result) {
  return IsLongrope(result) ? NotChecked("longrope of this model") : absl::OkStatus();
}

absl::Status RefuseFourthAxis(std::string_view, CompatConfig& result) {
  const std::optional<Mrope>& mrope = result.config.mrope;
  if (!mrope.has_value() || mrope->layout != Mrope::Layout::kInterleaved) return absl::OkStatus();
  // ggml assigns the frequencies past three times a section to its fourth row of positions.
  const int64_t columns = mrope->section[0] + mrope->section[1] + mrope->section[2];
  for (int64_t j = 0; j < columns; ++j) {
    if (j % 3 == 0 || AxisOf(*mrope, j) != 0) continue;
    return Lacks(
        "interleaved mrope whose last frequencies all take t: it gives some to a fourth row of "
        "positions");
  }
  return absl::OkStatus();
}

// dynamic: the base of length max_position_embeddings * factor, or rope_theta, for every length.
void DynamicBaseOfFactor(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (!FollowsLength(config)) return;
  // The base of length max_position_embeddings * factor is that of this alpha.
  const double factor = *config.factor;
  config.alpha = factor * (factor - 1) + 1;
  config.factor.reset();
  result.changes.push_back(
      StrCat(who, " uses one base for every length, that of max_position_embeddings * factor"));
}

void DynamicUnscaled(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (!FollowsLength(config)) return;
  config.alpha = 1;
  config.factor.reset();
  result.changes.push_back(StrCat(who, " uses rope_theta unscaled at every length"));
}

// dynamic and longrope: the longest sequence of a call decides for all of them.
void DecideByBatch(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  const bool longrope = IsLongrope(result) && !config.longrope_branch.has_value();
  if (config.seq_len_policy.has_value() || (!FollowsLength(config) && !longrope)) return;
  config.seq_len_policy = SeqLenPolicy::kBatch;
  result.changes.push_back(
      StrCat(who, " decides by the longest sequence of the call, for all of its sequences"));
}

// longrope: one list for every length, by the context that the engine is started with.
void LongropeByContext(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (!IsLongrope(result) || config.longrope_branch.has_value()) return;
  const std::optional<int64_t> original = config.original_max_position_embeddings;
  const std::optional<int64_t> length =
      result.max_model_len.has_value() ? result.max_model_len : config.max_position_embeddings;
  if (!original.has_value() || !length.has_value()) return;
  config.longrope_branch = *length > *original ? LongropeBranch::kLong : LongropeBranch::kShort;
  result.changes.push_back(StrCat(
      who, " takes one list of factors for every length, the long one if it is started with a ",
      "context above ", *original));
}

// longrope: the attention factor follows from the two lengths only.
void LongropeFactorOfLengths(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  const std::optional<double> ratio = LengthRatio(config);
  if (!IsLongrope(result) || !ratio.has_value()) return;
  RopeConfig by_ratio = config;
  by_ratio.factor = ratio;
  const double computed = AttentionFactor(by_ratio, /*ignore_explicit=*/true);
  if (computed == AttentionFactor(config)) return;
  config.factor = ratio;
  config.attention_factor.reset();
  result.changes.push_back(
      StrCat(who, " computes the attention factor from the length ratio, ", computed));
}

void DropProportionalFactor(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (config.rope_type != RopeType::kProportional) return;
  if (config.factor.value_or(1) != 1) {
    result.changes.push_back(StrCat(who, " ignores the factor of proportional"));
  }
  config.factor.reset();
}

// Plain rotation, whatever the rope_type.
void DropScaling(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (config.rope_type == RopeType::kDefault) return;
  result.changes.push_back(
      StrCat(who, " ignores rope_type ", Name(config.rope_type), " for this model"));
  config = WithoutScaling(config);
}

absl::Status DropAllButLongrope(std::string_view who, CompatConfig& result) {
  if (IsLongrope(result)) return absl::OkStatus();
  if (result.model_type.empty()) return NotChecked("this model");  // hardly a Phi-3
  DropScaling(who, result);
  return absl::OkStatus();
}

// Plain rotation for the types of which llama.cpp's converter writes nothing that counts.
void DropUnwrittenButLlama3(std::string_view who, CompatConfig& result) {
  const RopeConfig& config = result.config;
  const bool unwritten = FollowsLength(config) || config.rope_type == RopeType::kNtk ||
                         IsLongrope(result) || (IsYarn(result) && !config.factor.has_value());
  if (unwritten) DropScaling(who, result);
}

void DropUnwritten(std::string_view who, CompatConfig& result) {
  if (result.config.rope_type == RopeType::kLlama3) return DropScaling(who, result);
  DropUnwrittenButLlama3(who, result);
}

// linear of every rope_type that has a factor.
void LinearOfFactor(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  const std::optional<double> factor = config.factor;
  if (config.rope_type == RopeType::kLinear) return;
  DropScaling(who, result);
  if (!factor.has_value()) return;
  config.rope_type = RopeType::kLinear;
  config.factor = factor;
  result.changes.push_back(StrCat(who, " makes linear of the factor"));
}

// The engine does not find rope_theta, and takes its default.
template <int64_t kTheta>
void DefaultTheta(std::string_view who, CompatConfig& result) {
  if (result.config.rope_theta == kTheta) return;
  result.config.rope_theta = kTheta;
  result.changes.push_back(StrCat(who, " uses rope_theta ", kTheta, " for this model, always"));
}

// A quarter of the channels turns, whatever partial_rotary_factor says.
void TurnAQuarter(std::string_view who, CompatConfig& result) {
  constexpr double kFraction = 0.25;
  RopeConfig& config = result.config;
  if (config.partial_rotary_factor == kFraction) return;
  config.partial_rotary_factor = kFraction;
  config.rotary_dim.reset();
  result.changes.push_back(StrCat(who,
                                  " turns a quarter of the channels: it reads "
                                  "partial_rotary_factor at the top level only"));
}

// yarn: fields that the engine does not read. kAnswer: Lacks or NotChecked.
template <absl::Status (*kAnswer)(std::string_view)>
absl::Status YarnWithoutFactor(std::string_view, CompatConfig& result) {
  if (!IsYarn(result) || result.config.factor.has_value()) return absl::OkStatus();
  return kAnswer("yarn without factor");
}

absl::Status RefuseBetaZero(std::string_view, CompatConfig& result) {
  const RopeConfig& config = result.config;
  if (!IsYarn(result) || (config.beta_fast != 0.0 && config.beta_slow != 0.0)) {
    return absl::OkStatus();
  }
  return Lacks("beta_fast or beta_slow of 0: it divides by them");
}

void DropBetas(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (!IsYarn(result) || (BetaFast(config) == 32 && BetaSlow(config) == 1)) return;
  config.beta_fast = 32;
  config.beta_slow = 1;
  result.changes.push_back(
      StrCat(who, " uses beta_fast 32 and beta_slow 1 for this model, whatever the config says"));
}

void DropTruncate(std::string_view who, CompatConfig& result) {
  if (!IsYarn(result) || result.config.truncate.value_or(true)) return;
  result.config.truncate = true;
  result.changes.push_back(StrCat(who, " rounds the ramp's edges regardless of truncate"));
}

void DropAttentionFactor(std::string_view who, CompatConfig& result) {
  if (!IsYarn(result) || !result.config.attention_factor.has_value()) return;
  result.config.attention_factor.reset();
  result.changes.push_back(StrCat(who, " ignores attention_factor"));
}

void DropAttnFactor(std::string_view who, CompatConfig& result) {
  if (!IsYarn(result) || !result.config.attn_factor.has_value()) return;
  if (*result.config.attn_factor != 1 && !result.config.attention_factor.has_value()) {
    result.changes.push_back(StrCat(who, " ignores attn_factor"));
  }
  result.config.attn_factor.reset();
}

// yarn: mscale and mscale_all_dim. Let g(m) be 0.1 m ln(factor) + 1. Hugging Face's attention
// factor is g(mscale) / g(mscale_all_dim) if both are set and not 0, else g(1).
// The engine's attention factor is always g(1).
void DropMscale(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (!IsYarn(result)) return;
  if (config.mscale.value_or(0) != 0 && HasAllDim(config) && !config.attention_factor.has_value()) {
    result.changes.push_back(StrCat(who, " ignores mscale and mscale_all_dim for this model"));
  }
  config.mscale.reset();
  config.mscale_all_dim.reset();
}

// An absent mscale is 1, an absent mscale_all_dim is 0: DeepSeek's formula.
void MscaleOneAllDimZero(std::string_view who, CompatConfig& result) {
  if (!IsYarn(result)) return;
  const double mscale = result.config.mscale.value_or(1);
  const double all_dim = result.config.mscale_all_dim.value_or(0);
  FixMscale(mscale, all_dim,
            StrCat(who, " reads mscale as ", mscale, " and mscale_all_dim as ", all_dim), result);
}

// A 0 counts as set.
void MscaleZeroCounts(std::string_view who, CompatConfig& result) {
  const RopeConfig& config = result.config;
  if (!IsYarn(result) || !config.mscale.has_value() || !config.mscale_all_dim.has_value()) return;
  FixMscale(*config.mscale, *config.mscale_all_dim,
            StrCat(who, " uses a mscale or mscale_all_dim of 0 like any other number"), result);
}

// mscale is 1, or equal to mscale_all_dim, if mscale_all_dim is set and not 0.
void MscaleIsOne(std::string_view who, CompatConfig& result) {
  if (!IsYarn(result) || !HasAllDim(result.config)) return;
  FixMscale(1, *result.config.mscale_all_dim,
            StrCat(who, " reads mscale as 1 if mscale_all_dim is set"), result);
}

void MscaleIsAllDim(std::string_view who, CompatConfig& result) {
  if (!IsYarn(result) || !HasAllDim(result.config)) return;
  const double all_dim = *result.config.mscale_all_dim;
  FixMscale(all_dim, all_dim,
            StrCat(who, " reads mscale as equal to mscale_all_dim, for this model"), result);
}

// yarn with mrope: four times the original length places the ramp; no mscale.
void MropeRampOfFourLengths(std::string_view who, CompatConfig& result) {
  RopeConfig& config = result.config;
  if (!IsYarn(result) || !config.mrope.has_value()) return;
  config.factor = EffectiveFactor(config);
  config.original_max_position_embeddings = 4 * *OriginalLength(config);
  result.changes.push_back(
      StrCat(who, " places the ramp of yarn with mrope by four times the original length, ",
             *config.original_max_position_embeddings));
}

absl::Status RefuseMropeMscale(std::string_view, CompatConfig& result) {
  const RopeConfig& config = result.config;
  if (!IsYarn(result) || !config.mrope.has_value()) return absl::OkStatus();
  if (!config.mscale.has_value() && !config.mscale_all_dim.has_value()) return absl::OkStatus();
  return Lacks("mscale and mscale_all_dim with mrope");
}

// A step that every config allows.
template <void (*kStep)(std::string_view, CompatConfig&)>
absl::Status Always(std::string_view who, CompatConfig& result) {
  kStep(who, result);
  return absl::OkStatus();
}

// The words of engines.json.
constexpr std::pair<std::string_view, ReadingStep> kSteps[] = {
    {"ClaimNoDynamic", ClaimNoDynamic},
    {"ClaimNoLongrope", ClaimNoLongrope},
    {"ClaimNoYarnWithoutFactor", YarnWithoutFactor<NotChecked>},
    {"ClaimNothingButYarn", ClaimNothingButYarn},
    {"DecideByBatch", Always<DecideByBatch>},
    {"DefaultTheta10000", Always<DefaultTheta<10000>>},
    {"DefaultTheta1000000", Always<DefaultTheta<1000000>>},
    {"DropAllButLongrope", DropAllButLongrope},
    {"DropAttentionFactor", Always<DropAttentionFactor>},
    {"DropAttnFactor", Always<DropAttnFactor>},
    {"DropBetas", Always<DropBetas>},
    {"DropMscale", Always<DropMscale>},
    {"DropProportionalFactor", Always<DropProportionalFactor>},
    {"DropScaling", Always<DropScaling>},
    {"DropTruncate", Always<DropTruncate>},
    {"DropUnwritten", Always<DropUnwritten>},
    {"DropUnwrittenButLlama3", Always<DropUnwrittenButLlama3>},
    {"DynamicBaseOfFactor", Always<DynamicBaseOfFactor>},
    {"DynamicUnscaled", Always<DynamicUnscaled>},
    {"LinearOfFactor", Always<LinearOfFactor>},
    {"LongropeByContext", Always<LongropeByContext>},
    {"LongropeFactorOfLengths", Always<LongropeFactorOfLengths>},
    {"MropeRampOfFourLengths", Always<MropeRampOfFourLengths>},
    {"MscaleIsAllDim", Always<MscaleIsAllDim>},
    {"MscaleIsOne", Always<MscaleIsOne>},
    {"MscaleOneAllDimZero", Always<MscaleOneAllDimZero>},
    {"MscaleZeroCounts", Always<MscaleZeroCounts>},
    {"RefuseBetaZero", RefuseBetaZero},
    {"RefuseFourthAxis", RefuseFourthAxis},
    {"RefuseModel", RefuseModel},
    {"RefuseMropeMscale", RefuseMropeMscale},
    {"RefuseYarnWithoutFactor", YarnWithoutFactor<Lacks>},
    {"TurnAQuarter", Always<TurnAQuarter>},
    {"YarnOfEveryType", YarnOfEveryType<false>},
    {"YarnOfEveryTypeWithDefaults", YarnOfEveryType<true>}};

ReadingStep StepNamed(std::string_view name) {
  const auto* const found = std::ranges::find(kSteps, name, [](auto& each) { return each.first; });
  ROPE_CHECK(found != std::end(kSteps));
  return found->second;
}

// An engine of engines.json.
struct Engine {
  std::string name;
  std::string who;
  // Ranges of versions that were compared, the newest first. A range begins where an entry begins,
  // or a fact of the models.
  std::vector<std::pair<std::string, std::string>> versions;
  // Those whose code was run. Each has a file in tests/peers/engines/data.
  std::vector<std::string> executed;
  std::vector<EngineEntry> readings;
};

Engine ReadEngine(const nlohmann::json& data) {
  Engine engine;
  data.at("engine").get_to(engine.name);
  data.at("who").get_to(engine.who);
  data.at("versions").get_to(engine.versions);
  data.at("executed").get_to(engine.executed);
  for (const nlohmann::json& reading : data.at("readings")) {
    EngineEntry& entry = engine.readings.emplace_back();
    reading.at("first").get_to(entry.first);
    reading.at("last").get_to(entry.last);
    reading.at("families").get_to(entry.families);
    for (const nlohmann::json& step : reading.at("steps")) {
      entry.steps.push_back(StepNamed(step.get<std::string>()));
    }
  }
  return engine;
}

const std::vector<Engine>& Engines() {
  static const std::vector<Engine> engines = [] {
    std::vector<Engine> read;
    const nlohmann::json data = nlohmann::json::parse(kEnginesJson);
    for (const nlohmann::json& engine : data.at("engines")) read.push_back(ReadEngine(engine));
    return read;
  }();
  return engines;
}

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
  static const std::vector<EngineVersions> table = [] {
    std::vector<EngineVersions> made;
    for (const Engine& engine : Engines()) {
      for (const auto& [first, last] : engine.versions) {
        EngineVersions& versions = made.emplace_back();
        versions = {.engine = engine.name, .who = engine.who, .first = first, .last = last};
        for (const EngineEntry& entry : engine.readings) {
          if (IsBetween(entry.first, first, entry.last)) versions.entries.push_back(&entry);
        }
      }
    }
    return made;
  }();
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
  const bool own = entry.families.empty() || !entry.Covers(Family::kTransformers);
  ROPE_RETURN_IF_ERROR(ReadFile({engine, who, first, own && engine != "hf"}, names, result));
  for (const ReadingStep step : entry.steps) ROPE_RETURN_IF_ERROR(step(who, result));
  return result;
}

std::vector<std::string> EngineNames() {
  std::vector<std::string> names;
  for (const Engine& engine : Engines()) names.push_back(engine.name);
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
  for (const Engine& each : Engines()) {
    if (each.name != engine) continue;
    for (const std::string& version : each.executed) {
      if (!IsBetween(first, version, last)) continue;
      versions += StrCat(versions.empty() ? "" : ", ", version);
    }
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
