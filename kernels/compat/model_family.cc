#include "kernels/compat/model_family.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "kernels/check.h"
#include "kernels/config/embedded_data.h"
#include "kernels/config/model_types.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"

namespace rope::kernels {

std::optional<std::vector<int64_t>> ParseRelease(std::string_view text) {
  constexpr std::string_view kPost = ".post";
  if (const size_t post = text.find(kPost); post != std::string_view::npos) {
    const std::string_view number = text.substr(post + kPost.size());
    if (number.empty() || number.find_first_not_of("0123456789") != std::string_view::npos) {
      return std::nullopt;
    }
    text = text.substr(0, post);
  }
  std::vector<int64_t> numbers;
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(text.data(), text.size()), '.')) {
    int64_t number = 0;
    if (part.empty() || !absl::ascii_isdigit(static_cast<unsigned char>(part[0])) ||
        !absl::SimpleAtoi(part, &number)) {
      return std::nullopt;
    }
    numbers.push_back(number);
  }
  while (numbers.size() > 1 && numbers.back() == 0) numbers.pop_back();  // 1.0 is 1
  return numbers;
}

bool IsBetween(std::string_view first, std::string_view version, std::string_view last) {
  const auto from = ParseRelease(first);
  const auto asked = ParseRelease(version);
  const auto to = ParseRelease(last);
  if (!from.has_value() || !asked.has_value() || !to.has_value()) return version == first;
  return *from <= *asked && *asked <= *to;
}

namespace {

using enum Family;

// The words of engines.json, in the order of Family.
constexpr std::string_view kFamilyNames[] = {
    "other",          "deepseek",   "deepseek32",       "glm4_moe_lite", "glm_moe_dsa",
    "longcat",        "ministral3", "gpt_oss",          "laguna",        "phi3",
    "minicpm",        "hunyuan",    "gemma4",           "qwen3_vl",      "unchecked",
    "transformers",   "unscaled",   "unscaled_quarter", "default_theta", "linear_of_factor",
    "base_converter", "absent"};
static_assert(std::size(kFamilyNames) == static_cast<size_t>(kAbsent) + 1);

// A model that one engine treats in another way than the rest, in the versions since one.
struct EngineModel {
  std::string engine;
  std::string architecture;
  std::string model_type;
  std::string since;
  std::string until;  // the last of them; empty: the newest
  Family family;
};

using Families = std::map<std::string, Family, std::less<>>;  // by a name of the model

// What engines.json has of models.
struct Models {
  Families architectures;
  Families model_types;
  std::vector<EngineModel> of_engines = {};
  std::vector<std::string> permuted;  // the model types whose q and k llama.cpp permutes
};

const Models& KnownModels() {
  static const Models models = [] {
    const nlohmann::json data = nlohmann::json::parse(kEnginesJson);
    Models read;
    data.at("architectures").get_to(read.architectures);
    data.at("model_types").get_to(read.model_types);
    data.at("permuted").get_to(read.permuted);
    for (const nlohmann::json& engine : data.at("engines")) {
      for (const nlohmann::json& group : engine.at("models")) {
        for (const auto& [architecture, model_type] : group.at("models").items()) {
          read.of_engines.push_back({engine.at("engine"), architecture, model_type,
                                     group.at("since"), group.value("until", std::string()),
                                     group.at("family").get<Family>()});
        }
      }
    }
    return read;
  }();
  return models;
}

// Engines choose by the first architecture that they know; without one, model_type decides.
bool Serves(const EngineModel& model, const ModelNames& names) {
  if (names.architectures.empty()) return model.model_type == names.model_type;
  return model.architecture == names.architectures.front();
}

std::optional<Family> Find(const Families& families, std::string_view name) {
  const auto found = families.find(name);
  return found == families.end() ? std::nullopt : std::optional<Family>(found->second);
}

}  // namespace

void from_json(const nlohmann::json& word, Family& family) {
  const auto* const found = absl::c_find(kFamilyNames, word.get_ref<const std::string&>());
  ROPE_CHECK(found != std::end(kFamilyNames));
  family = static_cast<Family>(found - std::begin(kFamilyNames));
}

std::optional<Family> FamilyOf(const ModelNames& names) {
  bool text_model = false;
  for (const std::string& architecture : names.architectures) {
    if (const auto family = Find(KnownModels().architectures, architecture)) return family;
    text_model |= architecture.ends_with("ForCausalLM");
  }
  std::string_view type = names.model_type;
  if (text_model) return type == "phi4mm" ? kUnchecked : kOther;
  if (type.empty() && names.architectures.empty()) return std::nullopt;
  constexpr std::string_view kText = "_text";
  if (type.ends_with(kText)) type.remove_suffix(kText.size());
  return Find(KnownModels().model_types, type).value_or(kOther);
}

