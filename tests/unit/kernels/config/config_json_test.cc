#include "kernels/config/config_json.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/config/remark_texts.h"

namespace rope::kernels {
namespace {

using ::rope::testing::TextsOf;

LayerConfig Read(std::string_view json, const LayerChoice& choice = {}) {
  const auto model = ModelConfig::Parse(json);
  EXPECT_THAT(model, IsOk());
  if (!model.ok()) return {};
  const auto layer = model->Layer(choice);
  EXPECT_THAT(layer, IsOk());
  return layer.ok() ? *layer : LayerConfig{};
}

LayerChoice OfType(std::string type) {
  return {.layer_type = std::move(type)};
}

void ExpectInvalid(std::string_view json, const std::string& message) {
  EXPECT_THAT(ModelConfig::Parse(json), IsInvalid(message));
}

TEST(ParseTest, GarbageIsASyntaxError) {
  ExpectInvalid("", "config_json: got an empty text, want JSON");
  ExpectInvalid(" \n\t", "config_json: got an empty text, want JSON");
  ExpectInvalid("{\"a\": [1,\n]}", "config_json: got a trailing comma before ] in line 2");
  ExpectInvalid("{ // a\n}", "config_json: got a comment in line 1");
  ExpectInvalid("{\n\"a\" 1}", "config_json: got a syntax error at byte 7 in line 2");
  ExpectInvalid("{\"a\": nan}", "config_json: got a syntax error at byte");
  ExpectInvalid("{} x", "config_json: got a syntax error at byte");
  ExpectInvalid("{\"a\": \"\xff\"}", "config_json: got a syntax error at byte");
}

TEST(ParseTest, PythonsInfinityAndNaNMatterOnlyWhereTheyAreRead) {
  const auto model = ModelConfig::Parse(
      R"({"time_step_limit": [0.0, Infinity], "low": -Infinity, "s": "a NaN \" NaN", "x": NaN,
          "rope_theta": 7})");
  ASSERT_THAT(model, IsOk());
  EXPECT_EQ(model->Layer({})->config.rope_theta, 7);
  ExpectInvalid("{\"rope_theta\": Infinity}", "rope_theta: got \"Infinity\", want a number");
  ExpectInvalid("{\"rope_theta\": -Infinity}", "rope_theta: got \"-Infinity\", want a number");
}

TEST(ParseTest, OtherThanAnObjectIsInvalid) {
  ExpectInvalid("[]", "config_json: got a list of 0, want a JSON object");
  ExpectInvalid("3", "config_json: got 3, want a JSON object");
}

TEST(ParseTest, NumberThatOverflowsIsInvalid) {
  ExpectInvalid(R"({"rope_theta": 1e999})", "config_json: got a number that a double cannot hold");
}

TEST(ParseTest, DeepNestingIsHarmless) {
  const std::string deep(500000, '[');
  ExpectInvalid(R"({"a": )" + deep, "config_json: got a syntax error");
  EXPECT_THAT(ModelConfig::Parse(R"({"a": )" + deep + std::string(500000, ']') + "}"), IsOk());
}

TEST(ParseTest, DuplicateKeyIsInvalid) {
  ExpectInvalid(R"({"rope_scaling": {"factor": 2, "factor": 4}})",
                "config_json: got key \"factor\" twice, want it once");
  EXPECT_THAT(ModelConfig::Parse(R"({"a": {"factor": 2}, "b": [{"factor": 4}, {"factor": 1}]})"),
              IsOk());
}

TEST(ParseTest, WrongTypesNameThePath) {
  ExpectInvalid(R"({"rope_scaling": {"type": "linear", "factor": "8"}})",
                "rope_scaling.factor: got \"8\", want a number");
  ExpectInvalid(R"({"rope_scaling": 3})", "rope_scaling: got 3, want an object");
  ExpectInvalid(R"({"head_dim": 12.5})", "head_dim: got 12.5, want a whole number");
  ExpectInvalid(R"({"head_dim": 18446744073709551615})", "want a whole number");
  ExpectInvalid(R"({"head_dim": true})", "head_dim: got true, want a whole number");
  ExpectInvalid(R"({"rope_scaling": {"rope_type": 1}})",
                "rope_scaling.rope_type: got 1, want a string");
  ExpectInvalid(R"({"rope_scaling": {"rope_type": "yarn", "truncate": 0}})",
                "rope_scaling.truncate: got 0, want true or false");
  ExpectInvalid(R"({"rope_scaling": {"type": "longrope", "short_factor": [1, "x"]}})",
                "rope_scaling.short_factor[1]: got \"x\", want a number");
  ExpectInvalid(R"({"text_config": {"rope_parameters": {"a": {"rope_theta": []}}}})",
                "text_config.rope_parameters.a.rope_theta: got a list of 0, want a number");
}

TEST(ParseTest, UnknownTypeNamesThePath) {
  ExpectInvalid(R"({"rope_scaling": {"rope_type": "spiral"}})",
                "rope_scaling.rope_type: got \"spiral\", want one of default");
}

TEST(ParseTest, WholeNumbersMayBeWrittenAsFloatsAndBack) {
  const LayerConfig layer =
      Read(R"({"head_dim": 128.0, "rope_theta": 500000, "max_position_embeddings": 4096.0})");
  EXPECT_EQ(layer.config.head_dim, 128);
  EXPECT_EQ(layer.config.rope_theta, 500000);
  EXPECT_EQ(layer.config.max_position_embeddings, 4096);
}

TEST(ParseTest, NullIsAbsent) {
  const LayerConfig layer = Read(
      R"({"rope_parameters": null, "rope_scaling": {"type": "linear", "factor": 2, "mscale": null},
          "head_dim": null, "hidden_size": 512, "num_attention_heads": 8, "rope_theta": 7})");
  EXPECT_EQ(layer.config.rope_type, RopeType::kLinear);
  EXPECT_EQ(layer.config.head_dim, 64);
  EXPECT_FALSE(layer.config.mscale.has_value());
  EXPECT_THAT(TextsOf(layer.remarks), IsEmpty());
}

