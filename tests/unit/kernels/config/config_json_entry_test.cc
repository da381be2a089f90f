#include "kernels/config/config_json_entry.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/config/config_json.h"
#include "kernels/frequencies/frequencies.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/config/remark_texts.h"

namespace rope::kernels {
namespace {

using ::rope::testing::TextsOf;
using ::testing::IsSupersetOf;

LayerConfig Read(std::string_view json, const std::string& layer_type = "") {
  const auto model = ModelConfig::Parse(json);
  EXPECT_THAT(model, IsOk());
  if (!model.ok()) return {};
  const auto layer = model->Layer({.layer_type = layer_type});
  EXPECT_THAT(layer, IsOk());
  return layer.ok() ? *layer : LayerConfig{};
}

std::vector<double> Frequencies(const LayerConfig& layer) {
  const auto rope = Resolve(layer.config);
  EXPECT_THAT(rope, IsOk());
  std::vector<double> numbers;
  if (!rope.ok()) return numbers;
  for (const InverseFrequency number : (*rope)->Evaluate(1).inv_freq) {
    numbers.push_back(static_cast<double>(number));
  }
  return numbers;
}

std::vector<int> Axes(const LayerConfig& layer) {
  std::vector<int> axes;
  for (size_t i = 0; i < Frequencies(layer).size(); ++i) {
    axes.push_back(AxisOf(*layer.config.mrope, static_cast<int64_t>(i)));
  }
  return axes;
}

std::string Vision(std::string_view model_type) {
  return R"({"model_type": ")" + std::string(model_type) + R"(", "head_dim": 16,
      "rope_parameters": {"rope_type": "axial", "rope_theta": 16}})";
}

TEST(AxialTest, HeightThenWidthEachWithFrequenciesOfHalfAHead) {
  const LayerConfig layer = Read(Vision("qwen2_vl_vision"));
  EXPECT_EQ(layer.pairing, Pairing::kHalf);
  EXPECT_EQ(Axes(layer), (std::vector<int>{1, 1, 1, 1, 2, 2, 2, 2}));
  EXPECT_EQ(Frequencies(layer), (std::vector<double>{1, 0.5, 0.25, 0.125, 1, 0.5, 0.25, 0.125}));
}

TEST(AxialTest, TowerOfAKnownModelNeedsNoRopeType) {
  const LayerConfig layer =
      Read(R"({"model_type": "qwen2_vl_vision", "head_dim": 16, "rope_theta": 16})");
  EXPECT_EQ(Axes(layer), (std::vector<int>{1, 1, 1, 1, 2, 2, 2, 2}));
  EXPECT_EQ(Frequencies(layer), (std::vector<double>{1, 0.5, 0.25, 0.125, 1, 0.5, 0.25, 0.125}));
}

TEST(AxialTest, HeadOfQwen2VlsTowerIsAPartOfEmbedDim) {
  const LayerConfig published = Read(R"({"model_type": "qwen2_vl_vision", "depth": 32,
      "embed_dim": 1280, "hidden_size": 3584, "num_heads": 16, "mlp_ratio": 4})");
  EXPECT_EQ(published.config.head_dim, 80);
  EXPECT_EQ(published.config.mrope->section, (std::array<int64_t, 3>{0, 20, 20}));
  // Other towers have no such key.
  EXPECT_EQ(Read(R"({"model_type": "qwen2_5_vl_vision", "embed_dim": 7, "hidden_size": 1280,
                     "num_heads": 16})")
                .config.head_dim,
            80);
}

TEST(AxialTest, WidthFirst) {
  const LayerConfig layer = Read(Vision("inkling2_vision"));
  EXPECT_EQ(layer.pairing, Pairing::kInterleaved);
  EXPECT_EQ(Axes(layer), (std::vector<int>{2, 2, 2, 2, 1, 1, 1, 1}));
  EXPECT_EQ(Frequencies(layer), (std::vector<double>{1, 0.5, 0.25, 0.125, 1, 0.5, 0.25, 0.125}));
}

TEST(AxialTest, WidthAndHeightAlternate) {
  const LayerConfig layer = Read(Vision("kimi_k25_vision"));
  EXPECT_EQ(Axes(layer), (std::vector<int>{2, 1, 2, 1, 2, 1, 2, 1}));
  EXPECT_EQ(Frequencies(layer), (std::vector<double>{1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125}));
}

