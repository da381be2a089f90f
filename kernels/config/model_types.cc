#include "kernels/config/model_types.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace rope::kernels {
namespace {

constexpr std::string_view kHalf[] = {
    "bailing_moe",   "exaone4",
    "falcon",        "gemma",
    "gemma2",        "gemma3",
    "gemma3n",       "gemma4",
    "glm4_moe",      "gpt_neox",
    "gpt_oss",       "granite",
    "granitemoe",    "hunyuan_v1_dense",
    "llama",         "mimo",
    "mimo_v2_flash", "minimax",
    "minimax_m2",    "ministral3",
    "mistral",       "mistral3",
    "mixtral",       "modernbert",
    "nemotron",      "olmo",
    "olmo2",         "olmo3",
    "olmoe",         "phi",
    "phi3",          "phimoe",
    "qwen2",         "qwen2_5_vl",
    "qwen2_moe",     "qwen2_vl",
    "qwen3",         "qwen3_5",
    "qwen3_5_moe",   "qwen3_moe",
    "qwen3_next",    "qwen3_vl",
    "qwen3_vl_moe",  "smollm3",
    "stablelm",      "starcoder2",
};

constexpr std::string_view kInterleaved[] = {
    "codegen",         "cohere",   "cohere2",      "deepseek_v2",     "deepseek_v3",
    "deepseek_v32",    "ernie4_5", "ernie4_5_moe", "ernie4_5_moe_vl", "ernie4_5_vl",
    "ernie4_5_vl_moe", "glm",      "glm4",         "glm4_moe_lite",   "gptj",
    "helium",          "kimi_k2",  "llama4",       "longcat_flash",
};

template <size_t size>
bool Contains(const std::string_view (&names)[size], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

constexpr ModelDefaults kNone = {};
constexpr std::pair<std::string_view, ModelDefaults> kDefaults[] = {
    {"cohere2", {.sliding_window_pattern = 4}},
    {"ernie4_5_moe_vl", {.rope_theta = 500000, .mrope_hw_interleaved = true}},
    {"ernie4_5_vl", {.rope_theta = 500000, .mrope_hw_interleaved = true}},
    {"ernie4_5_vl_moe", {.rope_theta = 500000, .mrope_hw_interleaved = true}},
    {"gemma3",
     {.rope_theta = 1000000,
      .local_base = 10000,
      .head_dim = 256,
      .max_position_embeddings = 131072,
      .num_attention_heads = 8,
      .num_key_value_heads = 4,
      .sliding_window_pattern = 6}},
    {"glm", {.partial_rotary_factor = 0.5}},
    {"glm4", {.partial_rotary_factor = 0.5}},
    {"glm4_moe", {.partial_rotary_factor = 0.5}},
    {"gpt_neox", {.partial_rotary_factor = 0.25}},
    // Published files have an empty no_rope_layers.
    {"llama4", {.no_rope_layer_interval = 4}},
    {"modernbert", {.rope_theta = 160000, .local_base = 10000}},
    {"nemotron", {.partial_rotary_factor = 0.5}},
    {"olmo3", {.sliding_layers_unscaled = true}},
    {"phi", {.partial_rotary_factor = 0.5}},
    {"qwen3_5", {.partial_rotary_factor = 0.25, .full_attention_interval = 4}},
    {"qwen3_5_moe", {.partial_rotary_factor = 0.25, .full_attention_interval = 4}},
    {"qwen3_next", {.partial_rotary_factor = 0.25, .full_attention_interval = 4}},
    {"smollm3", {.no_rope_layer_interval = 4}},
    {"stablelm", {.partial_rotary_factor = 0.25}},
};

std::string_view WithoutText(std::string_view model_type) {
  constexpr std::string_view kSuffix = "_text";
  if (model_type.ends_with(kSuffix)) model_type.remove_suffix(kSuffix.size());
  return model_type;
}

}  // namespace

std::optional<Pairing> PairingOf(std::string_view model_type) {
  const std::string_view name = WithoutText(model_type);
  if (Contains(kHalf, name)) return Pairing::kHalf;
  if (Contains(kInterleaved, name)) return Pairing::kInterleaved;
  return std::nullopt;
}

const ModelDefaults& DefaultsOf(std::string_view model_type) {
  const std::string_view name = WithoutText(model_type);
  for (const auto& [known, defaults] : kDefaults) {
    if (known == name) return defaults;
  }
  return kNone;
}

}  // namespace rope::kernels
