#include "kernels/compat/model_family.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "kernels/config/embedded_data.h"
#include "kernels/config/model_types.h"
#include "kernels/error.h"

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

// An empty name is none.
struct KnownModel {
  std::string_view architecture;
  std::string_view model_type;
  Family family;
};

// Sources: the registries of vLLM 0.33.0 (model_executor/models/registry.py) and SGLang 0.5.23
// (EntryClass of each models/*.py), and the classes that llama.cpp 0c1e57098 registers in
// conversion/*.py.
constexpr KnownModel kModels[] = {
    {"AXK1ForCausalLM", "axk1", kUnchecked},
    {"DeepseekOCRForCausalLM", "deepseek_ocr", kUnchecked},
    {"DeepseekV2ForCausalLM", "deepseek_v2", kDeepSeek},
    {"DeepseekV32ForCausalLM", "deepseek_v32", kDeepSeek32},
    {"DeepseekV3ForCausalLM", "deepseek_v3", kDeepSeek},
    {"DeepseekV41ForCausalLM", "", kUnchecked},
    {"DeepseekV4ForCausalLM", "deepseek_v4", kUnchecked},
    {"DeepseekVLV2ForCausalLM", "deepseek_vl_v2", kDeepSeek},
    {"Gemma4ForCausalLM", "gemma4", kGemma4},
    {"Glm4MoeLiteForCausalLM", "glm4_moe_lite", kGlm4MoeLite},
    {"Glm5NextForCausalLM", "glm5_next", kUnchecked},
    {"GlmMoeDsaForCausalLM", "glm_moe_dsa", kGlmMoeDsa},
    {"GptOssForCausalLM", "gpt_oss", kGptOss},
    {"Grok1ForCausalLM", "grok", kUnchecked},
    {"Grok1ModelForCausalLM", "", kUnchecked},
    {"HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", kHunyuan},
    {"HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", kHunyuan},
    {"KimiLinearForCausalLM", "kimi_linear", kUnchecked},
    {"LagunaForCausalLM", "laguna", kLaguna},
    {"LongcatFlashForCausalLM", "longcat_flash", kLongcat},
    {"MiniCPM3ForCausalLM", "minicpm3", kMiniCpm},
    {"MiniCPMForCausalLM", "minicpm", kMiniCpm},
    {"Ministral3ForCausalLM", "ministral3", kMinistral3},
    {"Mistral4ForCausalLM", "mistral4", kUnchecked},
    {"MistralLarge3ForCausalLM", "", kUnchecked},
    {"Phi3ForCausalLM", "phi3", kPhi3},
    {"Phi4ForCausalLMV", "", kUnchecked},
    {"PhiMoEForCausalLM", "phimoe", kUnchecked},
    {"SarvamMLAForCausalLM", "sarvam_mla", kUnchecked},
    {"YoutuForCausalLM", "youtu", kUnchecked},
    {"", "axk2", kUnchecked},
    {"", "bailing_hybrid", kUnchecked},
    {"", "dots3_note", kUnchecked},
    {"", "hunyuan_vl", kHunyuan},
    {"", "hy_v4", kUnchecked},
    {"", "kimi_k2", kDeepSeek},
    {"", "kimi_k3", kUnchecked},
    {"", "mellum", kUnchecked},
    {"", "mistral_large4", kUnchecked},
    {"", "phi4_multimodal", kUnchecked},
    {"", "phi4mm", kUnchecked},
    {"", "qwen3_5", kQwen3Vl},
    {"", "qwen3_5_moe", kQwen3Vl},
    {"", "qwen3_vl", kQwen3Vl},
    {"", "qwen3_vl_moe", kQwen3Vl},
};

// A model that one engine treats in another way than the rest, in the versions since one.
struct EngineModel {
  std::string_view engine;
  std::string_view architecture;
  std::string_view model_type;
  std::string_view since;
  Family family;
  std::string_view until = {};  // the last of them; empty: the newest
};

