#include "kernels/config/config_json_layers.h"

#include <gtest/gtest.h>

#include <string>

#include "kernels/config/config_json.h"
#include "kernels/config/model_types.h"
#include "kernels/config/placement.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/config/remark_texts.h"

namespace rope::kernels {
namespace {

using ::rope::testing::TextsOf;

absl::StatusOr<LayerList> Read(std::string_view json) {
  auto file = ParseJsonObject(json);
  if (!file.ok()) return file.status();
  CompleteModel(*file, "");
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
  EXPECT_THAT(Read(json), IsInvalid(message));
}

TEST(LayerListTest, FileThatSaysNothingHasNoCount) {
  ASSERT_OK(layers, Read("{}"));
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

TEST(LayerTypesTest, OlderFilesNameTheListLayersBlockType) {
  EXPECT_EQ(Letters(R"({"layers_block_type": ["mamba", "hybrid"]})"), "aA");
  EXPECT_EQ(Letters(R"({"layers_block_type": ["mamba"], "layer_types": ["full_attention"]})"), "F");
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

struct ListOfClass {
  std::string keys;  // of a file with eight layers
  std::string letters;
};

// The files state no list: these are the lists that the config classes make.
const ListOfClass kListsOfClasses[] = {
    {R"("model_type": "afmoe")", "SSSfSSSf"},
    {R"("model_type": "afmoe", "global_attn_every_n_layers": 3)", "SSfSSfSS"},
    {R"("model_type": "bailing_hybrid")", "lllllFll"},
    {R"("model_type": "bailing_hybrid", "layer_group_size": 2)", "lFlFlFlF"},
    {R"("model_type": "bamba", "attn_layer_indices": [1, 4])", "lFllFlll"},
    {R"("model_type": "bamba")", "llllllll"},
    {R"("model_type": "beam", "rope_parameters": {"full_attention": null,
        "sliding_attention": {"rope_theta": 5}})",
     "SSSSSFSF"},
    {R"("model_type": "cwm")", "FSSSFSSS"},
    {R"("model_type": "deepseek_v4")", "AAAAAAAA"},
    {R"("model_type": "flint")", "ffSSSfSf"},
    {R"("model_type": "gemma4_text")", "SSSSSFSF"},
    {R"("model_type": "lfm2", "full_attn_idxs": [2, 5])", "llFllFll"},
    {R"("model_type": "lfm3")", "aaFaSaFa"},
    {R"("model_type": "mimo_v2_flash")", "FSSSSFSS"},
    {R"("model_type": "minimax")", "FlFlFlFl"},
    {R"("model_type": "mistral_large4_text")", "AAAaAAAa"},
    {R"("model_type": "muse_glimmer_text")", "SSSfSSSf"},
    {R"("model_type": "muse_spark_text", "num_hidden_layers": 6)", "SfSSSf"},
    {R"("model_type": "olmo3")", "SSSFSSSF"},
    {R"("model_type": "qwen3_next")", "lllFlllF"},
    {R"("model_type": "recurrent_gemma",
        "block_types": ["recurrent", "recurrent", "attention"])",
     "aaAaaAaa"},
};

TEST(LayerTypesTest, FilesWithoutAListHaveTheOneOfTheirConfigClass) {
  for (const ListOfClass& list : kListsOfClasses) {
    const bool counted = list.keys.find("num_hidden_layers") != std::string::npos;
    const std::string count = counted ? "" : R"(, "num_hidden_layers": 8)";
    EXPECT_EQ(Letters("{" + list.keys + count + "}"), list.letters) << list.keys;
  }
}

TEST(LayerTypesTest, ListOfTheFileWinsOverTheOneOfTheClass) {
  EXPECT_EQ(Letters(R"({"model_type": "olmo3", "layer_types": ["full_attention"]})"), "F");
  EXPECT_EQ(Letters(R"({"model_type": "gemma3_text", "num_hidden_layers": 4,
                        "sliding_window_pattern": 2})"),
            "SFSF");
}

TEST(NoRopeTest, ZerosOfLayerRopeThetaDoNotRotate) {
  EXPECT_EQ(Letters(R"({"layer_rope_theta": [0, 10000.0, 5e5]})"), "aAA");
  ExpectInvalid(R"({"layer_rope_theta": [-1.0]})",
                "layer_rope_theta: got -1, want 0, or a base greater than 0");
  ExpectInvalid(R"({"num_hidden_layers": 3, "layer_rope_theta": [0]})",
                "layer_rope_theta: got 1 entries, want num_hidden_layers, 3");
}

TEST(NoRopeTest, CrossAttentionDoesNotRotate) {
  EXPECT_EQ(Letters(R"({"num_hidden_layers": 5, "cross_attention_layers": [1, 3, 9, -1]})"),
            "AaAaA");
  EXPECT_EQ(Letters(R"({"num_hidden_layers": 10, "model_type": "mllama_text_model"})"),
            "AAAaAAAAaA");
}

TEST(NoRopeTest, FullAttentionOfTheseModelsDoesNotRotate) {
  for (const std::string type : {"afmoe", "flint", "cohere2", "cohere2_moe"}) {
    EXPECT_EQ(Letters(R"({"model_type": ")" + type +
                      R"(", "layer_types": ["sliding_attention", "full_attention"]})"),
              "Sf")
        << type;
  }
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