TEST(AxialTest, HeightHasTheEvenFrequenciesOfPixtral) {
  const LayerConfig layer = Read(Vision("pixtral"));
  EXPECT_EQ(Axes(layer), (std::vector<int>{1, 1, 1, 1, 2, 2, 2, 2}));
  const std::vector<double> numbers = Frequencies(layer);
  EXPECT_EQ(numbers[1], 0.5);                   // 16^(-4/16)
  EXPECT_EQ(numbers[4], std::pow(16, -0.125));  // 16^(-2/16)
}

TEST(AxialTest, ThreeAxesLeaveTheRestOfTheHead) {
  const LayerConfig layer = Read(Vision("minimax_m3_vl_vision"));
  EXPECT_EQ(layer.config.rotary_dim, 12);
  EXPECT_EQ(Axes(layer), (std::vector<int>{0, 0, 1, 1, 2, 2}));
}

TEST(AxialTest, AlternatingAxesWithEveryScaling) {
  const LayerConfig layer = Read(R"({"model_type": "neomme", "head_dim": 8, "rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 2, "rope_theta": 16,
                         "partial_rotary_factor": 1.0},
      "sliding_attention": {"rope_type": "default", "rope_theta": 16}}})",
                                 "full_attention");
  EXPECT_EQ(Axes(layer), (std::vector<int>{1, 2, 1, 2}));
  EXPECT_EQ(Frequencies(layer), (std::vector<double>{0.5, 0.25, 0.125, 0.0625}));
}

struct NoRotation {
  std::string model_type;
  std::string reason;
};

TEST(AxialTest, ModelsThatDoNotRotateQAndKByIntegersAreRefusedByName) {
  const NoRotation kNoRotations[] = {
      {"clvp_encoder", "rotates v too"},
      {"dinov3_vit", "real coordinates in [-1, 1]"},
      {"edgetam_video", "memory_attention_hidden_size"},
      {"efficientloftr", "all heads as one"},
      {"eomt_dinov3", "real coordinates in [-1, 1]"},
      {"esmfold2", "real coordinates of atoms"},
      {"gemma4_vision", "two blocks of half a head"},
      {"llama4_vision_model", "it takes no positions"},
      {"musicflamingo", "times in seconds"},
      {"sam2_video", "memory_attention_hidden_size"},
      {"sam3_tracker_video", "memory_attention_hidden_size"},
      {"sapiens2", "real coordinates in [-1, 1]"},
      {"seamless_m4t", "before q and k are made"},
      {"wav2vec2-bert", "before q and k are made"},
      {"wav2vec2-conformer", "before q and k are made"},
  };
  for (const NoRotation& model : kNoRotations) {
    const std::string want = "model_type: got " + model.model_type + ", want another one: ";
    EXPECT_THAT(
        ModelConfig::Parse(R"({"head_dim": 16, "model_type": ")" + model.model_type + "\"}"),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr(want), HasSubstr(model.reason))));
  }
}

TEST(MropeTest, SectionsOfHunYuanVlSplitPairsAndAreRefused) {
  EXPECT_THAT(ModelConfig::Parse(R"({"model_type": "hunyuan_vl", "head_dim": 128,
                  "rope_parameters": {"rope_theta": 16, "mrope_section": [22, 21, 21]}})"),
              IsInvalid("rope_parameters.mrope_section: got 3 numbers, want no "
                        "mrope_section: its sections count channels of a head"));
  EXPECT_FALSE(Read(R"({"model_type": "hunyuan_vl", "head_dim": 128})").config.mrope.has_value());
}

TEST(AxialTest, WhatCannotBeOneRotationIsRefusedByName) {
  EXPECT_THAT(ModelConfig::Parse(Vision("gemma4_vision")), IsInvalid("two blocks of half a head"));
  EXPECT_THAT(ModelConfig::Parse(R"({"model_type": "pixtral", "head_dim": 18, "rope_parameters": {
                  "rope_type": "axial", "rope_theta": 16}})"),
              IsInvalid("want a multiple of 4"));
}

