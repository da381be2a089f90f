#include "kernels/compat/model_family.h"

#include <string_view>

namespace rope::kernels {
namespace {

struct KnownName {
  std::string_view name;
  Family family;
};

// Sources: the registries of vLLM 0.33.0 (model_executor/models/registry.py) and SGLang 0.5.23
// (EntryClass of each models/*.py), and the classes that llama.cpp 0c1e57098 registers in
// conversion/*.py.
constexpr KnownName kArchitectures[] = {
    {"AXK1ForCausalLM", Family::kUnchecked},
    {"DeepseekOCRForCausalLM", Family::kUnchecked},
    {"DeepseekV2ForCausalLM", Family::kDeepSeek},
    {"DeepseekV32ForCausalLM", Family::kDeepSeek32},
    {"DeepseekV3ForCausalLM", Family::kDeepSeek},
    {"DeepseekV41ForCausalLM", Family::kUnchecked},
    {"DeepseekV4ForCausalLM", Family::kUnchecked},
    {"DeepseekVLV2ForCausalLM", Family::kDeepSeek},
    {"Gemma4ForCausalLM", Family::kGemma4},
    {"Glm4MoeLiteForCausalLM", Family::kGlm4MoeLite},
    {"Glm5NextForCausalLM", Family::kUnchecked},
    {"GlmMoeDsaForCausalLM", Family::kGlmMoeDsa},
    {"GptOssForCausalLM", Family::kGptOss},
    {"Grok1ForCausalLM", Family::kUnchecked},
    {"Grok1ModelForCausalLM", Family::kUnchecked},
    {"HunYuanDenseV1ForCausalLM", Family::kHunyuan},
    {"HunYuanMoEV1ForCausalLM", Family::kHunyuan},
    {"KimiLinearForCausalLM", Family::kUnchecked},
    {"LagunaForCausalLM", Family::kLaguna},
    {"LongcatFlashForCausalLM", Family::kLongcat},
    {"MiniCPM3ForCausalLM", Family::kMiniCpm},
    {"MiniCPMForCausalLM", Family::kMiniCpm},
    {"Ministral3ForCausalLM", Family::kMinistral3},
    {"Mistral4ForCausalLM", Family::kUnchecked},
    {"MistralLarge3ForCausalLM", Family::kUnchecked},
    {"Phi3ForCausalLM", Family::kPhi3},
    {"Phi4ForCausalLMV", Family::kUnchecked},
    {"PhiMoEForCausalLM", Family::kUnchecked},
    {"SarvamMLAForCausalLM", Family::kUnchecked},
    {"YoutuForCausalLM", Family::kUnchecked},
};

constexpr KnownName kModelTypes[] = {
    {"axk1", Family::kUnchecked},
    {"axk2", Family::kUnchecked},
    {"bailing_hybrid", Family::kUnchecked},
    {"deepseek_ocr", Family::kUnchecked},
    {"deepseek_v2", Family::kDeepSeek},
    {"deepseek_v3", Family::kDeepSeek},
    {"deepseek_v32", Family::kDeepSeek32},
    {"deepseek_v4", Family::kUnchecked},
    {"deepseek_vl_v2", Family::kDeepSeek},
    {"dots3_note", Family::kUnchecked},
    {"gemma4", Family::kGemma4},
    {"glm4_moe_lite", Family::kGlm4MoeLite},
    {"glm5_next", Family::kUnchecked},
    {"glm_moe_dsa", Family::kGlmMoeDsa},
    {"gpt_oss", Family::kGptOss},
    {"grok", Family::kUnchecked},
    {"hunyuan_v1_dense", Family::kHunyuan},
    {"hunyuan_v1_moe", Family::kHunyuan},
    {"hunyuan_vl", Family::kHunyuan},
    {"hy_v4", Family::kUnchecked},
    {"kimi_k2", Family::kDeepSeek},
    {"kimi_k3", Family::kUnchecked},
    {"kimi_linear", Family::kUnchecked},
    {"laguna", Family::kLaguna},
    {"longcat_flash", Family::kLongcat},
    {"mellum", Family::kUnchecked},
    {"minicpm", Family::kMiniCpm},
    {"minicpm3", Family::kMiniCpm},
    {"ministral3", Family::kMinistral3},
    {"mistral4", Family::kUnchecked},
    {"mistral_large4", Family::kUnchecked},
    {"phi3", Family::kPhi3},
    {"phi4_multimodal", Family::kUnchecked},
    {"phi4mm", Family::kUnchecked},
    {"phimoe", Family::kUnchecked},
    {"qwen3_5", Family::kQwen3Vl},
    {"qwen3_5_moe", Family::kQwen3Vl},
    {"qwen3_vl", Family::kQwen3Vl},
    {"qwen3_vl_moe", Family::kQwen3Vl},
    {"sarvam_mla", Family::kUnchecked},
    {"youtu", Family::kUnchecked},
};

template <size_t size>
std::optional<Family> Find(const KnownName (&names)[size], std::string_view name) {
  for (const KnownName& known : names) {
    if (known.name == name) return known.family;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Family> FamilyOf(const ModelNames& names) {
  bool text_model = false;
  for (const std::string& architecture : names.architectures) {
    if (const auto family = Find(kArchitectures, architecture)) return family;
    text_model |= architecture.ends_with("ForCausalLM");
  }
  if (text_model) return Family::kOther;
  std::string_view type = names.model_type;
  if (type.empty() && names.architectures.empty()) return std::nullopt;
  constexpr std::string_view kText = "_text";
  if (type.ends_with(kText)) type.remove_suffix(kText.size());
  return Find(kModelTypes, type).value_or(Family::kOther);
}

}  // namespace rope::kernels
