#include "kernels/config/gguf_config.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "kernels/config/gguf_architectures.h"
#include "kernels/config/rope_config.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/config/remark_texts.h"

namespace rope::kernels {
namespace {

using ::rope::testing::GgufWriter;
using ::rope::testing::TextsOf;

absl::StatusOr<ModelConfig> Read(const GgufWriter& writer) {
  const std::string bytes = writer.Bytes();
  const auto header = ReadGgufHeader(MemorySource(bytes));
  if (!header.ok()) return header.status();
  return ReadGgufConfig(*header);
}

LayerConfig Layer(const GgufWriter& writer, const LayerChoice& choice = {}) {
  const auto model = Read(writer);
  EXPECT_THAT(model, IsOk());
  if (!model.ok()) return {};
  const auto layer = model->Layer(choice);
  EXPECT_THAT(layer, IsOk());
  return layer.ok() ? *layer : LayerConfig();
}

void ExpectInvalid(const GgufWriter& writer, const std::string& message) {
  EXPECT_THAT(Read(writer), IsInvalid(message));
}

// A model with 2 frequencies, 1 and 0.01.
GgufWriter Small(const std::string& architecture = "llama") {
  GgufWriter writer(architecture);
  writer.F32(".rope.freq_base", 10000).U32(".attention.key_length", 4);
  return writer;
}

// One letter per layer: F full, S sliding, L linear, A other. Lower case: the layer does not
// rotate.
std::string Letters(const GgufWriter& writer, int64_t layers) {
  const auto model = Read(writer);
  EXPECT_THAT(model, IsOk());
  if (!model.ok()) return "";
  std::string letters;
  for (int64_t i = 0; i < layers; ++i) {
    const std::string type =
        model->layers().empty() ? "any" : model->layers()[static_cast<size_t>(i)];
    const char letter = type == "full_attention"      ? 'F'
                        : type == "sliding_attention" ? 'S'
                        : type == "linear_attention"  ? 'L'
                                                      : 'A';
    const auto layer = model->Layer({.layer = i});
    EXPECT_THAT(layer, IsOk());
    letters += layer.ok() && layer->rotates ? letter : static_cast<char>(letter - 'A' + 'a');
  }
  return letters;
}

TEST(GgufPairingTest, IsThatOfTheGgufsTensors) {
  EXPECT_EQ(Layer(Small("llama")).pairing, Pairing::kInterleaved);  // the checkpoint has halves
  EXPECT_EQ(Layer(Small("qwen2")).pairing, Pairing::kHalf);
  EXPECT_EQ(Layer(Small("deepseek2").U32(".rope.dimension_count", 4)).pairing,
            Pairing::kInterleaved);
  EXPECT_EQ(Layer(Small("qwen2vl").U32List(".rope.dimension_sections", {1, 1, 0, 0})).pairing,
            Pairing::kHalf);
}

TEST(GgufPairingTest, SectionsDecideForGlm4) {
  EXPECT_EQ(Layer(Small("glm4")).pairing, Pairing::kInterleaved);
  const LayerConfig with_axes =
      Layer(Small("glm4").U32List(".rope.dimension_sections", {1, 1, 0, 0}));
  EXPECT_EQ(with_axes.pairing, Pairing::kHalf);
  EXPECT_EQ(with_axes.config.mrope, (Mrope{.section = {1, 1, 0}}));
}

TEST(GgufPairingTest, UnknownArchitectureHasNoneAndAWarning) {
  const LayerConfig layer = Layer(Small("llama9"));
  EXPECT_FALSE(layer.pairing.has_value());
  EXPECT_THAT(TextsOf(layer.remarks),
              Contains(HasSubstr("general.architecture \"llama9\" is unknown")));
}

TEST(GgufPairingTest, ArchitectureWithoutRotationSaysSo) {
  const LayerConfig layer = Layer(Small("mamba"));
  EXPECT_FALSE(layer.rotates);
  EXPECT_THAT(TextsOf(layer.remarks), Contains(HasSubstr("llama.cpp does not rotate in mamba")));
}

TEST(GgufConfigTest, KeysThatAreAbsentTakeLlamaCppsDefaults) {
  const LayerConfig layer =
      Layer(GgufWriter().U32(".embedding_length", 64).U32(".attention.head_count", 4));
  EXPECT_EQ(layer.config.rope_theta, 10000);
  EXPECT_EQ(layer.config.head_dim, 16);
  EXPECT_EQ(layer.config.rope_type, RopeType::kDefault);
  EXPECT_THAT(TextsOf(layer.remarks),
              ElementsAre(HasSubstr("llama.rope.freq_base absent, taken as 10000")));
}

TEST(GgufConfigTest, WrongTypesNameTheKey) {
  ExpectInvalid(GgufWriter().Text(".rope.freq_base", "1e4"),
                "llama.rope.freq_base: got a string, want a number");
  ExpectInvalid(Small().F32(".block_count", 2), "llama.block_count: got a number, want an integer");
  ExpectInvalid(Small().U32(".rope.scaling.type", 1),
                "llama.rope.scaling.type: got an integer, want a string");
  ExpectInvalid(Small("qwen2vl").Text(".rope.dimension_sections", "1"),
                "qwen2vl.rope.dimension_sections: got a string, want integers");
  ExpectInvalid(Small().U32List(".rope.dimension_count", {1, 2}),
                "llama.rope.dimension_count: got a list of 2 integers, want an integer");
  ExpectInvalid(GgufWriter("").U32("general.architecture", 1),
                "general.architecture: got an integer, want a string");
  ExpectInvalid(GgufWriter("\x01"), "general.architecture: got \"?\", want a name");
  ExpectInvalid(GgufWriter(""), "general.architecture: got nothing, want the name");
}

TEST(GgufConfigTest, HeadCountsPerLayerGiveTheLargest) {
  ASSERT_OK(model, Read(Small("gemma3")
                            .U32(".attention.head_count", 8)
                            .U32List(".attention.head_count_kv", {2, 4, 2})));
  EXPECT_EQ(model->num_heads(), 8);
  EXPECT_EQ(model->num_kv_heads(), 4);
}

TEST(GgufScalingTest, LinearIsTheDefaultAndOldFilesHaveAnotherKey) {
  EXPECT_EQ(Layer(Small().F32(".rope.scaling.factor", 1)).config.rope_type, RopeType::kDefault);
  for (const std::string key : {".rope.scaling.factor", ".rope.scale_linear"}) {
    const LayerConfig layer = Layer(Small().F32(key, 4));
    EXPECT_EQ(layer.config.rope_type, RopeType::kLinear);
    EXPECT_EQ(layer.config.factor, 4);
  }
  EXPECT_EQ(Layer(Small().Text(".rope.scaling.type", "none").F32(".rope.scaling.factor", 4))
                .config.rope_type,
            RopeType::kDefault);
}

TEST(GgufScalingTest, UnknownTypeAndFactorsThatAreNotPossibleAreRefused) {
  ExpectInvalid(Small().Text(".rope.scaling.type", "ntk"),
                "llama.rope.scaling.type: got \"ntk\", want none, linear, yarn or longrope");
  ExpectInvalid(Small().F32(".rope.scaling.factor", -1), "llama.rope.scaling.factor: got -1, want");
  ExpectInvalid(Small().F32(".rope.scaling.attn_factor", 2),
                "llama.rope.scaling.attn_factor: got 2, want 1 without yarn");
}

TEST(GgufScalingTest, RopeFreqsDivideTheFrequenciesAndLargeOnesStopThem) {
  const LayerConfig layer = Layer(Small().Tensor("rope_freqs.weight", {2, 1e30f}));
  EXPECT_THAT(layer.config.inv_freq, ElementsAre(0.5, 0));
  const LayerConfig scaled =
      Layer(Small().F32(".rope.scaling.factor", 4).Tensor("rope_freqs.weight", {2, 1}));
  EXPECT_THAT(scaled.config.inv_freq, ElementsAre(0.125, 0.0025));
}

TEST(GgufScalingTest, TensorsThatDoNotFitAreRefused) {
  ExpectInvalid(Small().Tensor("rope_freqs.weight", {1}),
                "rope_freqs.weight: got 1 numbers, want rotary_dim/2, 2");
  ExpectInvalid(Small().Tensor("rope_freqs.weight", {1, 0}),
                "rope_freqs.weight[1]: got 0, want a finite number > 0");
  ExpectInvalid(Small().Tensor("rope_factors_long.weight", {1, 1}),
                "rope_factors_short.weight: got no tensor, want one for longrope");
  ExpectInvalid(Small().Text(".rope.scaling.type", "yarn").Tensor("rope_freqs.weight", {1, 1}),
                "llama.rope.scaling.type: got yarn beside a tensor of factors");
}

TEST(GgufScalingTest, LongropeWithoutAttnFactorTakesOne) {
  const LayerConfig layer = Layer(Small("phi3")
                                      .Tensor("rope_factors_long.weight", {1, 4})
                                      .Tensor("rope_factors_short.weight", {1, 2}));
  EXPECT_EQ(layer.config.rope_type, RopeType::kLongrope);
  EXPECT_THAT(layer.config.long_factor, ElementsAre(1, 4));
  EXPECT_EQ(layer.config.attention_factor, 1);
  EXPECT_THAT(TextsOf(layer.remarks), Contains(HasSubstr("attn_factor absent, taken as 1")));
}

GgufWriter Yarn(const std::string& architecture) {
  GgufWriter writer = Small(architecture);
  writer.Text(".rope.scaling.type", "yarn")
      .F32(".rope.scaling.factor", 4)
      .U32(".context_length", 64);
  return writer;
}

TEST(GgufScalingTest, LogMultiplierMeansWhatTheArchitectureSays) {
  const auto with = [](const std::string& architecture, float value) {
    return Layer(Yarn(architecture).F32(".rope.scaling.yarn_log_multiplier", value));
  };
  EXPECT_DOUBLE_EQ(*with("deepseek2", 0.0707f).config.mscale_all_dim, 0.707);
  EXPECT_DOUBLE_EQ(*with("deepseek2", 0.0707f).config.mscale, 0.707);
  EXPECT_EQ(with("mistral3", 0.5f).config.mscale_all_dim, 0.5);
  EXPECT_EQ(with("mistral3", 0.5f).config.mscale, 1);
  const LayerConfig other = with("llama", 0.5f);
  EXPECT_FALSE(other.config.mscale_all_dim.has_value());
  EXPECT_THAT(TextsOf(other.remarks), ElementsAre(HasSubstr("yarn_log_multiplier is not used")));
}

TEST(GgufScalingTest, YarnTakesBetasOfTheFileElseOfTheArchitecture) {
  EXPECT_EQ(Layer(Yarn("llama")).config.beta_fast, 32);
  EXPECT_EQ(Layer(Yarn("grok")).config.beta_fast, 8);
  EXPECT_EQ(Layer(Yarn("llama").F32(".rope.scaling.yarn_beta_fast", 16)).config.beta_fast, 16);
  EXPECT_EQ(Layer(Yarn("llama")).config.truncate, true);
  ExpectInvalid(Yarn("llama").F32(".rope.scaling.yarn_ext_factor", 0.5f),
                "llama.rope.scaling.yarn_ext_factor: got 0.5, want 1");
}

TEST(GgufScalingTest, AlphaOfHunyuanEnlargesTheBase) {
  const LayerConfig layer = Layer(Small("hunyuan_vl").F32(".rope.scaling.alpha", 1000));
  EXPECT_EQ(layer.config.rope_type, RopeType::kDynamic);
  EXPECT_EQ(layer.config.alpha, 1000);
}

TEST(GgufLayersTest, PatternIsAListOrAPeriodOrTheArchitectures) {
  const auto gemma = [] {
    return Small("gemma3").U32(".block_count", 7).U32(".attention.sliding_window", 8);
  };
  EXPECT_EQ(Letters(gemma(), 7), "SSSSSFS");
  EXPECT_EQ(Letters(gemma().U32(".attention.sliding_window_pattern", 2), 7), "SFSFSFS");
  EXPECT_EQ(Letters(gemma().BoolList(".attention.sliding_window_pattern", "FTFFFFF"), 7),
            "FSFFFFF");
  ExpectInvalid(gemma().BoolList(".attention.sliding_window_pattern", "FT"),
                "gemma3.attention.sliding_window_pattern: got 2 elements, want one for each of 7");
  ExpectInvalid(gemma().U32(".attention.sliding_window_pattern", 0),
                "gemma3.attention.sliding_window_pattern: got 0, want a list, or a period");
}

TEST(GgufLayersTest, ModelWithoutAWindowHasNoSlidingLayers) {
  EXPECT_EQ(Letters(Small("gemma3").U32(".block_count", 2), 2), "AA");
  EXPECT_EQ(Letters(Small("llama4").U32(".block_count", 4).U32(".attention.sliding_window", 0), 4),
            "AAAA");
  EXPECT_EQ(Letters(Small("llama4").U32(".block_count", 4), 4), "AAAf");
}

TEST(GgufLayersTest, LayersWithoutRotation) {
  EXPECT_EQ(Letters(Small("cohere2").U32(".block_count", 5).U32(".attention.sliding_window", 8), 5),
            "SSSfS");
  EXPECT_EQ(Letters(Small("smollm3").U32(".block_count", 5), 5), "AAAaA");
  EXPECT_EQ(Letters(Small("qwen3next").U32(".block_count", 5), 5), "lllFl");
  EXPECT_EQ(Letters(Small("qwen35")
                        .U32(".block_count", 3)
                        .BoolList(".attention.recurrent_layers", "TFT")
                        .U32List(".rope.dimension_sections", {1, 1, 0, 0}),
                    3),
            "lFl");
  EXPECT_EQ(
      Letters(Small("lfm2").U32(".block_count", 3).U32List(".attention.head_count_kv", {0, 2, 0}),
              3),
      "aAa");
  EXPECT_EQ(
      Letters(Small("granitehybrid").U32(".block_count", 2).Bool(".rope.scaling.finetuned", false),
              2),
      "aa");
}

TEST(GgufLayersTest, LayersThatDraftTokensAreNotCounted) {
  ASSERT_OK(model, Read(Small("glm4moe").U32(".block_count", 5).U32(".nextn_predict_layers", 1)));
  EXPECT_THAT(model->Layer({.layer = 3}), IsOk());
  EXPECT_FALSE(model->Layer({.layer = 4}).ok());
  ExpectInvalid(Small().U32(".block_count", 0), "llama.block_count: got 0, want 1 to 65536");
}

TEST(GgufArchitecturesTest, EveryArchitectureWithLayersHasAPairing) {
  for (const char* const name : {"gemma3", "gpt-oss", "step35", "qwen3next", "mistral4"}) {
    EXPECT_TRUE(GgufRopeOf(name).has_value()) << name;
  }
  EXPECT_EQ(GgufRopeOf("gpt-oss"), GgufRope::kNeox);
  EXPECT_FALSE(GgufRopeOf("").has_value());
}

}  // namespace
}  // namespace rope::kernels