// vLLM: _TRANSFORMERS_SUPPORTED_MODELS of model_executor/models/registry.py, in each minor version
// from 0.18.0 to 0.33.0, and in 0.10.2, 0.11.0, 0.11.2, 0.12.0 and 0.16.0. Models that no older
// registry has (Kolibri1, Nanbeige) were served in the same way before.
// Until 0.11.2 its classes below call get_rope without rope_scaling; from 0.12.0 on none does.
// SGLang: each get_rope call of models/*.py without rope_scaling, in 0.5.9, 0.5.15, 0.5.16 and
// 0.5.23; and architectures of Transformers without an EntryClass, which
// model_loader/utils.py:resolve_transformers_arch gives to models/transformers.py, in 0.5.9 and
// 0.5.23.
// llama.cpp: the classes of conversion/{command_r,gemma,stablelm,nemotron}.py, and those that were
// run and have no generate_extra_tensors.
constexpr EngineModel kEngineModels[] = {
    {"vllm", "SmolLM3ForCausalLM", "smollm3", "0.10.2", kTransformers},
    {"vllm", "Kolibri1ForCausalLM", "kolibri1", "0.10.2", kTransformers},
    {"vllm", "NanbeigeForCausalLM", "nanbeige", "0.10.2", kTransformers},
    {"vllm", "GPTBigCodeForCausalLM", "gpt_bigcode", "0.25.0", kTransformers},
    {"vllm", "Starcoder2ForCausalLM", "starcoder2", "0.25.0", kTransformers},
    {"vllm", "OlmoForCausalLM", "olmo", "0.26.0", kTransformers},
    {"vllm", "Olmo2ForCausalLM", "olmo2", "0.26.0", kTransformers},
    {"vllm", "VaultGemmaForCausalLM", "vaultgemma", "0.27.0", kTransformers},
    {"vllm", "FlexOlmoForCausalLM", "flex_olmo", "0.29.0", kTransformers},
    {"vllm", "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", "0.29.0", kTransformers},
    {"vllm", "HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", "0.29.0", kTransformers},
    {"vllm", "Olmo3ForCausalLM", "olmo3", "0.29.0", kTransformers},
    {"vllm", "ArceeForCausalLM", "arcee", "0.32.0", kTransformers},
    {"vllm", "CwmForCausalLM", "cwm", "0.32.0", kTransformers},
    {"vllm", "GlmForCausalLM", "glm", "0.32.0", kTransformers},
    {"vllm", "GPTNeoXForCausalLM", "gpt_neox", "0.32.0", kTransformers},
    {"vllm", "Jais2ForCausalLM", "jais2", "0.32.0", kTransformers},
    {"vllm", "MellumForCausalLM", "mellum", "0.32.0", kTransformers},
    {"vllm", "PhiForCausalLM", "phi", "0.32.0", kTransformers},
    {"vllm", "SeedOssForCausalLM", "seed_oss", "0.32.0", kTransformers},
    {"vllm", "ArcticForCausalLM", "arctic", "0.10.2", kUnscaled, "0.11.2"},
    {"vllm", "BaichuanForCausalLM", "baichuan", "0.10.2", kUnscaled, "0.11.2"},
    {"vllm", "DbrxForCausalLM", "dbrx", "0.10.2", kUnscaled, "0.11.2"},
    {"vllm", "FalconForCausalLM", "falcon", "0.10.2", kUnscaled, "0.11.2"},
    {"vllm", "Gemma2ForCausalLM", "gemma2", "0.10.2", kUnscaled, "0.11.2"},
    {"vllm", "GemmaForCausalLM", "gemma", "0.10.2", kUnscaled, "0.11.2"},
    {"vllm", "GPTJForCausalLM", "gptj", "0.10.2", kUnscaled, "0.11.2"},
    {"vllm", "GPTNeoXForCausalLM", "gpt_neox", "0.10.2", kUnscaled, "0.11.2"},
    {"vllm", "MiniMaxText01ForCausalLM", "minimax_text_01", "0.10.2", kUnscaled, "0.11.2"},
    {"vllm", "MixtralForCausalLM", "mixtral", "0.10.2", kUnscaled, "0.11.2"},
    {"vllm", "MolmoForCausalLM", "molmo", "0.10.2", kUnscaled, "0.11.2"},
    {"vllm", "OlmoForCausalLM", "olmo", "0.10.2", kUnscaled, "0.11.2"},
    {"vllm", "PersimmonForCausalLM", "persimmon", "0.10.2", kUnscaled, "0.11.2"},
    {"vllm", "PhiForCausalLM", "phi", "0.10.2", kUnscaled, "0.11.2"},
    {"vllm", "StableLmForCausalLM", "stablelm", "0.10.2", kUnscaled, "0.11.2"},
    {"vllm", "Starcoder2ForCausalLM", "starcoder2", "0.10.2", kUnscaled, "0.11.2"},
    {"sglang", "SeedOssForCausalLM", "seed_oss", "0.5.9", kTransformers},
    {"sglang", "SmolLM3ForCausalLM", "smollm3", "0.5.9", kTransformers},
    {"sglang", "GPTNeoXForCausalLM", "gpt_neox", "0.5.16", kTransformers},
    {"sglang", "NemotronForCausalLM", "nemotron", "0.5.16", kTransformers},
    {"sglang", "Exaone4ForCausalLM", "exaone4", "0.5.16", kDefaultTheta},
    {"sglang", "DbrxForCausalLM", "dbrx", "0.5.9", kUnscaled},
    {"sglang", "Gemma2ForCausalLM", "gemma2", "0.5.9", kUnscaled},
    {"sglang", "GemmaForCausalLM", "gemma", "0.5.9", kUnscaled},
    {"sglang", "GPTJForCausalLM", "gptj", "0.5.9", kUnscaled},
    {"sglang", "GraniteMoeForCausalLM", "granitemoe", "0.5.9", kUnscaled},
    {"sglang", "MixtralForCausalLM", "mixtral", "0.5.9", kUnscaled},
    {"sglang", "OlmoForCausalLM", "olmo", "0.5.9", kUnscaled},
    {"sglang", "PersimmonForCausalLM", "persimmon", "0.5.9", kUnscaled},
    {"sglang", "PhiForCausalLM", "phi", "0.5.9", kUnscaled},
    {"sglang", "StableLmForCausalLM", "stablelm", "0.5.9", kUnscaled},
    {"sglang", "Starcoder2ForCausalLM", "starcoder2", "0.5.9", kUnscaled},
    {"llamacpp", "CohereForCausalLM", "cohere", "0c1e57098", kUnscaled},
    {"llamacpp", "Gemma2ForCausalLM", "gemma2", "0c1e57098", kDefaultTheta},
    {"llamacpp", "StableLmForCausalLM", "stablelm", "0c1e57098", kDefaultTheta},
    {"llamacpp", "NemotronForCausalLM", "nemotron", "0c1e57098", kLinearOfFactor},
    {"llamacpp", "Glm4ForCausalLM", "glm4", "0c1e57098", kBaseConverter},
    {"llamacpp", "Qwen2ForCausalLM", "qwen2", "0c1e57098", kBaseConverter},
    {"llamacpp", "Qwen3ForCausalLM", "qwen3", "0c1e57098", kBaseConverter},
    {"llamacpp", "Qwen3MoeForCausalLM", "qwen3_moe", "0c1e57098", kBaseConverter},
    {"llamacpp", "SeedOssForCausalLM", "seed_oss", "0c1e57098", kBaseConverter},
    {"llamacpp", "Starcoder2ForCausalLM", "starcoder2", "0c1e57098", kBaseConverter},
};