TEST(SpellingTest, RopeScalingReplacesRopeParameters) {
  const LayerConfig layer =
      Read(R"({"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 7},
               "rope_scaling": {"type": "linear", "factor": 4}, "rope_theta": 8})");
  EXPECT_EQ(layer.config.factor, 4);
  EXPECT_EQ(layer.config.rope_theta, 8);
  EXPECT_THAT(TextsOf(layer.remarks),
              ElementsAre(HasSubstr("replaces rope_parameters, whose rope_theta 7 is lost")));
  ASSERT_NE(layer.names.replaced, nullptr);
  EXPECT_EQ(layer.names.replaced->factor, 2);
  EXPECT_EQ(layer.names.replaced->rope_theta, 7);
}

TEST(SpellingTest, RopeScalingReplacesRopeParametersInATextConfig) {
  const LayerConfig layer =
      Read(R"({"model_type": "llava", "text_config": {"model_type": "llama", "head_dim": 8,
               "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 7},
               "rope_scaling": {"type": "linear", "factor": 4}}})");
  EXPECT_EQ(layer.config.factor, 4);
  ASSERT_NE(layer.names.replaced, nullptr);
  EXPECT_EQ(layer.names.replaced->factor, 2);
}

TEST(SpellingTest, OldTypeNames) {
  const std::string su = R"({"rope_scaling": {"short_factor": [1], "long_factor": [2], )";
  EXPECT_EQ(Read(su + R"("type": "su"}})").config.rope_type, RopeType::kLongrope);
  EXPECT_TRUE(Read(su + R"("type": "su"}})").names.is_su);
  EXPECT_FALSE(Read(su + R"("type": "su", "rope_type": "longrope"}})").names.is_su);
  const std::string beside = R"("type": "su", "original_max_position_embeddings": 4096}})";
  EXPECT_TRUE(Read(su + beside).names.length_in_parameters);
  EXPECT_FALSE(Read(su + R"("type": "su"}, "original_max_position_embeddings": 4096})")
                   .names.length_in_parameters);
  const LayerConfig both = Read(R"({"rope_scaling": {"rope_type": "linear", "type": "yarn"}})");
  EXPECT_EQ(both.config.rope_type, RopeType::kLinear);
  EXPECT_THAT(TextsOf(both.remarks),
              Contains(HasSubstr("type yarn is not used: rope_type says linear")));
}