EnginePairs PairsIn(std::string_view engine, const LayerConfig& layer,
                    std::optional<Pairing> chosen) {
  EnginePairs pairs = {.pairing = chosen.has_value() ? chosen : layer.pairing};
  const bool llama_cpp = engine == "llamacpp";
  // Consolidated weights of Mistral have interleaved pairs: vLLM permutes q and k when it loads
  // them, and llama.cpp permutes those of Hugging Face instead.
  const bool consolidated =
      !chosen.has_value() && layer.pairing == Pairing::kInterleaved &&
      (layer.names.model_type == "mistral" || layer.names.model_type == "mixtral");
  if (consolidated && (engine == "vllm" || llama_cpp)) pairs.pairing = Pairing::kHalf;
  if (llama_cpp && pairs.pairing == Pairing::kHalf &&
      absl::c_linear_search(KnownModels().permuted, layer.names.model_type)) {
    pairs.channel_order = Pairing::kInterleaved;
  }
  // models/chatglm.py of SGLang and conversion/chatglm.py of llama.cpp do not read original_rope.
  pairs.misread = !chosen.has_value() && layer.names.model_type == "chatglm" &&
                  pairs.pairing == Pairing::kHalf && (engine == "sglang" || llama_cpp);
  if (pairs.misread) pairs.pairing = Pairing::kInterleaved;
  // The order that Hugging Face's code leaves; the other engines and this service turn in place.
  if (engine == "hf" && pairs.pairing == layer.pairing) pairs.channel_order = layer.channel_order;
  return pairs;
}

RopeConfig WithoutScaling(const RopeConfig& config) {
  return {.rope_theta = config.rope_theta,
          .head_dim = config.head_dim,
          .rotary_dim = config.rotary_dim,
          .partial_rotary_factor = config.partial_rotary_factor,
          .max_position_embeddings = config.max_position_embeddings,
          .mrope = config.mrope,
          .rotary_offset = config.rotary_offset,
          .precision = config.precision};
}

namespace {

// Whether an engine loads files with transformers 4. vLLM requires transformers < 5 until 0.18.1,
// SGLang 4.57.1 in 0.5.9 and 5.3.0 from 0.5.10 on.
bool UsesTransformers4(std::string_view engine, std::string_view version) {
  if (engine == "vllm") return ParseRelease(version) < ParseRelease("0.19.0");
  return engine == "sglang" && ParseRelease(version) < ParseRelease("0.5.10");
}

// transformers 4 knows rope_theta, partial_rotary_factor and rope_scaling alone.
// vllm/transformers_utils/config.py, patch_rope_parameters, of 0.12.0 to 0.18.1 reads the attribute
// rope_parameters, and writes the attribute rope_theta over that of the block. SGLang's
// models/deepseek_v2.py reads the attribute too, and models/glm4.py all of it but the scaling.
absl::Status ReadByOlder(const FileReader& reader, const ModelNames& names, CompatConfig& result) {
  if (!UsesTransformers4(reader.engine, reader.version) || !names.newer_keys ||
      !names.older_theta.has_value()) {
    return absl::OkStatus();
  }
  const bool keeps =
      reader.own && reader.engine == "vllm" && IsBetween("0.12.0", reader.version, "0.18.1");
  if (keeps && names.by_layer_type) {
    return absl::InvalidArgumentError("rope_parameters by layer type");
  }
  const bool sglang = reader.own && reader.engine == "sglang";
  const std::string_view model_type = names.model_type;
  if (sglang && (model_type == "deepseek_v2" || model_type == "deepseek_v3")) {
    return absl::OkStatus();
  }
  const bool unscales = sglang && model_type == "glm4";
  RopeConfig& config = result.config;
  const bool scaled = config.rope_type != RopeType::kDefault;
  const double theta = unscales ? config.rope_theta : *names.older_theta;
  const double fraction = ModelTypeOf(model_type).defaults.value("partial_rotary_factor", 1.0);
  const bool loses_fraction = !keeps && !unscales && names.fraction_in_parameters &&
                              config.partial_rotary_factor != fraction;
  if (config.rope_theta == theta && (keeps || !scaled) && !loses_fraction) return absl::OkStatus();
  if (!keeps) config = WithoutScaling(config);
  config.rope_theta = theta;
  if (loses_fraction) {
    config.rotary_dim.reset();
    config.partial_rotary_factor = fraction;
  }
  result.changes.push_back(
      StrCat(reader.who, " loads the file with Transformers 4, which does not read ",
             keeps ? "rope_theta of rope_parameters: " : "rope_parameters: ", "rope_theta ",
             config.rope_theta, keeps || !scaled ? "" : ", no scaling",
             loses_fraction ? StrCat(", partial_rotary_factor ", fraction) : ""));
  return absl::OkStatus();
}

// Of transformers 5.23.0 only models/{phi3,phi4_multimodal}/configuration_*.py know su, and make
// longrope of it after the original length at the top level was looked for. vLLM has needed
// Transformers 5 since 0.25.0, and SGLang since 0.5.12 or before.
absl::Status CheckOldName(std::string_view engine, std::string_view version,
                          const ModelNames& names) {
  const bool hf = engine == "hf";
  const bool vllm = engine == "vllm";
  if (!names.is_su || !HasModelType(names.model_type)) return absl::OkStatus();
  if (!hf && !vllm && engine != "sglang") return absl::OkStatus();
  const bool known = names.model_type == "phi3" || names.model_type == "phi4_multimodal";
  if (!known && !hf) return absl::UnimplementedError("rope_type su of this model");
  const bool newer = hf || ParseRelease(version) >= ParseRelease(vllm ? "0.25.0" : "0.5.12");
  if (known && (names.length_in_parameters || !newer)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("rope_type su ",
             known ? "without original_max_position_embeddings beside it" : "for this model",
             ": Transformers 5 refuses the file; longrope is its new name"));
}

}  // namespace