// The model types of the classes in conversion/*.py of llama.cpp 0c1e57098 that call permute or
// _reverse_hf_permute.
constexpr std::string_view kPermuted[] = {
    "arcee",       "arctic",    "baichuan",  "bailing_moe",      "bamba",
    "chameleon",   "deci",      "deepseek",  "granite",          "granitemoe",
    "granite_swa", "internlm2", "internlm3", "granitemoehybrid", "granitemoeshared",
    "llada",       "llama",     "minicpm",   "mistral",          "ministral3",
    "mixtral",     "nanbeige",  "olmo",      "smollm3",          "xverse"};

// Engines choose by the first architecture that they know; without one, model_type decides.
bool Serves(const EngineModel& model, const ModelNames& names) {
  if (names.architectures.empty()) return model.model_type == names.model_type;
  return model.architecture == names.architectures.front();
}

std::optional<Family> Find(std::string_view KnownModel::*key, std::string_view name) {
  for (const KnownModel& known : kModels) {
    if (!name.empty() && known.*key == name) return known.family;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Family> FamilyOf(const ModelNames& names) {
  bool text_model = false;
  for (const std::string& architecture : names.architectures) {
    if (const auto family = Find(&KnownModel::architecture, architecture)) return family;
    text_model |= architecture.ends_with("ForCausalLM");
  }
  std::string_view type = names.model_type;
  if (text_model) return type == "phi4mm" ? kUnchecked : kOther;
  if (type.empty() && names.architectures.empty()) return std::nullopt;
  constexpr std::string_view kText = "_text";
  if (type.ends_with(kText)) type.remove_suffix(kText.size());
  return Find(&KnownModel::model_type, type).value_or(kOther);
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
      std::find(std::begin(kPermuted), std::end(kPermuted), layer.names.model_type) !=
          std::end(kPermuted)) {
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
  RopeConfig plain = {.rope_theta = config.rope_theta,
                      .head_dim = config.head_dim,
                      .rotary_dim = config.rotary_dim,
                      .partial_rotary_factor = config.partial_rotary_factor,
                      .max_position_embeddings = config.max_position_embeddings,
                      .mrope = config.mrope,
                      .rotary_offset = config.rotary_offset};
  plain.precision = config.precision;
  return plain;
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

}  // namespace

absl::Status ReadFile(const FileReader& reader, const ModelNames& names, CompatConfig& result) {
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
  for (const EngineModel& model : kEngineModels) {
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