TEST(SpellingTest, MropeIsDefaultWithSections) {
  const LayerConfig layer = Read(
      R"({"rope_scaling": {"type": "mrope", "rope_type": "default",
                                "mrope_section": [8, 12, 12]}})");
  EXPECT_EQ(layer.config.rope_type, RopeType::kDefault);
  EXPECT_EQ(layer.config.mrope, (Mrope{.section = {8, 12, 12}}));
  const LayerConfig interleaved =
      Read(R"({"rope_scaling": {"mrope_interleaved": true, "mrope_section": [8, 12, 12]}})");
  EXPECT_EQ(interleaved.config.mrope->layout, Mrope::Layout::kInterleaved);
}

TEST(SpellingTest, MropeWithoutThreeSectionsIsInvalid) {
  ExpectInvalid(R"({"rope_scaling": {"type": "mrope"}})",
                "rope_scaling.mrope_section: got nothing, want three counts");
  ExpectInvalid(R"({"rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}})",
                "rope_scaling.mrope_section: got 2 numbers, want three counts");
}

TEST(SpellingTest, BaseNames) {
  EXPECT_EQ(Read(R"({"rotary_emb_base": 3})").config.rope_theta, 3);
  EXPECT_EQ(Read(R"({"rotary_emb_base": 3, "rope_theta": 4})").config.rope_theta, 4);
  const LayerConfig none = Read("{}");
  EXPECT_EQ(none.config.rope_theta, 10000);
  EXPECT_THAT(TextsOf(none.remarks), ElementsAre("rope_theta absent, taken as 10000"));
}

TEST(SpellingTest, HeadDimNames) {
  EXPECT_EQ(Read(R"({"qk_rope_head_dim": 64, "head_dim": 192})").config.head_dim, 64);
  EXPECT_EQ(
      Read(R"({"head_dim": 192, "hidden_size": 512, "num_attention_heads": 8})").config.head_dim,
      192);
  EXPECT_EQ(Read(R"({"hidden_size": 515, "num_attention_heads": 8})").config.head_dim, 64);
  EXPECT_EQ(Read(R"({"n_embd": 1024, "n_head": 16})").config.head_dim, 64);
  EXPECT_FALSE(Read(R"({"hidden_size": 512})").config.head_dim.has_value());
  ExpectInvalid(R"({"hidden_size": 512, "num_attention_heads": 0})",
                "num_attention_heads: got 0, want at least 1");
}

TEST(SpellingTest, FractionNames) {
  EXPECT_EQ(Read(R"({"rotary_pct": 0.25})").config.partial_rotary_factor, 0.25);
  EXPECT_EQ(
      Read(R"({"rotary_pct": 0.25, "partial_rotary_factor": 0.5})").config.partial_rotary_factor,
      0.5);
  EXPECT_EQ(Read(R"({"partial_rotary_factor": 0.5,
                     "rope_parameters": {"partial_rotary_factor": 0.75}})")
                .config.partial_rotary_factor,
            0.75);
  EXPECT_EQ(Read(R"({"rotary_dim": 32})").config.rotary_dim, 32);
}

TEST(SpellingTest, FractionAbsentIsTheModelTypes) {
  const LayerConfig layer = Read(R"({"model_type": "glm4", "rope_theta": 7, "head_dim": 128})");
  EXPECT_EQ(layer.config.partial_rotary_factor, 0.5);
  EXPECT_THAT(TextsOf(layer.remarks),
              ElementsAre("partial_rotary_factor absent, taken as 0.5, as Hugging "
                          "Face does for glm4"));
  const LayerConfig given =
      Read(R"({"model_type": "gptj", "head_dim": 128, "rotary_dim": 32, "rope_parameters":
               {"rope_theta": 7}})");
  EXPECT_FALSE(given.config.partial_rotary_factor.has_value());
  EXPECT_THAT(TextsOf(given.remarks), IsEmpty());
}

