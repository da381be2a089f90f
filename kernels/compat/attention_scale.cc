#include "kernels/compat/attention_scale.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "kernels/compat/engine_table.h"
#include "kernels/compat/model_family.h"
#include "kernels/config/model_types.h"
#include "kernels/error.h"

namespace rope::kernels {
namespace {

bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A layer, and what the rules need of it again and again.
struct Model {
  const LayerConfig& layer;
  const RopeConfig& config;  // as the file has it
  std::string_view type = layer.names.model_type;
  // Mistral's own format: params.json, or a config.json that says the same.
  bool large3 = layer.names.architectures == std::vector<std::string>{"MistralLarge3ForCausalLM"};
  bool mistral = layer.names.architectures == std::vector<std::string>{"MistralForCausalLM"};

  const ScaleKeys& keys() const {
    static const ScaleKeys none;
    return layer.scale == nullptr ? none : *layer.scale;
  }
  bool scaled() const { return config.rope_type != RopeType::kDefault; }
  double factor() const { return EffectiveFactor(config).value_or(1); }
  double all_dim() const { return config.mscale_all_dim.value_or(0); }
};

// Yarn's magnitude of `mscale`, squared; 1 with an mscale of 0.
double SquaredMagnitude(const Model& model, double mscale) {
  const double magnitude = YarnMagnitude(mscale, model.factor());
  return magnitude * magnitude;
}

bool IsLlama4(const Model& model) {
  return IsOneOf(model.type, {"llama4", "llama4_text"});
}

void SetTemperature(double beta, int64_t length, int64_t offset, AttentionScale& scale) {
  if (beta == 0 || length < 1) return;
  scale.temperature_beta = beta;
  scale.temperature_length = length;
  scale.temperature_offset = offset;
}

// Llama 4 scales q in the layers that do not rotate.
void SetLlama4(const Model& model, AttentionScale& scale) {
  if (!IsLlama4(model) || model.layer.rotates) return;
  const ScaleKeys& keys = model.keys();
  SetTemperature(keys.attn_scale.value_or(0.1), keys.floor_scale.value_or(8192), 1, scale);
}

// The llama_4_scaling_beta of the rope parameters.
void SetMinistral(const Model& model, std::optional<int64_t> length, AttentionScale& scale) {
  if (!model.layer.rotates) return;
  SetTemperature(model.keys().beta.value_or(0), length.value_or(0), 0, scale);
}

// The top-level llama_4_scaling of Mistral's format.
void SetMistral(const Model& model, std::optional<int64_t> length, AttentionScale& scale) {
  SetTemperature(model.keys().mistral_beta.value_or(0), length.value_or(0), 0, scale);
}

// -- Hugging Face 5.23.0, models/*/modeling_*.py --------------------------------------------------
// yarn_apply_mscale: any type that is not default, if mscale_all_dim is not 0.
bool IsMla(const Model& model) {
  return IsOneOf(model.type,
                 {"axk1", "axk2", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32",
                  "glm4_moe_lite", "glm_moe_dsa", "hy_v4", "kimi_k2", "longcat_flash", "minicpm3",
                  "mistral4", "mistral_large4", "mistral_large4_text", "sarvam_mla", "youtu"});
}

AttentionScale HuggingFace(const Model& model) {
  AttentionScale scale;
  const ScaleKeys& keys = model.keys();
  // large3: mistral-common's apply_scale, which no class of Hugging Face reads.
  const bool scales = model.large3 ? keys.apply_yarn_scaling.value_or(true) : IsMla(model);
  if (scales && model.scaled()) scale.softmax = SquaredMagnitude(model, model.all_dim());
  if (model.large3 || model.mistral) SetMistral(model, keys.mistral_length, scale);
  if (model.large3 || scale.temperature_beta != 0) return scale;
  if (IsOneOf(model.type, {"ministral3", "mistral4"})) {
    SetMinistral(model, OriginalLength(model.config), scale);
  }
  if (keys.attn_temperature_tuning.value_or(true)) SetLlama4(model, scale);
  return scale;
}

// -- vLLM -----------------------------------------------------------------------------------------
// model_executor/models/deepseek_v2.py, DeepseekV2MLAAttention: a type other than default becomes
// deepseek_yarn, whose mscale_all_dim scales the softmax, or a type that does not. minicpm3.py,
// bailing_moe_linear.py and hy_v4 multiply by nothing. Until 0.29.0 apply_yarn_scaling false
// switches it off, and from 0.31.0 on an attention_factor of 1; in 0.30.0 params.json loses
// apply_scale.

// The models that deepseek_v2.py runs.
bool IsDeepSeeks(const Model& model) {
  return IsOneOf(model.type, {"deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite",
                              "glm_moe_dsa", "kimi_k2", "longcat_flash"});
}

// Unset: the rule is not known.
std::optional<double> VllmSoftmax(const Model& model, std::string_view version) {
  if (!IsMla(model) || IsOneOf(model.type, {"minicpm3", "bailing_hybrid", "hy_v4"})) return 1;
  const RopeType type = model.config.rope_type;
  if (type == RopeType::kLinear || type == RopeType::kDynamic) return std::nullopt;  // it fails
  if (!IsDeepSeeks(model)) return std::nullopt;
  if (!model.scaled()) return 1;
  const auto release = ParseRelease(version);
  const bool off =
      release > ParseRelease("0.30.0")
          ? model.config.attention_factor == 1.0
          : release < ParseRelease("0.30.0") && !model.keys().apply_yarn_scaling.value_or(true);
  return off ? 1 : SquaredMagnitude(model, model.all_dim());
}

// models/llama4.py takes the switch from the length that it is started with. models/mistral.py and
// deepseek_v2.py read the top-level llama_4_scaling; that of rope_parameters nothing reads.
std::optional<AttentionScale> Vllm(const Model& model, std::string_view version) {
  constexpr int64_t kTunedFrom = 32768;
  // Models of its Transformers backend.
  if (IsOneOf(model.type, {"mistral4", "axk2", "youtu"})) return HuggingFace(model);
  AttentionScale scale;
  const std::optional<double> softmax = VllmSoftmax(model, version);
  if (!softmax.has_value()) return std::nullopt;
  scale.softmax = *softmax;
  if (model.config.max_position_embeddings.value_or(kTunedFrom + 1) > kTunedFrom) {
    SetLlama4(model, scale);
  }
  const bool reads_top_level = model.large3 || model.mistral || model.type == "mistral" ||
                               model.type == "ministral3" || IsDeepSeeks(model);
  if (reads_top_level) SetMistral(model, model.keys().mistral_length, scale);
  return scale;
}

// -- SGLang ---------------------------------------------------------------------------------------
// models/deepseek_v2.py, DeepseekV2AttentionMLA: from 0.5.16 on apply_scale or apply_yarn_scaling
// false switches it off; 0.5.9 loses the key. models/minicpm3.py multiplies by nothing.
// models/ministral3.py divides by the top-level original_max_position_embeddings, else 16384. 0.5.9
// and 0.5.16 have no hy_v4.
std::optional<AttentionScale> Sglang(const Model& model, std::string_view version) {
  if (version != "0.5.23" && model.type == "hy_v4") return std::nullopt;
  if (IsOneOf(model.type, {"axk1", "axk2", "youtu", "mistral4", "mistral_large4",
                           "mistral_large4_text", "sarvam_mla"})) {
    return std::nullopt;  // it has no such class, or one that was not read
  }
  AttentionScale scale;
  const bool off = version != "0.5.9" && !(model.keys().apply_yarn_scaling.value_or(true) &&
                                           model.keys().apply_scale.value_or(true));
  if (IsMla(model) && model.type != "minicpm3" && model.scaled() && !off) {
    scale.softmax = SquaredMagnitude(model, model.all_dim());
  }
  if (model.type == "ministral3") {
    SetMinistral(model, model.keys().top_length.value_or(16384), scale);
  }
  if (model.keys().attn_temperature_tuning.value_or(true)) SetLlama4(model, scale);
  if (model.large3) SetMistral(model, model.keys().mistral_length, scale);
  return scale;
}

// -- llama.cpp 0c1e57098 --------------------------------------------------------------------------
// src/llama-context.cpp and src/models/{deepseek2,deepseek32,glm-dsa}.cpp: the softmax has the
// square of the factor on cos and sin, M(mscale) / M(mscale_all_dim), times M(mscale_all_dim):
// M(mscale)^2. glm-dsa.cpp does not load mscale_all_dim. deepseek2.cpp takes mscale as
// mscale_all_dim unless that is 1. conversion/mistral.py writes 1 for params.json, whatever
// apply_scale says. src/models/mistral3.cpp has Ministral's temperature, llama4.cpp constants.
std::optional<AttentionScale> LlamaCpp(const Model& model, std::string_view) {
  AttentionScale scale;
  if (IsOneOf(model.type, {"axk1", "axk2", "longcat_flash", "bailing_hybrid", "mistral_large4",
                           "mistral_large4_text", "sarvam_mla"})) {
    return std::nullopt;  // nothing converts it
  }
  if (IsMla(model) && !IsOneOf(model.type, {"minicpm3", "hy_v4"}) && model.scaled()) {
    if (model.config.rope_type != RopeType::kYarn) return std::nullopt;
    const double all_dim = model.large3 ? 1 : model.type == "glm_moe_dsa" ? 0 : model.all_dim();
    const bool as_all_dim =
        !IsOneOf(model.type, {"deepseek_v32", "glm_moe_dsa", "mistral4"}) && all_dim != 1;
    scale.softmax = SquaredMagnitude(model, all_dim != 0 && as_all_dim ? all_dim : 1);
  }
  if (model.type == "ministral3") SetMinistral(model, OriginalLength(model.config), scale);
  if (IsLlama4(model) && !model.layer.rotates) SetTemperature(0.1, 8192, 1, scale);
  if (model.large3 || model.mistral) {  // its converter takes yarn's length
    SetMistral(model, OriginalLength(model.config), scale);
  }
  return scale;
}

struct ScaleEntry {
  std::string_view engine;
  std::string_view first;
  std::string_view last;
  // The result is unset: how it scales was not checked.
  std::optional<AttentionScale> (*rule)(const Model&, std::string_view version);
  std::string_view executed = {};  // versions whose modules were run (tests/peers/engines)
};

std::optional<AttentionScale> OfHuggingFace(const Model& model, std::string_view) {
  // It does not read params.json.
  if (model.large3 || (model.mistral && model.keys().mistral_beta.has_value())) return std::nullopt;
  return HuggingFace(model);
}

constexpr ScaleEntry kScaleEntries[] = {
    {"hf", "5.23.0", "5.23.0", OfHuggingFace, "5.23.0"},
    {"vllm", "0.31.0", "0.33.0", Vllm, "0.32.0"},
    {"vllm", "0.30.0", "0.30.0", Vllm},
    {"vllm", "0.29.0", "0.29.0", Vllm},
    {"vllm", "0.21.0", "0.21.0", Vllm},
    {"vllm", "0.13.0", "0.13.0", Vllm},
    {"sglang", "0.5.23", "0.5.23", Sglang},
    {"sglang", "0.5.16", "0.5.16", Sglang},
    {"sglang", "0.5.9", "0.5.9", Sglang},
    {"llamacpp", "0c1e57098", "0c1e57098", LlamaCpp},
};

// The attention factor of the engine's own reading; `answered` where that was not checked.
double FactorOf(const ScaleEntry& entry, const Model& model, double answered) {
  const LayerConfig& layer = model.layer;
  if (!layer.rotates) return answered;
  const auto read = ReadAs(model.config, {std::string(entry.engine), std::string(entry.last)},
                           layer.names, std::nullopt);
  if (!read.ok()) return answered;
  return AttentionFactor(read->read.config);
}

bool Equal(double a, double b) {
  return std::abs(a - b) <= 1e-12 * std::abs(b);
}

// What differs, "X, not Y" each.
std::string DifferenceOf(const AttentionScale& engine, const AttentionScale& own) {
  std::string text;
  const auto add = [&text](std::string_view what, const auto& a, const auto& b) {
    text += StrCat(text.empty() ? "" : "; ", what, " ", a, ", not ", b);
  };
  if (!Equal(engine.softmax, own.softmax)) add("softmax scale times", engine.softmax, own.softmax);
  if (TemperatureText(engine) != TemperatureText(own)) {
    add("temperature of q", TemperatureText(engine), TemperatureText(own));
  }
  if (!Equal(engine.logits, own.logits)) add("logits times", engine.logits, own.logits);
  return text;
}

double LogitsOf(const LayerConfig& layer, double softmax, double attention_factor) {
  return layer.rotates ? softmax * attention_factor * attention_factor : softmax;
}

}  // namespace

AttentionScale ScaleOf(const LayerConfig& layer, const RopeConfig& stated,
                       double attention_factor) {
  AttentionScale scale = HuggingFace({layer, stated});
  scale.logits = LogitsOf(layer, scale.softmax, attention_factor);
  return scale;
}

std::optional<AttentionScale> ScaleAs(const LayerConfig& layer, const EngineVersion& engine,
                                      double attention_factor) {
  for (const ScaleEntry& entry : kScaleEntries) {
    if (entry.engine != engine.engine) continue;
    const std::string_view version = engine.version.empty() ? entry.last : engine.version;
    if (!IsBetween(entry.first, version, entry.last)) continue;
    std::optional<AttentionScale> scale = entry.rule({layer, layer.config}, entry.last);
    if (scale.has_value()) scale->logits = LogitsOf(layer, scale->softmax, attention_factor);
    return scale;
  }
  return std::nullopt;
}

std::vector<ScaleReading> ScaleReadings(const LayerConfig& layer, const RopeConfig& stated,
                                        const AttentionScale& own, double attention_factor) {
  std::vector<ScaleReading> readings;
  if (layer.names.model_type.empty()) return readings;
  const Model model = {layer, stated};
  for (const ScaleEntry& entry : kScaleEntries) {
    std::optional<AttentionScale> scale = entry.rule(model, entry.last);
    if (!scale.has_value()) continue;
    scale->logits = LogitsOf(layer, scale->softmax, FactorOf(entry, model, attention_factor));
    std::string difference = DifferenceOf(*scale, own);
    if (difference.empty()) continue;
    readings.push_back({.engine = std::string(entry.engine),
                        .version = Versions(entry.first, entry.last),
                        .executed = std::string(entry.executed),
                        .difference = std::move(difference),
                        .scale = *scale});
  }
  return readings;
}

std::vector<Remark> ScaleRemarks(const LayerConfig& layer, const RopeConfig& config) {
  const Model model = {layer, config};
  const AttentionScale scale = HuggingFace(model);
  std::vector<Remark> remarks;
  if (scale.softmax != 1) {
    remarks.push_back(
        {RemarkKind::kSoftmaxScale,
         StrCat("mscale_all_dim ", model.all_dim(), ": the model's code multiplies its softmax ",
                "scale by ", scale.softmax, ", which the rotation does not contain"),
         "mscale_all_dim"});
  }
  const bool cancels = layer.rotates && config.rope_type == RopeType::kYarn &&
                       !config.attention_factor.has_value() && model.all_dim() != 0 &&
                       config.mscale == config.mscale_all_dim;
  const double lost = YarnMagnitude(1, model.factor());
  const bool known = HasModelType(model.type) && !model.large3;
  if (cancels && scale.softmax == 1 && lost != 1 && known) {
    remarks.push_back({RemarkKind::kSoftmaxScale,
                       StrCat("mscale equals mscale_all_dim: the attention factor is 1, and the ",
                              "model's code scales no softmax, so that nothing has yarn's "
                              "magnitude, ",
                              lost),
                       "mscale_all_dim"});
  }
  return remarks;
}

std::string TemperatureText(const AttentionScale& scale) {
  if (scale.temperature_beta == 0) return "none";
  const std::string position =
      scale.temperature_offset == 0 ? "p" : StrCat("(p + ", scale.temperature_offset, ")");
  return StrCat("1 + ", scale.temperature_beta, " ln(1 + floor(", position, " / ",
                scale.temperature_length, "))");
}

}  // namespace rope::kernels
