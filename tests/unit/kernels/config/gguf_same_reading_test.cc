// GGUF files with the keys that a conversion writes, compared with the config.json of the same
// model. Keys: conversion/ of ggml-org/llama.cpp at 0c1e57098.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <numbers>
#include <string>
#include <vector>

#include "kernels/config/config_json.h"
#include "kernels/config/json_fields.h"
#include "kernels/config/model_file.h"
#include "kernels/dtype/pairing.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/same_reading.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using ::rope::testing::ExpectSameReading;
using ::rope::testing::GgufWriter;

std::string TextOf(const std::string& name) {
  std::ifstream file(ROPE_SOURCE_DIR "/tests/conformance/configs/" + name + ".json");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void ExpectSame(const GgufWriter& writer, const std::string& name, int64_t layers,
                Pairing pairing) {
  SCOPED_TRACE(name);
  const std::string bytes = writer.Bytes();
  ASSERT_OK(got, ReadModel(MemorySource(bytes)));
  ASSERT_OK(want, ModelConfig::Parse(TextOf(name)));
  ExpectSameReading(*got, *want, layers);
  ASSERT_OK(first, got->Layer({.layer = 0}));
  EXPECT_EQ(first->pairing, pairing);
}

// The keys that every conversion writes.
GgufWriter Model(const std::string& architecture, uint32_t layers, uint32_t width, uint32_t heads,
                 uint32_t kv_heads, uint32_t length) {
  GgufWriter writer(architecture);
  writer.U32(".block_count", layers)
      .U32(".context_length", length)
      .U32(".embedding_length", width)
      .U32(".attention.head_count", heads)
      .U32(".attention.head_count_kv", kv_heads);
  return writer;
}

// Llama 3's scaling as divisors: the formula of Hugging Face's "llama3".
std::vector<float> Llama3Divisors(double theta, size_t dim, double factor, double low, double high,
                                  double length) {
  std::vector<float> divisors;
  for (size_t i = 0; i < dim; i += 2) {
    const double wavelength =
        2 * std::numbers::pi * std::pow(theta, static_cast<double>(i) / static_cast<double>(dim));
    const double smooth = (length / wavelength - low) / (high - low);
    const double divisor = smooth >= 1   ? 1
                           : smooth <= 0 ? factor
                                         : 1 / ((1 - smooth) / factor + smooth);
    divisors.push_back(static_cast<float>(divisor));
  }
  return divisors;
}

std::vector<float> FloatsAt(const std::string& name, std::string_view key) {
  const auto file = ParseJsonObject(TextOf(name));
  std::vector<float> numbers;
  for (const auto& number : (*file)["rope_scaling"][std::string(key)]) {
    numbers.push_back(number.get<float>());
  }
  return numbers;
}

TEST(GgufSameReadingTest, Llama31ByRopeFreqs) {
  GgufWriter writer = Model("llama", 32, 4096, 32, 8, 131072);
  writer.F32(".rope.freq_base", 500000)
      .U32(".rope.dimension_count", 128)
      .TensorOf("token_embd.weight", {2}, 0, "12345678")
      .Tensor("rope_freqs.weight", Llama3Divisors(500000, 128, 8, 1, 4, 8192));
  // The conversion permutes q and k: the checkpoint has halves, the GGUF file neighbours.
  ExpectSame(writer, "llama-3.1-8b", 32, Pairing::kInterleaved);
}

TEST(GgufSameReadingTest, Qwen2AndQwen3) {
  GgufWriter qwen2 = Model("qwen2", 28, 3584, 28, 4, 32768);
  ExpectSame(qwen2.F32(".rope.freq_base", 1000000), "qwen2.5-7b-instruct", 28, Pairing::kHalf);
  GgufWriter qwen3 = Model("qwen3", 36, 4096, 32, 8, 40960);
  qwen3.F32(".rope.freq_base", 1000000).U32(".attention.key_length", 128);
  ExpectSame(qwen3, "qwen3-8b", 36, Pairing::kHalf);
  qwen3.Text(".rope.scaling.type", "yarn")
      .F32(".rope.scaling.factor", 4)
      .U32(".rope.scaling.original_context_length", 32768);
  ExpectSame(qwen3, "qwen3-8b-yarn", 36, Pairing::kHalf);
}

TEST(GgufSameReadingTest, Gemma3BySlidingBase) {
  GgufWriter writer = Model("gemma3", 34, 2560, 8, 4, 131072);
  writer.Text(".rope.scaling.type", "linear")
      .F32(".rope.scaling.factor", 8)
      .F32(".rope.freq_base", 1000000)
      .F32(".rope.freq_base_swa", 10000)
      .U32(".attention.key_length", 256)
      .U32(".attention.sliding_window", 1024);
  ExpectSame(writer, "gemma-3-4b", 34, Pairing::kHalf);
}

TEST(GgufSameReadingTest, Gemma3WithoutSlidingBaseTakesTheArchitectures) {
  GgufWriter writer = Model("gemma3", 26, 1152, 4, 1, 32768);
  writer.F32(".rope.freq_base", 1000000)
      .U32(".attention.key_length", 256)
      .U32(".attention.sliding_window", 512)
      .U32(".attention.sliding_window_pattern", 6);
  ExpectSame(writer, "gemma-3-1b", 26, Pairing::kHalf);
}

TEST(GgufSameReadingTest, Gemma4ByDimensionsAndFactorsOfFullLayers) {
  GgufWriter writer("gemma4");
  std::string pattern;
  std::vector<uint32_t> kv_heads;
  for (int i = 0; i < 60; ++i) {
    pattern += i % 6 == 5 ? 'F' : 'T';
    kv_heads.push_back(i % 6 == 5 ? 4 : 16);
  }
  std::vector<float> divisors(256, 1e30f);
  for (size_t i = 0; i < 64; ++i) divisors[i] = 1;
  writer.U32(".block_count", 60)
      .U32(".context_length", 262144)
      .U32(".embedding_length", 5376)
      .U32(".attention.head_count", 32)
      .U32List(".attention.head_count_kv", kv_heads)
      .BoolList(".attention.sliding_window_pattern", pattern)
      .U32(".attention.sliding_window", 1024)
      .F32(".rope.freq_base", 1000000)
      .F32(".rope.freq_base_swa", 10000)
      .U32(".attention.key_length", 512)
      .U32(".attention.key_length_swa", 256)
      .U32(".rope.dimension_count", 512)
      .U32(".rope.dimension_count_swa", 256)
      .Tensor("rope_freqs.weight", divisors);
  ExpectSame(writer, "gemma-4-31b", 60, Pairing::kHalf);
}

TEST(GgufSameReadingTest, GptOssByYarn) {
  GgufWriter writer = Model("gpt-oss", 24, 2880, 64, 8, 131072);
  writer.U32(".attention.key_length", 64)
      .U32(".attention.sliding_window", 128)
      .F32(".rope.freq_base", 150000)
      .Text(".rope.scaling.type", "yarn")
      .F32(".rope.scaling.factor", 32)
      .U32(".rope.scaling.original_context_length", 4096)
      .F32(".rope.scaling.yarn_beta_fast", 32)
      .F32(".rope.scaling.yarn_beta_slow", 1);
  ExpectSame(writer, "gpt-oss-20b", 24, Pairing::kHalf);
}

TEST(GgufSameReadingTest, DeepSeekV2LiteByLogMultiplier) {
  GgufWriter writer = Model("deepseek2", 27, 2048, 16, 1, 163840);
  writer.U32(".attention.kv_lora_rank", 512)
      .U32(".attention.key_length", 576)
      .U32(".attention.key_length_mla", 192)
      .U32(".rope.dimension_count", 64)
      .F32(".rope.freq_base", 10000)
      .Text(".rope.scaling.type", "yarn")
      .F32(".rope.scaling.factor", 40)
      .U32(".rope.scaling.original_context_length", 4096)
      .F32(".rope.scaling.yarn_log_multiplier", 0.0707f);
  ExpectSame(writer, "deepseek-v2-lite", 27, Pairing::kInterleaved);
}

TEST(GgufSameReadingTest, Phi4MiniByFactorTensors) {
  const double factor = std::sqrt(1 + std::log(32.0) / std::log(4096.0));
  GgufWriter writer = Model("phi3", 32, 3072, 24, 8, 131072);
  writer.U32(".rope.scaling.original_context_length", 4096)
      .U32(".rope.dimension_count", 96)
      .F32(".rope.freq_base", 10000)
      .U32(".attention.sliding_window", 262144)
      .Text(".rope.scaling.type", "longrope")
      .F32(".rope.scaling.attn_factor", static_cast<float>(factor))
      .Tensor("rope_factors_long.weight", FloatsAt("phi-4-mini", "long_factor"))
      .Tensor("rope_factors_short.weight", FloatsAt("phi-4-mini", "short_factor"));
  ExpectSame(writer, "phi-4-mini", 32, Pairing::kHalf);
}

TEST(GgufSameReadingTest, Olmo3ScalesFullLayersOnly) {
  GgufWriter writer = Model("olmo2", 32, 4096, 32, 32, 65536);
  writer.F32(".rope.freq_base", 500000)
      .Text(".rope.scaling.type", "yarn")
      .F32(".rope.scaling.factor", 8)
      .U32(".rope.scaling.original_context_length", 8192)
      .F32(".rope.scaling.yarn_attn_factor", 1.2079442f)
      .F32(".rope.scaling.yarn_beta_fast", 32)
      .F32(".rope.scaling.yarn_beta_slow", 1)
      .U32(".attention.sliding_window", 4096);
  ExpectSame(writer, "olmo-3-7b", 32, Pairing::kHalf);
}

TEST(GgufSameReadingTest, LayersWithoutRotation) {
  GgufWriter smollm = Model("smollm3", 36, 2048, 16, 4, 65536);
  ExpectSame(smollm.F32(".rope.freq_base", 5000000), "smollm3-3b", 36, Pairing::kInterleaved);
  GgufWriter exaone = Model("exaone4", 64, 5120, 40, 8, 131072);
  exaone.F32(".rope.freq_base", 1000000)
      .U32(".attention.key_length", 128)
      .U32(".attention.sliding_window", 4096)
      .Tensor("rope_freqs.weight", Llama3Divisors(1000000, 128, 16, 1, 4, 8192));
  ExpectSame(exaone, "exaone-4.0-32b", 64, Pairing::kHalf);
}

TEST(GgufSameReadingTest, ThreeAxes) {
  GgufWriter sections = Model("qwen2vl", 28, 3584, 28, 4, 32768);
  sections.F32(".rope.freq_base", 1000000).U32List(".rope.dimension_sections", {16, 24, 24, 0});
  ExpectSame(sections, "qwen2-vl-7b", 28, Pairing::kHalf);
  GgufWriter interleaved = Model("qwen3vl", 36, 4096, 32, 8, 262144);
  interleaved.F32(".rope.freq_base", 5000000)
      .U32(".attention.key_length", 128)
      .U32List(".rope.dimension_sections", {24, 20, 20, 0});
  ExpectSame(interleaved, "qwen3-vl-8b", 36, Pairing::kHalf);
}

TEST(GgufSameReadingTest, LinearAttentionDoesNotRotate) {
  GgufWriter writer = Model("qwen3next", 48, 2048, 16, 2, 262144);
  writer.F32(".rope.freq_base", 10000000)
      .U32(".attention.key_length", 256)
      .U32(".rope.dimension_count", 64);
  ExpectSame(writer, "qwen3-next-80b-a3b", 48, Pairing::kHalf);
}

}  // namespace
}  // namespace rope::kernels