TEST(SpellingTest, HeadCountNames) {
  const auto heads = [](std::string_view json) {
    const auto model = ModelConfig::Parse(json);
    EXPECT_THAT(model, IsOk());
    return std::pair(model->num_heads(), model->num_kv_heads());
  };
  using Heads = std::pair<std::optional<int64_t>, std::optional<int64_t>>;
  EXPECT_EQ(heads(R"({"num_attention_heads": 8, "num_key_value_heads": 2})"), Heads(8, 2));
  EXPECT_EQ(heads(R"({"n_head": 8})"), Heads(8, 8));
  EXPECT_EQ(heads(R"({"num_attention_heads": 71, "multi_query": true})"), Heads(71, 1));
  EXPECT_EQ(heads(R"({"num_attention_heads": 71, "multi_query": false})"), Heads(71, 71));
  EXPECT_EQ(heads(R"({"num_attention_heads": 64, "multi_query": true, "num_kv_heads": 8})"),
            Heads(64, 8));
  EXPECT_EQ(heads(R"({"num_attention_heads": 8, "num_key_value_heads": 8,
                      "qk_rope_head_dim": 64})"),
            Heads(8, 1));
  EXPECT_EQ(heads("{}"), Heads());
  ExpectInvalid(R"({"multi_query": 1})", "multi_query: got 1, want true or false");
}

TEST(SpellingTest, LengthNames) {
  const LayerConfig layer = Read(R"({"n_positions": 2048, "original_max_position_embeddings": 512,
               "rope_scaling": {"original_max_position_embeddings": 1024}})");
  EXPECT_EQ(layer.config.max_position_embeddings, 2048);
  EXPECT_EQ(layer.config.original_max_position_embeddings, 512);
}

TEST(SpellingTest, UnknownKeysInsideTheRopeObjectsWarn) {
  const LayerConfig layer = Read(
      R"({"rope_theta": 1, "whatever": 1,
          "rope_scaling": {"type": "linear", "extrapolation_factor": 1}})");
  EXPECT_THAT(TextsOf(layer.remarks),
              ElementsAre("rope_scaling: key \"extrapolation_factor\" is not known and has no "
                          "effect (vLLM multiplies yarn's ramp by it; the default is 1)"));
}

TEST(SpellingTest, ManyUnknownKeysAreCounted) {
  std::string json = R"({"rope_theta": 1, "rope_scaling": {"type": "default")";
  for (int i = 0; i < 1000; ++i) json += ", \"x" + std::to_string(i) + "\": 1";
  const LayerConfig layer = Read(json + "}}");
  EXPECT_THAT(TextsOf(layer.remarks), SizeIs(17));
  EXPECT_EQ(TextsOf(layer.remarks).back(), "984 more keys have no effect");
}

TEST(SpellingTest, KeysOfOlderModelCodeWarn) {
  EXPECT_THAT(TextsOf(Read(R"({"rope_theta": 1, "rope_pct": 0.25, "rope_ratio": 2})").remarks),
              ElementsAre("rope_pct is not read", "rope_ratio is not read"));
}

TEST(FragmentTest, ScalingAndHeadDim) {
  const LayerConfig layer =
      Read(R"({"rope_scaling": {"type": "linear", "factor": 2}, "head_dim": 64})");
  EXPECT_EQ(layer.config.factor, 2);
  EXPECT_EQ(layer.config.head_dim, 64);
  EXPECT_FALSE(layer.pairing.has_value());
}

TEST(FragmentTest, BareParameters) {
  const LayerConfig layer =
      Read(R"({"rope_type": "linear", "rope_theta": 7, "factor": 2, "head_dim": 8, "typo": 1})");
  EXPECT_EQ(layer.config.rope_type, RopeType::kLinear);
  EXPECT_EQ(layer.config.rope_theta, 7);
  EXPECT_EQ(layer.config.factor, 2);
  EXPECT_EQ(layer.config.head_dim, 8);
  EXPECT_THAT(TextsOf(layer.remarks), ElementsAre(HasSubstr("read from the top level"),
                                                  HasSubstr("key \"typo\" is not known")));
}

TEST(FragmentTest, BareParametersByOldType) {
  EXPECT_EQ(Read(R"({"type": "yarn", "factor": 2})").config.rope_type, RopeType::kYarn);
}

TEST(FragmentTest, TypeOfSomethingElseIsLeftAlone) {
  const LayerConfig layer = Read(R"({"type": "decoder", "rope_theta": 7})");
  EXPECT_EQ(layer.config.rope_type, RopeType::kDefault);
  EXPECT_THAT(TextsOf(layer.remarks), IsEmpty());
}

