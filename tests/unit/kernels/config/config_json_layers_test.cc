#include "kernels/config/config_json_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/config/config_json.h"
#include "kernels/config/model_defaults.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/config/remark_texts.h"

namespace rope::kernels {
namespace {

using ::rope::testing::IsOk;
using ::rope::testing::StatusIs;
using ::rope::testing::TextsOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<LayerList> Read(std::string_view json) {
  auto file = ParseJsonObject(json);
  if (!file.ok()) return file.status();
  CompleteModel(*file, false);
  const auto document = LocateParameters(JsonFields(*file));
  if (!document.ok()) return document.status();
  return ReadLayerList(*document);
}

// One letter per layer: F full, S sliding, L linear, A other. Lower case: the layer does not
// rotate.
std::string Letters(std::string_view json) {
  const auto layers = Read(json);
  EXPECT_THAT(layers, IsOk());
  if (!layers.ok()) return "";
  std::string letters;
  for (size_t i = 0; i < static_cast<size_t>(layers->count.value_or(0)); ++i) {
    const std::string type = layers->types.empty() ? "any" : layers->types[i];
    const bool rotates = layers->no_rope.empty() || !layers->no_rope[i];
    const char letter = type == "full_attention"      ? 'F'
                        : type == "sliding_attention" ? 'S'
                        : type == "linear_attention"  ? 'L'
                                                      : 'A';
    letters += rotates ? letter : static_cast<char>(letter - 'A' + 'a');
  }
  return letters;
}

void ExpectInvalid(std::string_view json, const std::string& message) {
  EXPECT_THAT(Read(json), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
}

TEST(LayerListTest, FileThatSaysNothingHasNoCount) {
  const auto layers = Read("{}");
  ASSERT_THAT(layers, IsOk());
  EXPECT_FALSE(layers->count.has_value());
  EXPECT_THAT(layers->types, IsEmpty());
  EXPECT_THAT(layers->no_rope, IsEmpty());
}

TEST(LayerListTest, CountAloneGivesLayersOfOneKind) {
  EXPECT_EQ(Letters(R"({"num_hidden_layers": 3})"), "AAA");
  EXPECT_EQ(Letters(R"({"n_layer": 2})"), "AA");
}

TEST(LayerListTest, CountHasLimits) {
  EXPECT_THAT(Read(R"({"num_hidden_layers": 65536})"), IsOk());
  ExpectInvalid(R"({"num_hidden_layers": 65537})", "num_hidden_layers: got 65537, want 1 to 65536");
  ExpectInvalid(R"({"n_layer": 0})", "n_layer: got 0, want 1 to 65536");
}

TEST(LayerTypesTest, ListWinsOverEveryRule) {
  EXPECT_EQ(Letters(R"({"layer_types": ["full_attention", "sliding_attention"],
                        "sliding_window_pattern": 1, "hybrid_layer_pattern": [1, 0]})"),
            "FS");
}

TEST(LayerTypesTest, HybridPatternMarksSlidingLayers) {
  EXPECT_EQ(Letters(R"({"hybrid_layer_pattern": [0, 1, 1, 0]})"), "FSSF");
  ExpectInvalid(R"({"hybrid_layer_pattern": [0, 2]})", "hybrid_layer_pattern: got 2, want 0 or 1");
  ExpectInvalid(R"({"num_hidden_layers": 3, "hybrid_layer_pattern": [0, 1]})",
                "hybrid_layer_pattern: got 2 entries, want num_hidden_layers, 3");
}

TEST(LayerTypesTest, PeriodEndsWithFullAttention) {
  EXPECT_EQ(Letters(R"({"num_hidden_layers": 5, "sliding_window_pattern": 3})"), "SSFSS");
  EXPECT_EQ(Letters(R"({"num_hidden_layers": 2, "_sliding_window_pattern": 2})"), "SF");
  ExpectInvalid(R"({"num_hidden_layers": 3, "_sliding_window_pattern": 0})",
                "_sliding_window_pattern: got 0, want at least 1");
}

TEST(LayerTypesTest, LettersRepeat) {
  EXPECT_EQ(Letters(R"({"num_hidden_layers": 6, "sliding_window_pattern": "LLG"})"), "SSFSSF");
  for (const char* letters : {"", "LX"}) {
    ExpectInvalid(
        R"({"num_hidden_layers": 3, "sliding_window_pattern": ")" + std::string(letters) + "\"}",
        "sliding_window_pattern: got \"" + std::string(letters) +
            "\", want a number, or letters L and G");
  }
}

TEST(LayerTypesTest, GlobalAttentionComesFirst) {
  EXPECT_EQ(Letters(R"({"num_hidden_layers": 5, "global_attn_every_n_layers": 3})"), "FSSFS");
  ExpectInvalid(R"({"num_hidden_layers": 3, "global_attn_every_n_layers": 0})",
                "global_attn_every_n_layers: got 0, want at least 1");
}

TEST(LayerTypesTest, FullAttentionIntervalLeavesLinearAttentionUnrotated) {
  EXPECT_EQ(Letters(R"({"num_hidden_layers": 5, "full_attention_interval": 4})"), "lllFl");
  ExpectInvalid(R"({"num_hidden_layers": 3, "full_attention_interval": 0})",
                "full_attention_interval: got 0, want at least 1");
}

TEST(LayerTypesTest, ModelTypeFillsIn) {
  EXPECT_EQ(Letters(R"({"num_hidden_layers": 6, "model_type": "gemma3_text"})"), "SSSSSF");
  EXPECT_EQ(Letters(R"({"num_hidden_layers": 4, "model_type": "qwen3_next"})"), "lllF");
  EXPECT_EQ(Letters(R"({"num_hidden_layers": 4, "model_type": "cohere2"})"), "SSSf");
}

TEST(NoRopeTest, ListWinsOverTheInterval) {
  EXPECT_EQ(Letters(R"({"no_rope_layers": [0, 1], "no_rope_layer_interval": 2})"), "aA");
  EXPECT_EQ(Letters(R"({"num_hidden_layers": 4, "no_rope_layer_interval": 2})"), "AaAa");
  ExpectInvalid(R"({"num_hidden_layers": 4, "no_rope_layer_interval": 0})",
                "no_rope_layer_interval: got 0, want at least 1");
}

TEST(NoRopeTest, ModelTypeFillsInTheInterval) {
  EXPECT_EQ(Letters(R"({"num_hidden_layers": 4, "model_type": "smollm3"})"), "AAAa");
  EXPECT_EQ(Letters(R"({"num_hidden_layers": 4, "model_type": "llama4_text",
                        "no_rope_layers": []})"),
            "AAAa");
}