TEST(MropeTest, CountsOfTheCodeFitTheHead) {
  const LayerConfig wide = Read(R"({"model_type": "qwen3_vl_text", "head_dim": 128})");
  EXPECT_EQ(wide.config.mrope->section, (std::array<int64_t, 3>{24, 20, 20}));
  EXPECT_EQ(wide.config.mrope->layout, Mrope::Layout::kInterleaved);
  const LayerConfig narrow = Read(R"({"model_type": "qwen3_vl_text", "head_dim": 16})");
  EXPECT_EQ(narrow.config.mrope->section, (std::array<int64_t, 3>{3, 3, 2}));
  // Blocks of another head size mean nothing, so there is one axis.
  EXPECT_FALSE(Read(R"({"model_type": "qwen2_vl_text", "head_dim": 16})").config.mrope.has_value());
}

TEST(ModelCodeTest, NanoChatTurnsTheOtherWay) {
  const LayerConfig layer = Read(R"({"model_type": "nanochat", "head_dim": 4, "rope_theta": 16})");
  EXPECT_EQ(Frequencies(layer), (std::vector<double>{-1, -0.25}));
}

TEST(ModelCodeTest, DeepSeekV4TurnsTheLastChannels) {
  const LayerConfig layer = Read(R"({"model_type": "deepseek_v4", "head_dim": 512,
      "rope_parameters": {"main": {"rope_theta": 10000, "partial_rotary_factor": 0.125},
                          "compress": {"rope_theta": 160000, "partial_rotary_factor": 0.125}}})",
                                 "compress");
  EXPECT_EQ(layer.config.rotary_offset, 448);
  EXPECT_EQ(layer.config.rope_theta, 160000);
}

TEST(ModelCodeTest, HalfPairsOfDeepSeekStayWhereTheyAre) {
  constexpr char kHalf[] = R"({"model_type": "deepseek_v3", "qk_rope_head_dim": 64,
      "rope_interleave": false})";
  EXPECT_EQ(Read(kHalf).pairing, Pairing::kHalf);
  EXPECT_EQ(Read(kHalf).channel_order, std::nullopt);
  EXPECT_EQ(Read(R"({"model_type": "deepseek_v3", "qk_rope_head_dim": 64})").channel_order,
            Pairing::kHalf);
}

TEST(ModelCodeTest, SizesUnderOtherNamesAndByLayer) {
  EXPECT_EQ(Read(R"({"model_type": "jetmoe", "kv_channels": 96, "hidden_size": 4096,
                     "num_attention_heads": 32})")
                .config.head_dim,
            96);
  constexpr char kGemma[] = R"({"model_type": "gemma4_text", "head_dim": 256,
      "num_hidden_layers": 3, "num_attention_heads": 8,
      "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
      "per_layer_config": {"2": {"head_dim": 512}, "junk": 3, "9": {"head_dim": 7}},
      "rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": 1000000,
                                             "partial_rotary_factor": 0.25},
                          "sliding_attention": {"rope_type": "default", "rope_theta": 10000}}})";
  EXPECT_EQ(Read(kGemma, "full_attention").config.head_dim, 512);
  EXPECT_EQ(Read(kGemma, "sliding_attention").config.head_dim, 256);
}

// A ChatGLM of these keys beside its sizes.
LayerConfig ChatGlm(const std::string& keys) {
  return Read(R"({"model_type": "chatglm", "kv_channels": 128, "padded_vocab_size": 151552)" +
              (keys.empty() ? "" : ", " + keys) + "}");
}

TEST(ModelCodeTest, ChatGlmMultipliesItsBase) {
  const auto assumed = HasSubstr("partial_rotary_factor absent, taken as 0.5, as its code does");
  const LayerConfig plain = ChatGlm("");
  EXPECT_EQ(plain.config.rope_theta, 1e4);
  EXPECT_EQ(RotaryDim(plain.config, plain.config.head_dim), 64);
  EXPECT_EQ(plain.pairing, Pairing::kInterleaved);
  EXPECT_THAT(TextsOf(plain.remarks), ElementsAre(assumed));
  const LayerConfig longer = ChatGlm(R"("rope_ratio": 500, "original_rope": true)");
  EXPECT_EQ(longer.config.rope_theta, 5e6);
  EXPECT_EQ(longer.pairing, Pairing::kInterleaved);
  EXPECT_THAT(TextsOf(longer.remarks), ElementsAre(assumed));
  EXPECT_THAT(ModelConfig::Parse(R"({"model_type": "chatglm", "rope_ratio": 0})"),
              IsInvalid("rope_ratio: got 0, want a number above 0"));
}