TEST(FragmentTest, BareLayerTypes) {
  const LayerConfig layer = Read(R"({"full_attention": {"rope_theta": 7}, "head_dim": 64,
                                     "sliding_attention": {"rope_theta": 8}})",
                                 OfType("sliding_attention"));
  EXPECT_EQ(layer.config.rope_theta, 8);
  EXPECT_EQ(layer.config.head_dim, 64);
}

TEST(FragmentTest, LayerTypeThatIsNoObjectIsHarmless) {
  EXPECT_EQ(Read(R"({"factor": 2, "full_attention": 3, "rope_type": "linear"})").config.factor, 2);
}

TEST(TextConfigTest, IsReadInsteadOfTheTop) {
  const LayerConfig layer = Read(
      R"({"model_type": "llava", "rope_theta": 1, "head_dim": 9,
          "text_config": {"model_type": "llama", "head_dim": 64,
                          "rope_scaling": {"type": "linear", "factor": 2}}})");
  EXPECT_EQ(layer.config.head_dim, 64);
  EXPECT_EQ(layer.config.factor, 2);
  EXPECT_EQ(layer.config.rope_theta, 10000);
  EXPECT_EQ(layer.pairing, Pairing::kHalf);
  EXPECT_THAT(TextsOf(layer.remarks),
              Contains("rope_theta is not used: text_config is read instead"));
}

constexpr char kNested[] = R"({
  "head_dim": 32, "global_head_dim": 64, "num_hidden_layers": 3,
  "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
  "rope_parameters": {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000},
    "full_attention": {"rope_type": "proportional", "rope_theta": 1000000,
                       "partial_rotary_factor": 0.25}}})";

TEST(LayerTest, NestedParametersByLayerType) {
  const LayerConfig full = Read(kNested, OfType("full_attention"));
  EXPECT_EQ(full.config.rope_type, RopeType::kProportional);
  EXPECT_EQ(full.config.head_dim, 64);
  EXPECT_EQ(full.layer_type, "full_attention");
  const LayerConfig sliding = Read(kNested, OfType("sliding_attention"));
  EXPECT_EQ(sliding.config.rope_theta, 10000);
  EXPECT_EQ(sliding.config.head_dim, 32);
}

TEST(LayerTest, IndexPicksTheLayersType) {
  EXPECT_EQ(Read(kNested, {.layer = 1}).layer_type, "full_attention");
  EXPECT_EQ(Read(kNested, {.layer = 2}).layer_type, "sliding_attention");
}

TEST(LayerTest, BadChoicesSayWhatThereIs) {
  ASSERT_OK(model, ModelConfig::Parse(kNested));
  const auto invalid = [](const char* message) { return IsInvalid(message); };
  EXPECT_THAT(model->Layer({}), invalid("layer_type: got nothing, want one of full_attention, "
                                        "sliding_attention"));
  EXPECT_THAT(model->Layer(OfType("chunked")),
              invalid("layer_type: got \"chunked\", want one of full_attention"));
  EXPECT_THAT(model->Layer({.layer = 3}), invalid("layer: got 3, want 0 to 2"));
  EXPECT_THAT(model->Layer({.layer = -1}), invalid("layer: got -1, want 0 to 2"));
  EXPECT_THAT(model->Layer({.layer = 1, .layer_type = "full_attention"}),
              invalid("layer: got layer and layer_type, want one of them"));
}

TEST(LayerTest, KeysBesideNestedTypesWarn) {
  const LayerConfig layer =
      Read(R"({"rope_parameters": {"rope_theta": 9, "full_attention": {"rope_theta": 7}}})",
           OfType("full_attention"));
  EXPECT_EQ(layer.config.rope_theta, 7);
  EXPECT_THAT(TextsOf(layer.remarks),
              ElementsAre("rope_parameters: key \"rope_theta\" next to the layer "
                          "types has no effect"));
}

TEST(LayerTest, IndexWithoutALayerListIsInvalid) {
  ASSERT_OK(model,
            ModelConfig::Parse(R"({"rope_parameters": {"full_attention": {"rope_theta": 7}}})"));
  EXPECT_THAT(model->Layer({.layer = 0}),
              IsInvalid("layer_type: got only a layer index, want one of"));
}