absl::Status WhyNot(std::string_view json, const LayerChoice& choice) {
  const auto model = ModelConfig::Parse(json);
  return model.ok() ? model->Layer(choice).status() : model.status();
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
  ASSERT_OK(model, ModelConfig::Parse(R"({"rope_theta": 7, "num_hidden_layers": 6,
      "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention",
                      "sliding_attention", "full_attention"],
      "no_rope_layers": [1, 1, 1, 0, 1, 0]})"));
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

TEST(LayerChoiceTest, LayersHaveTheBaseOfLayerRopeTheta) {
  constexpr char kBases[] = R"({"model_type": "granite_swa", "head_dim": 64, "rope_theta": 7,
      "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
      "layer_rope_theta": [50000.0, 0, 10000.0]})";
  EXPECT_EQ(Pick(kBases, {.layer = 0}).config.rope_theta, 50000);
  EXPECT_FALSE(Pick(kBases, {.layer = 1}).rotates);
  EXPECT_EQ(Pick(kBases, {.layer = 2}).config.rope_theta, 10000);
  EXPECT_EQ(Pick(kBases, {.layer_type = "sliding_attention"}).config.rope_theta, 10000);
  EXPECT_THAT(WhyNot(kBases, {}),
              IsInvalid("layer: got nothing, want a layer: layer_rope_theta has 50000 and "
                        "10000"));
  ASSERT_OK(model, ModelConfig::Parse(R"({"layer_rope_theta": [7, 7, 8]})"));
  EXPECT_TRUE(model->SameLayers(0, 1));
  EXPECT_FALSE(model->SameLayers(1, 2)) << "they have two bases";
}

TEST(LayerChoiceTest, LayerRopeThetaOfMuseOnlyMarksTheLayersThatRotate) {
  constexpr char kMarks[] = R"({"model_type": "muse_spark_text", "head_dim": 64,
      "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
      "layer_types": ["sliding_attention", "full_attention"], "layer_rope_theta": [3.0, 0]})";
  EXPECT_EQ(Pick(kMarks, {.layer = 0}).config.rope_theta, 500000);
  EXPECT_FALSE(Pick(kMarks, {.layer = 1}).rotates);
}

TEST(LayerChoiceTest, LayersThatDoNotRotateNeedNoParameters) {
  constexpr char kLfm3[] = R"({"model_type": "lfm3", "head_dim": 64,
      "layer_types": ["conv", "full_attention"], "rope_parameters": {
          "full_attention": {"rope_theta": 7}, "sliding_attention": {"rope_theta": 8}}})";
  EXPECT_FALSE(Pick(kLfm3, {.layer = 0}).rotates);
  EXPECT_FALSE(Pick(kLfm3, {.layer_type = "conv"}).rotates);
  EXPECT_EQ(Pick(kLfm3, {.layer = 1}).config.rope_theta, 7);
  EXPECT_THAT(WhyNot(kLfm3, {.layer_type = "mamba"}), IsInvalid("layer_type: got \"mamba\""));
}

TEST(LayerChoiceTest, CompressedLayersOfDeepSeekV4HaveTheParametersOfCompress) {
  constexpr char kV4[] = R"({"model_type": "deepseek_v4", "head_dim": 64, "layer_types": [
      "sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention"],
      "rope_parameters": {"main": {"rope_theta": 7}, "compress": {"rope_theta": 8}}})";
  EXPECT_EQ(Pick(kV4, {.layer = 0}).config.rope_theta, 7);
  EXPECT_EQ(Pick(kV4, {.layer = 1}).config.rope_theta, 8);
  EXPECT_EQ(Pick(kV4, {.layer = 2}).config.rope_theta, 8);
  EXPECT_EQ(Pick(kV4, {.layer_type = "heavily_compressed_attention"}).config.rope_theta, 8);
  EXPECT_EQ(Pick(kV4, {.layer_type = "compress"}).layer_type, "compress");
}

struct Switch {
  std::string model_type;
  std::string on;   // a key with the value with which the model rotates
  std::string off;  // the same with another value
};

TEST(LayerChoiceTest, KeyOfTheModelSaysWhetherAnyLayerRotates) {
  const Switch kSwitches[] = {
      {"esm", R"("position_embedding_type": "rotary")", R"("position_embedding_type": "absolute")"},
      {"esm", R"("position_embedding_type": "rotary")", R"("hidden_size": 64)"},
      {"falcon", R"("alibi": false)", R"("alibi": true)"},
      {"granitemoehybrid", R"("position_embedding_type": "rope")",
       R"("position_embedding_type": "nope")"},
      {"zamba2", R"("use_mem_rope": true)", R"("use_mem_rope": false)"},
  };
  for (const Switch& key : kSwitches) {
    const std::string file = R"({"head_dim": 64, "model_type": ")" + key.model_type + "\", ";
    EXPECT_TRUE(Pick(file + key.on + "}", {}).rotates) << key.on;
    const LayerConfig still = Pick(file + key.off + "}", {});
    EXPECT_FALSE(still.rotates) << key.off;
    EXPECT_THAT(TextsOf(still.remarks), Contains(HasSubstr("no layer rotates"))) << key.off;
  }
}

TEST(LayerChoiceTest, ModelOfWhichNoLayerRotatesSaysSo) {
  const LayerConfig layer = Pick(R"({"rope_theta": 7, "no_rope_layers": [0, 0]})", {});
  EXPECT_FALSE(layer.rotates);
  EXPECT_THAT(TextsOf(layer.remarks),
              ElementsAre("layers do not rotate; tensors come back unchanged"));
}

}  // namespace
}  // namespace rope::kernels