TEST(NoRopeTest, LayersWithoutScoresDoNotRotate) {
  EXPECT_EQ(Letters(R"({"layer_types": ["mamba", "attention", "conv", "linear_attention",
                                        "full_attention", "chunked_attention"]})"),
            "aAalFA");
}

TEST(NoRopeTest, ExaoneLeavesFullAttentionUnrotatedOnlyBesideAWindow) {
  constexpr char kTypes[] = R"("layer_types": ["sliding_attention", "full_attention"])";
  EXPECT_EQ(
      Letters(std::string(R"({"model_type": "exaone4", "sliding_window": 64, )") + kTypes + "}"),
      "Sf");
  EXPECT_EQ(
      Letters(std::string(R"({"model_type": "exaone4", "sliding_window": null, )") + kTypes + "}"),
      "SF");
  EXPECT_EQ(Letters(std::string(R"({"sliding_window": 64, )") + kTypes + "}"), "SF");
}

TEST(NoRopeTest, ListOfAnotherLengthThanTheTypesIsInvalid) {
  ExpectInvalid(R"({"layer_types": ["full_attention"], "no_rope_layers": [1, 1]})",
                "no_rope_layers: got 2 entries, want num_hidden_layers, 1");
}

LayerConfig Pick(std::string_view json, const LayerChoice& choice) {
  const auto model = ModelConfig::Parse(json);
  EXPECT_THAT(model, IsOk());
  if (!model.ok()) return {};
  const auto layer = model->Layer(choice);
  EXPECT_THAT(layer, IsOk());
  return layer.ok() ? *layer : LayerConfig{};
}

TEST(LayerChoiceTest, SameLayersHaveOneTypeAndRotateAlike) {
  const auto model = ModelConfig::Parse(R"({"rope_theta": 7, "num_hidden_layers": 6,
      "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention",
                      "sliding_attention", "full_attention"],
      "no_rope_layers": [1, 1, 1, 0, 1, 0]})");
  ASSERT_THAT(model, IsOk());
  EXPECT_TRUE(model->SameLayers(0, 2));
  EXPECT_TRUE(model->SameLayers(1, 4));
  EXPECT_FALSE(model->SameLayers(0, 1));
  EXPECT_FALSE(model->SameLayers(2, 3)) << "one does not rotate";
  EXPECT_TRUE(model->SameLayers(3, 5));
  EXPECT_FALSE(model->SameLayers(0, 6)) << "there are six layers";
  EXPECT_FALSE(model->SameLayers(-1, 0));
}

TEST(LayerChoiceTest, TypeTellsWhetherItsLayersRotate) {
  constexpr char kCohere[] =
      R"({"model_type": "cohere2", "rope_theta": 7, "num_hidden_layers": 4})";
  const LayerConfig sliding = Pick(kCohere, {.layer_type = "sliding_attention"});
  EXPECT_TRUE(sliding.rotates);
  EXPECT_THAT(TextsOf(sliding.remarks), IsEmpty());
  const LayerConfig full = Pick(kCohere, {.layer_type = "full_attention"});
  EXPECT_FALSE(full.rotates);
  EXPECT_THAT(TextsOf(full.remarks),
              ElementsAre("full_attention layers do not rotate; tensors come back unchanged"));
  const LayerConfig any = Pick(kCohere, {});
  EXPECT_TRUE(any.rotates);
  EXPECT_THAT(TextsOf(any.remarks),
              ElementsAre(HasSubstr("some layers do not rotate, the first is layer "
                                    "3")));
}

TEST(LayerChoiceTest, TypeWhoseLayersDifferWarns) {
  const LayerConfig layer = Pick(R"({"rope_theta": 7, "no_rope_layers": [1, 0],
               "layer_types": ["full_attention", "full_attention"]})",
                                 {.layer_type = "full_attention"});
  EXPECT_TRUE(layer.rotates);
  EXPECT_THAT(TextsOf(layer.remarks), ElementsAre(HasSubstr("some layers do not rotate")));
}

TEST(LayerChoiceTest, ModelOfWhichNoLayerRotatesSaysSo) {
  const LayerConfig layer = Pick(R"({"rope_theta": 7, "no_rope_layers": [0, 0]})", {});
  EXPECT_FALSE(layer.rotates);
  EXPECT_THAT(TextsOf(layer.remarks),
              ElementsAre("layers do not rotate; tensors come back unchanged"));
}

}  // namespace
}  // namespace rope::kernels