constexpr char kLocal[] = R"({
  "model_type": "gemma3_text", "head_dim": 64, "num_hidden_layers": 6, "sliding_window_pattern": 3,
  "rope_theta": 1000000, "rope_local_base_freq": 5000,
  "rope_scaling": {"factor": 8, "rope_type": "linear"}})";

TEST(LayerTest, LocalBaseBelongsToSlidingLayersWithoutScaling) {
  const LayerConfig full = Read(kLocal, OfType("full_attention"));
  EXPECT_EQ(full.config.rope_theta, 1000000);
  EXPECT_EQ(full.config.factor, 8);
  const LayerConfig sliding = Read(kLocal, OfType("sliding_attention"));
  EXPECT_EQ(sliding.config.rope_theta, 5000);
  EXPECT_EQ(sliding.config.rope_type, RopeType::kDefault);
  EXPECT_FALSE(sliding.config.factor.has_value());
}

TEST(LayerTest, LocalBaseUnderItsOtherNames) {
  constexpr char kMimo[] =
      R"({"rope_theta": 5000000, "swa_rope_theta": 10000, "head_dim": 192, "swa_head_dim": 128,
          "hybrid_layer_pattern": [0, 1]})";
  EXPECT_EQ(Read(kMimo, {.layer = 0}).config.rope_theta, 5000000);
  EXPECT_EQ(Read(kMimo, {.layer = 0}).config.head_dim, 192);
  EXPECT_EQ(Read(kMimo, {.layer = 1}).config.rope_theta, 10000);
  EXPECT_EQ(Read(kMimo, {.layer = 1}).config.head_dim, 128);
  constexpr char kModernBert[] =
      R"({"global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "num_hidden_layers": 4,
          "global_attn_every_n_layers": 3})";
  EXPECT_EQ(Read(kModernBert, {.layer = 0}).config.rope_theta, 160000);
  EXPECT_EQ(Read(kModernBert, {.layer = 1}).config.rope_theta, 10000);
  EXPECT_THAT(TextsOf(Read(kModernBert, {.layer = 1}).remarks), IsEmpty());
  ExpectInvalid(R"({"swa_rope_theta": "x"})", "swa_rope_theta: got \"x\", want a number");
}

TEST(LayerTest, ModelTypeThatScalesFullAttentionOnly) {
  constexpr char kOlmo3[] =
      R"({"model_type": "olmo3", "rope_theta": 500000, "head_dim": 64,
          "layer_types": ["sliding_attention", "full_attention"],
          "rope_scaling": {"rope_type": "linear", "factor": 8}})";
  const LayerConfig sliding = Read(kOlmo3, {.layer = 0});
  EXPECT_EQ(sliding.config.rope_type, RopeType::kDefault);
  EXPECT_EQ(sliding.config.rope_theta, 500000);
  EXPECT_EQ(Read(kOlmo3, {.layer = 1}).config.rope_type, RopeType::kLinear);
  const LayerConfig one_set = Read(R"({"model_type": "olmo3", "head_dim": 64, "rope_parameters":
                     {"rope_type": "linear", "factor": 8, "rope_theta": 7}})");
  EXPECT_EQ(one_set.config.rope_type, RopeType::kDefault);  // its class wants one by layer type
  EXPECT_EQ(one_set.config.rope_theta, 500000);
  EXPECT_THAT(Read(R"({"model_type": "olmo3", "rope_theta": 7})").layer_type, "");
}

TEST(LayerTest, SlidingWindowPatternGivesTheLayers) {
  ASSERT_OK(model, ModelConfig::Parse(kLocal));
  EXPECT_EQ(model->numbered_layers(), 6);
  for (int64_t i = 0; i < 6; ++i) {
    ASSERT_OK(layer, model->Layer({.layer = i}));
    EXPECT_EQ(layer->layer_type, i % 3 == 2 ? "full_attention" : "sliding_attention");
  }
}

