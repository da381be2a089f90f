#include "kernels/config/gguf_architectures.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace rope::kernels {
namespace {

template <typename T>
using Entry = std::pair<std::string_view, T>;

// All architectures of llama.cpp but dflash, whose pairing follows that of another model.
constexpr Entry<GgufRope> kRopes[] = {
    {"afmoe", GgufRope::kNeox},
    {"apertus", GgufRope::kNeox},
    {"arcee", GgufRope::kNorm},
    {"arctic", GgufRope::kNorm},
    {"arwkv7", GgufRope::kNone},
    {"baichuan", GgufRope::kNorm},
    {"bailingmoe", GgufRope::kNorm},
    {"bailingmoe2", GgufRope::kNeox},
    {"bailingmoe3", GgufRope::kNormOrMrope},
    {"bert", GgufRope::kNeox},
    {"bitnet", GgufRope::kNeox},
    {"bloom", GgufRope::kNone},
    {"chameleon", GgufRope::kNorm},
    {"chatglm", GgufRope::kNorm},
    {"clip", GgufRope::kNone},
    {"codeshell", GgufRope::kNeox},
    {"cogvlm", GgufRope::kNeox},
    {"cohere2", GgufRope::kNorm},
    {"cohere2moe", GgufRope::kNorm},
    {"command-r", GgufRope::kNorm},
    {"dbrx", GgufRope::kNeox},
    {"deci", GgufRope::kNorm},
    {"deepseek", GgufRope::kNorm},
    {"deepseek2", GgufRope::kNorm},
    {"deepseek2-ocr", GgufRope::kNorm},
    {"deepseek32", GgufRope::kNorm},
    {"deepseek4", GgufRope::kNorm},
    {"dots1", GgufRope::kNeox},
    {"dots3note", GgufRope::kNorm},
    {"dream", GgufRope::kNeox},
    {"eagle3", GgufRope::kNorm},
    {"ernie4_5", GgufRope::kNorm},
    {"ernie4_5-moe", GgufRope::kNorm},
    {"eurobert", GgufRope::kNeox},
    {"exaone", GgufRope::kNeox},
    {"exaone-moe", GgufRope::kNeox},
    {"exaone4", GgufRope::kNeox},
    {"falcon", GgufRope::kNeox},
    {"falcon-h1", GgufRope::kNeox},
    {"gemma", GgufRope::kNeox},
    {"gemma-embedding", GgufRope::kNeox},
    {"gemma2", GgufRope::kNeox},
    {"gemma3", GgufRope::kNeox},
    {"gemma3n", GgufRope::kNeox},
    {"gemma4", GgufRope::kNeox},
    {"gemma4-assistant", GgufRope::kNeox},
    {"glm-dsa", GgufRope::kNorm},
    {"glm4", GgufRope::kNormOrMrope},
    {"glm4moe", GgufRope::kNeoxOrMrope},
    {"glm5-next", GgufRope::kNone},
    {"gpt-oss", GgufRope::kNeox},
    {"gpt2", GgufRope::kNone},
    {"gptj", GgufRope::kNone},
    {"gptneox", GgufRope::kNeox},
    {"granite", GgufRope::kNorm},
    {"granite_swa", GgufRope::kNorm},
    {"granitehybrid", GgufRope::kNorm},
    {"granitemoe", GgufRope::kNorm},
    {"graniteswitch", GgufRope::kNorm},
    {"grok", GgufRope::kNeox},
    {"grovemoe", GgufRope::kNeox},
    {"hrm_text", GgufRope::kNeox},
    {"hunyuan-dense", GgufRope::kNeox},
    {"hunyuan-moe", GgufRope::kNeox},
    {"hunyuan_vl", GgufRope::kNeoxOrMrope},
    {"hy_v3", GgufRope::kNeox},
    {"hy_v4", GgufRope::kNorm},
    {"internlm2", GgufRope::kNorm},
    {"jais", GgufRope::kNone},
    {"jais2", GgufRope::kNeox},
    {"jamba", GgufRope::kNone},
    {"jina-bert-v2", GgufRope::kNone},
    {"jina-bert-v3", GgufRope::kNeox},
    {"kimi-k3", GgufRope::kNone},
    {"kimi-linear", GgufRope::kNone},
    {"laguna", GgufRope::kNeox},
    {"lfm2", GgufRope::kNeox},
    {"lfm2moe", GgufRope::kNeox},
    {"llada", GgufRope::kNorm},
    {"llada-moe", GgufRope::kNeox},
    {"llama", GgufRope::kNorm},
    {"llama-embed", GgufRope::kNorm},
    {"llama4", GgufRope::kNorm},
    {"maincoder", GgufRope::kNorm},
    {"mamba", GgufRope::kNone},
    {"mamba2", GgufRope::kNone},
    {"maple", GgufRope::kNeox},
    {"mellum", GgufRope::kNeox},
    {"mimo2", GgufRope::kNeox},
    {"minicpm", GgufRope::kNorm},
    {"minicpm3", GgufRope::kNeox},
    {"minimax-01", GgufRope::kNeox},
    {"minimax-m2", GgufRope::kNeox},
    {"minimax-m3", GgufRope::kNeox},
    {"mistral3", GgufRope::kNorm},
    {"mistral4", GgufRope::kNorm},
    {"modern-bert", GgufRope::kNeox},
    {"mpt", GgufRope::kNone},
    {"muse-glimmer", GgufRope::kNorm},
    {"nanbeige", GgufRope::kNorm},
    {"nemotron", GgufRope::kNeox},
    {"nemotron_h", GgufRope::kNone},
    {"nemotron_h_moe", GgufRope::kNone},
    {"neo-bert", GgufRope::kNorm},
    {"nomic-bert", GgufRope::kNeox},
    {"nomic-bert-moe", GgufRope::kNeox},
    {"olmo", GgufRope::kNorm},
    {"olmo2", GgufRope::kNeox},
    {"olmoe", GgufRope::kNeox},
    {"openelm", GgufRope::kNeox},
    {"orion", GgufRope::kNeox},
    {"paddleocr", GgufRope::kMrope},
    {"pangu-embedded", GgufRope::kNeox},
    {"phi2", GgufRope::kNeox},
    {"phi3", GgufRope::kNeox},
    {"phimoe", GgufRope::kNeox},
    {"plamo", GgufRope::kNeox},
    {"plamo2", GgufRope::kNeox},
    {"plamo3", GgufRope::kNeox},
    {"plm", GgufRope::kNorm},
    {"pockettts", GgufRope::kNorm},
    {"qwen", GgufRope::kNeox},
    {"qwen2", GgufRope::kNeox},
    {"qwen2moe", GgufRope::kNeox},
    {"qwen2vl", GgufRope::kMrope},
    {"qwen3", GgufRope::kNeox},
    {"qwen35", GgufRope::kImrope},
    {"qwen35moe", GgufRope::kImrope},
    {"qwen3moe", GgufRope::kNeox},
    {"qwen3next", GgufRope::kNeox},
    {"qwen3tts", GgufRope::kImrope},
    {"qwen3vl", GgufRope::kImrope},
    {"qwen3vlmoe", GgufRope::kImrope},
    {"qwen4exp", GgufRope::kImrope},
    {"refact", GgufRope::kNone},
    {"rnd1", GgufRope::kNeox},
    {"rwkv6", GgufRope::kNone},
    {"rwkv6qwen2", GgufRope::kNone},
    {"rwkv7", GgufRope::kNone},
    {"seed_oss", GgufRope::kNeox},
    {"smallthinker", GgufRope::kNeox},
    {"smollm3", GgufRope::kNorm},
    {"spark2_5", GgufRope::kNeox},
    {"stablelm", GgufRope::kNeox},
    {"starcoder", GgufRope::kNorm},
    {"starcoder2", GgufRope::kNeox},
    {"step35", GgufRope::kNeox},
    {"t5", GgufRope::kNone},
    {"t5encoder", GgufRope::kNone},
    {"talkie", GgufRope::kNeox},
    {"wavtokenizer-dec", GgufRope::kNone},
    {"xverse", GgufRope::kNorm},
};

constexpr Entry<GgufLayers> kLayers[] = {
    {"afmoe",
     {.period = 4, .needs_window = true, .sliding_scaled = true, .still = GgufStill::kLastOfFour}},
    {"cohere2", {.period = 4, .sliding_scaled = true, .still = GgufStill::kFull}},
    {"cohere2moe",
     {.period = 4, .full_first = true, .sliding_scaled = true, .still = GgufStill::kFull}},
    {"dots3note", {.sliding_base = 10000, .sliding_scaled = true}},
    {"exaone-moe", {.period = 4, .sliding_scaled = true, .still = GgufStill::kFull}},
    // llama.cpp tells the two published sizes apart by their layers; only the larger has a window.
    {"exaone4",
     {.period = 4, .needs_window = true, .sliding_scaled = true, .still = GgufStill::kFull}},
    {"gemma-embedding", {.period = 6, .sliding_base = 10000}},
    {"gemma2", {.period = 2, .sliding_scaled = true}},
    {"gemma3", {.period = 6, .needs_window = true, .sliding_base = 10000}},
    {"gemma3n", {.period = 5, .sliding_base = 10000}},
    {"gemma4", {.sliding_base = 10000, .factors_on_full = true}},
    {"gemma4-assistant", {.sliding_base = 10000, .factors_on_full = true}},
    {"gpt-oss", {.period = 2, .sliding_scaled = true}},
    {"granite_swa", {.sliding_scaled = true}},
    {"laguna", {.period = 4, .full_first = true, .needs_window = true}},
    {"llama4",
     {.period = 4,
      .sliding_scaled = true,
      .still = GgufStill::kLastOfFour,
      .sliding_type = "chunked_attention"}},
    {"maple", {.sliding_scaled = true, .still = GgufStill::kFull}},
    {"mellum", {.period = 4, .needs_window = true}},
    {"mimo2", {.sliding_base = 10000}},
    {"modern-bert", {.period = 3, .full_first = true, .needs_window = true, .sliding_base = 10000}},
    {"muse-glimmer", {.period = 4, .still = GgufStill::kFull}},
    {"olmo2", {.period = 4, .needs_window = true}},
    {"plamo3", {.period = 8, .needs_window = true, .sliding_base = 10000}},
    {"smallthinker",
     {.period = 4,
      .full_first = true,
      .needs_window = true,
      .sliding_scaled = true,
      .still = GgufStill::kFirstOfFour}},
    {"smollm3", {.still = GgufStill::kLastOfFour}},
    {"spark2_5", {.sliding_scaled = true}},
    {"step35", {.sliding_base = 10000, .factors_on_full = true, .half_on_full = true}},
};

constexpr Entry<int64_t> kIntervals[] = {
    {"minimax-01", 8}, {"qwen35", 4}, {"qwen35moe", 4}, {"qwen3next", 4}, {"qwen4exp", 4},
};

// The conversion of DeepSeek's models stores a tenth of mscale_all_dim.
constexpr Entry<GgufLogMultiplier> kLogMultipliers[] = {
    {"deepseek2", {.scale = 10, .mscale_too = true}},
    {"deepseek32", {.scale = 10}},
    {"mistral3", {.scale = 1}},
    {"mistral4", {.scale = 10}},
};

// nullptr if no entry has the name.
template <typename T, size_t size>
const T* Find(const Entry<T> (&entries)[size], std::string_view name) {
  const auto found = std::find_if(std::begin(entries), std::end(entries),
                                  [&](const Entry<T>& entry) { return entry.first == name; });
  return found == std::end(entries) ? nullptr : &found->second;
}

}  // namespace

std::optional<GgufRope> GgufRopeOf(std::string_view architecture) {
  const GgufRope* const rope = Find(kRopes, architecture);
  return rope == nullptr ? std::nullopt : std::optional<GgufRope>(*rope);
}

const GgufLayers* GgufLayersOf(std::string_view architecture) {
  return Find(kLayers, architecture);
}

std::optional<int64_t> GgufFullAttentionInterval(std::string_view architecture) {
  const int64_t* const interval = Find(kIntervals, architecture);
  return interval == nullptr ? std::nullopt : std::optional<int64_t>(*interval);
}

const GgufLogMultiplier* GgufLogMultiplierOf(std::string_view architecture) {
  return Find(kLogMultipliers, architecture);
}

}  // namespace rope::kernels