absl::Status ReadFile(const FileReader& reader, const ModelNames& names, CompatConfig& result) {
  ROPE_RETURN_IF_ERROR(CheckOldName(reader.engine, reader.version, names));
  if (reader.engine == "llamacpp" && names.replaced != nullptr) {
    result.config = *names.replaced;
    result.changes.push_back(StrCat(reader.who, " reads rope_parameters, and not rope_scaling"));
  }
  if (reader.own && names.stated_channels.has_value()) {
    result.config.rotary_dim = names.stated_channels;
    result.config.partial_rotary_factor.reset();
    result.changes.push_back(StrCat(reader.who, " turns the ", *names.stated_channels,
                                    " channels that the file states"));
  }
  return ReadByOlder(reader, names, result);
}

namespace {

using Release = std::optional<std::vector<int64_t>>;

// The architectures of each engine's registry. The release is the newest one read that lacks the
// architecture; a later one brought it. It is unset where the oldest release read has it.
using Registries = std::map<std::string, std::map<std::string, Release>, std::less<>>;

Registries ReadRegistries() {
  Registries registries;
  const nlohmann::json data = nlohmann::json::parse(kRegistriesJson);
  for (const auto& [engine, versions] : data.items()) {
    std::map<Release, std::string> by_release;
    for (const auto& [version, list] : versions.items()) by_release[ParseRelease(version)] = list;
    for (Release lacking; const auto& [release, list] : by_release) {
      for (const absl::string_view name : absl::StrSplit(list, ' ')) {
        registries[engine].emplace(name, lacking);
      }
      lacking = release;
    }
  }
  return registries;
}

// Whether the registry of `engine` may have an architecture in `version`. True without
// architectures, and of an engine without a registry.
bool HasClass(std::string_view engine, std::string_view version, const ModelNames& names) {
  static const Registries registries = ReadRegistries();
  const auto registry = registries.find(engine);
  if (registry == registries.end() || names.architectures.empty()) return true;
  return absl::c_any_of(names.architectures, [&](const std::string& architecture) {
    const auto found = registry->second.find(architecture);
    if (found == registry->second.end()) return false;
    return !found->second.has_value() || found->second < ParseRelease(version);
  });
}

}  // namespace

std::optional<Family> FamilyIn(std::string_view engine, std::string_view version,
                               const ModelNames& names, std::string_view last) {
  for (const EngineModel& model : KnownModels().of_engines) {
    if (model.engine != engine || !Serves(model, names)) continue;
    if (ParseRelease(version) < ParseRelease(model.since)) continue;
    if (!model.until.empty() && ParseRelease(version) > ParseRelease(model.until)) continue;
    // SGLang's models/stablelm.py reads partial_rotary_factor at the top level only, where its
    // config class has 0.25.
    const bool quarter =
        model.engine == "sglang" && model.model_type == "stablelm" && names.fraction_in_parameters;
    return quarter ? kUnscaledQuarter : model.family;
  }
  if (HasClass(engine, last.empty() ? version : last, names)) return FamilyOf(names);
  // vLLM and SGLang serve models of transformers without a class of their own.
  const ModelType& type = ModelTypeOf(names.model_type);
  if (engine == "llamacpp") return kAbsent;
  if (!type.of_transformers) return kUnchecked;
  const bool unknown = UsesTransformers4(engine, version) && !type.theta_4.has_value();
  return unknown ? kAbsent : kTransformers;
}

}  // namespace rope::kernels