TEST(LayerTest, Gemma3SaysLittleAndIsFilledIn) {
  ASSERT_OK(model, ModelConfig::Parse(
                       R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text",
      "hidden_size": 2560, "num_hidden_layers": 34,
      "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}})"));
  EXPECT_EQ(model->num_heads(), 8);
  EXPECT_EQ(model->num_kv_heads(), 4);
  EXPECT_EQ(model->Layer({.layer = 5})->layer_type, "full_attention");
  ASSERT_OK(full, model->Layer(OfType("full_attention")));
  EXPECT_EQ(full->config.rope_theta, 1000000);
  EXPECT_EQ(full->config.head_dim, 256);
  EXPECT_EQ(full->config.max_position_embeddings, 131072);
  EXPECT_THAT(
      TextsOf(full->remarks),
      ElementsAre(HasSubstr("head_dim absent, taken as 256"),
                  HasSubstr("max_position_embeddings absent, taken as 131072"),
                  "rope_theta absent, taken as 1000000, as Hugging Face does for gemma3_text"));
  EXPECT_EQ(model->Layer(OfType("sliding_attention"))->config.rope_theta, 10000);
}

TEST(LayerTest, LayerTypesThatShareAnEmbeddingNeedNoChoice) {
  constexpr char kShared[] =
      R"({"layer_types": ["sliding_attention", "full_attention"], "rope_theta": 7})";
  ASSERT_OK(model, ModelConfig::Parse(kShared));
  EXPECT_THAT(model->layer_types(), IsEmpty());
  EXPECT_THAT(model->Layer({}), IsOk());
  EXPECT_THAT(model->Layer(OfType("full_attention")), IsOk());
  EXPECT_THAT(model->Layer(OfType("other")), IsInvalid("layer_type: got \"other\""));
}

TEST(LayerTest, ListsOfAnotherLengthAreInvalid) {
  ExpectInvalid(R"({"num_hidden_layers": 3, "layer_types": ["full_attention"]})",
                "layer_types: got 1 entries, want num_hidden_layers, 3");
  ExpectInvalid(R"({"num_hidden_layers": 3, "no_rope_layers": [1]})",
                "no_rope_layers: got 1 entries, want num_hidden_layers, 3");
  ExpectInvalid(R"({"num_hidden_layers": 1000000000000})",
                "num_hidden_layers: got 1000000000000, want 1 to 65536");
  ExpectInvalid(R"({"num_hidden_layers": 3, "sliding_window_pattern": 0})",
                "sliding_window_pattern: got 0, want at least 1");
}

TEST(LayerTest, NoRopeLayersDoNotRotate) {
  constexpr char kSome[] = R"({"rope_theta": 7, "no_rope_layers": [1, 0]})";
  EXPECT_TRUE(Read(kSome, {.layer = 0}).rotates);
  const LayerConfig still = Read(kSome, {.layer = 1});
  EXPECT_FALSE(still.rotates);
  EXPECT_THAT(TextsOf(still.remarks), ElementsAre(HasSubstr("layer 1 does not rotate")));
  EXPECT_THAT(TextsOf(Read(kSome).remarks),
              ElementsAre(HasSubstr("some layers do not rotate, the first is layer 1")));
  ExpectInvalid(R"({"no_rope_layers": [1, 3]})", "no_rope_layers: got 3, want 0 or 1");
}

TEST(LayerTest, EmptyNoRopeListOfLlama4IsEveryFourth) {
  constexpr char kLlama4[] = R"({"text_config": {"model_type": "llama4_text", "rope_theta": 7,
                                "num_hidden_layers": 8, "no_rope_layers": []}})";
  EXPECT_TRUE(Read(kLlama4, {.layer = 2}).rotates);
  EXPECT_FALSE(Read(kLlama4, {.layer = 3}).rotates);
}

TEST(LayerTest, Cohere2RotatesSlidingLayersOnly) {
  constexpr char kCohere[] = R"({"model_type": "cohere2", "rope_theta": 7, "num_hidden_layers": 4,
                                "sliding_window_pattern": 4})";
  EXPECT_TRUE(Read(kCohere, {.layer = 0}).rotates);
  EXPECT_FALSE(Read(kCohere, {.layer = 3}).rotates);
}