TEST(ModelCodeTest, ChatGlmReadsNeitherAThetaNorAScaling) {
  const LayerConfig layer = ChatGlm(
      R"("rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 4, "rope_theta": 7})");
  EXPECT_EQ(layer.config.rope_theta, 1e4);
  EXPECT_EQ(layer.config.rope_type, RopeType::kDefault);
  EXPECT_THAT(TextsOf(layer.remarks),
              IsSupersetOf({"rope_scaling is not used: the code of chatglm has no scaling",
                            "rope_theta is not used: the code of chatglm takes 10000 * "
                            "rope_ratio"}));
}

TEST(ModelCodeTest, ChatGlmWithoutTheOriginalRopeTurnsHalfPairs) {
  const LayerConfig layer = ChatGlm(R"("original_rope": false)");
  EXPECT_EQ(layer.pairing, Pairing::kHalf);
  EXPECT_THAT(TextsOf(layer.remarks), Contains(HasSubstr("SGLang and llama.cpp do not read it")));
}

TEST(ModelCodeTest, ChatGlm2AndChatGlm3ReadTheRatioInTwoWays) {
  const auto warns = Contains(HasSubstr("ChatGLM2-6B-32k divides positions by it"));
  const auto remarks_with = [](const std::string& keys) {
    return TextsOf(Read(R"({"model_type": "chatglm", "kv_channels": 128, )" + keys + "}").remarks);
  };
  EXPECT_THAT(remarks_with(R"("rope_ratio": 50, "padded_vocab_size": 65024)"), warns);
  EXPECT_THAT(remarks_with(R"("rope_ratio": 50)"), warns);
  EXPECT_THAT(remarks_with(R"("rope_ratio": 1, "padded_vocab_size": 65024)"), Not(warns));
}

TEST(ModelCodeTest, ChatGlmWithTwoRowsOfPositionsIsRefused) {
  EXPECT_THAT(
      ModelConfig::Parse(R"({"model_type": "chatglm", "position_encoding_2d": true})"),
      IsInvalid("model_type: got chatglm, want another one: ChatGLM-6B turns each half of a head"));
  EXPECT_EQ(ChatGlm(R"("position_encoding_2d": false)").config.rope_theta, 1e4);
}

TEST(ModelCodeTest, LayerTypeWithoutParametersDoesNotRotate) {
  constexpr char kBeam[] = R"({"model_type": "beam", "head_dim": 128, "rope_parameters": {
      "sliding_attention": {"rope_type": "default", "rope_theta": 10000},
      "full_attention": null}})";
  EXPECT_FALSE(Read(kBeam, "full_attention").rotates);
  EXPECT_TRUE(Read(kBeam, "sliding_attention").rotates);
}

TEST(ModelCodeTest, FractionOfAnotherHeadSize) {
  const LayerConfig layer = Read(R"({"model_type": "mistral4", "qk_nope_head_dim": 64,
      "qk_rope_head_dim": 64, "rope_parameters": {"rope_type": "linear", "factor": 2,
      "rope_theta": 10000, "partial_rotary_factor": 0.5}})");
  EXPECT_EQ(layer.config.head_dim, 64);
  EXPECT_EQ(layer.config.rotary_dim, 64);
}

TEST(ModelCodeTest, TruncateOfALayerTypeIsNotReadAndWarned) {
  const LayerConfig layer = Read(R"({"head_dim": 64, "max_position_embeddings": 8192,
      "rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4, "truncate": false,
      "rope_theta": 10000, "original_max_position_embeddings": 2048}}})",
                                 "full_attention");
  EXPECT_EQ(layer.config.truncate, std::nullopt);
  EXPECT_THAT(TextsOf(layer.remarks), Contains(HasSubstr("truncate is not used")));
}

TEST(ModelCodeTest, PhiMoEHasOneFactorForEveryLength) {
  const std::string file = R"({"model_type": "phimoe", "head_dim": 4,
      "max_position_embeddings": 8192, "rope_scaling": {"type": "longrope",
      "original_max_position_embeddings": 4096, "short_factor": [1, 2], "long_factor": [3, 4],
      "short_mscale": 1.25, "long_mscale": )";
  EXPECT_EQ(Read(file + "1.25}}").config.attention_factor, 1.25);
  EXPECT_EQ(Read(file + "1.25}}").config.longrope_branch, LongropeBranch::kShort);
  EXPECT_THAT(ModelConfig::Parse(file + "1.5}}"),
              IsInvalid("rope_scaling.long_mscale: got 1.5, want short_mscale, 1.25"));
}

}  // namespace
}  // namespace rope::kernels