TEST(PairingTest, ModelTypeDecides) {
  const auto pairing = [](const std::string& type) {
    return Read(R"({"rope_theta": 7, "model_type": ")" + type + "\"}").pairing;
  };
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3_vl_text", "gemma2", "phi3",
                           "gpt_neox", "gpt_oss", "olmo2", "glm4_moe"}) {
    EXPECT_EQ(pairing(type), Pairing::kHalf) << type;
  }
  for (const char* type : {"gptj", "glm", "glm4", "cohere", "cohere2", "ernie4_5", "deepseek_v2",
                           "deepseek_v3", "deepseek_v32", "llama4_text"}) {
    EXPECT_EQ(pairing(type), Pairing::kInterleaved) << type;
  }
  EXPECT_EQ(pairing("my_own"), std::nullopt);
}

TEST(NamesTest, ModelTypeIsTheTextModelsAndArchitecturesTheFiles) {
  const LayerConfig layer = Read(R"({"model_type": "mistral3", "head_dim": 64,
      "architectures": ["Mistral3ForConditionalGeneration"],
      "text_config": {"model_type": "ministral3", "architectures": ["Other"]}})");
  EXPECT_EQ(layer.names.model_type, "ministral3");
  EXPECT_THAT(layer.names.architectures, ElementsAre("Mistral3ForConditionalGeneration"));
  EXPECT_EQ(Read(R"({"head_dim": 64})").names.model_type, "");
  EXPECT_THAT(Read(R"({"head_dim": 64})").names.architectures, IsEmpty());
}

TEST(NamesTest, ArchitecturesAreAFewShortNames) {
  ExpectInvalid(R"({"architectures": "LlamaForCausalLM"})", "architectures: got ");
  ExpectInvalid(R"({"architectures": [")" + std::string(129, 'a') + R"("]})",
                "want names of at most 128 characters");
  std::string many = R"({"architectures": ["a")";
  for (int i = 0; i < 16; ++i) many += R"(, "a")";
  ExpectInvalid(many + "]}", "architectures: got 17 names, want at most 16");
}

TEST(PairingTest, RopeInterleaveOverrules) {
  EXPECT_EQ(Read(R"({"model_type": "deepseek_v3", "rope_interleave": false})").pairing,
            Pairing::kHalf);
}

TEST(ErnieTest, SectionsAreReadAsHeightWidthTime) {
  for (const char* parameters : {R"("rope_type": "ernie_3d", "freq_allocation": 20)",
                                 R"("rope_type": "ernie_3d", "mrope_section": [22, 22, 20])",
                                 R"("type": "default", "mrope_section": [22, 22, 20])"}) {
    const LayerConfig layer = Read(
        std::string(R"({"model_type": "ernie4_5_vl_moe_text", "head_dim": 128, "rope_theta": 5e5,
                             "rope_parameters": {)") +
        parameters + "}}");
    EXPECT_THAT(TextsOf(layer.remarks), IsEmpty()) << parameters;
    EXPECT_EQ(layer.config.mrope,
              (Mrope{.section = {20, 22, 22}, .layout = Mrope::Layout::kHwInterleaved}))
        << parameters;
    EXPECT_EQ(layer.pairing, Pairing::kInterleaved);
  }
}

TEST(ErnieTest, WithoutCountsIsInvalid) {
  ExpectInvalid(R"({"head_dim": 128, "rope_parameters": {"rope_type": "ernie_3d"}})",
                "rope_parameters.freq_allocation: got nothing, want the count of t");
  ExpectInvalid(R"({"rope_parameters": {"rope_type": "ernie_3d", "freq_allocation": 20}})",
                "rope_parameters.freq_allocation: got 20 without a head_dim");
}

TEST(SwitchesTest, KeysOfOtherModelCodeAreRead) {
  const RopeConfig config =
      Read(R"({"head_dim": 64, "rotary_dim": 16, "rotary_offset": 48, "rope_scaling":
               {"type": "yarn", "attn_factor": 0.5, "alpha": 3, "mixed_b": 0.5}})")
          .config;
  EXPECT_EQ(config.rotary_offset, 48);
  EXPECT_EQ(config.attn_factor, 0.5);
  EXPECT_EQ(config.alpha, 3);
  EXPECT_EQ(config.mixed_b, 0.5);
  EXPECT_EQ(Read(R"({"inv_freq": [1, 0.5]})").config.inv_freq, (std::vector<double>{1, 0.5}));
}

}  // namespace
}  // namespace rope::kernels
