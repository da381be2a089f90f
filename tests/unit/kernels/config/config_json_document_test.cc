#include "kernels/config/config_json_document.h"

#include <gtest/gtest.h>

#include <string>

#include "kernels/config/config_json.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/config/remark_texts.h"

namespace rope::kernels {
namespace {

using ::rope::testing::TextsOf;

constexpr char kOmni[] = R"({
  "model_type": "qwen3_omni_moe",
  "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
  "quantization_config": {"model_type": "none", "rope_theta": 3},
  "thinker_config": {
    "model_type": "qwen3_omni_moe_thinker",
    "text_config": {"model_type": "qwen3_omni_moe_text", "hidden_size": 2048,
                    "num_attention_heads": 16, "head_dim": 128, "rope_theta": 1000000},
    "vision_config": {"model_type": "qwen3_omni_moe_vision_encoder", "hidden_size": 1152,
                      "num_heads": 16}
  },
  "talker_config": {
    "text_config": {"model_type": "qwen3_omni_moe_talker_text", "head_dim": 64, "rope_theta": 7},
    "code_predictor_config": {"model_type": "qwen3_omni_moe_talker_code_predictor",
                              "head_dim": 32, "rope_theta": 11}
  }})";
// The vision tower states the file's model_type, as published files do.
constexpr char kVl[] = R"({
  "model_type": "qwen2_5_vl", "head_dim": 128, "rope_theta": 1000000,
  "vision_config": {"model_type": "qwen2_5_vl", "hidden_size": 1280, "num_heads": 16}})";

std::vector<std::string> NamesOf(const SubConfigs& found) {
  std::vector<std::string> names;
  for (const SubConfig& config : found.configs) names.push_back(config.name);
  return names;
}

LayerConfig Read(std::string_view json, std::string_view sub_config) {
  const auto model = ModelConfig::Parse(json, sub_config);
  EXPECT_THAT(model, IsOk());
  if (!model.ok()) return {};
  const auto layer = model->Layer({});
  EXPECT_THAT(layer, IsOk());
  return layer.ok() ? *layer : LayerConfig{};
}

TEST(FindSubConfigsTest, AreListedByTheirPaths) {
  ASSERT_OK(found, FindSubConfigs(std::string_view(kOmni)));
  EXPECT_THAT(NamesOf(*found),
              ElementsAre("talker_config", "talker_config.code_predictor_config",
                          "talker_config.text_config", "thinker_config",
                          "thinker_config.text_config", "thinker_config.vision_config"));
  EXPECT_FALSE(found->configs[0].states_rope);
  EXPECT_TRUE(found->configs[1].states_rope);
  EXPECT_FALSE(found->configs[5].states_rope);
  EXPECT_FALSE(found->readable_without_choice);
}

TEST(FindSubConfigsTest, ObjectWithAModelTypeIsOneUnderAnyKey) {
  ASSERT_OK(found, FindSubConfigs(std::string_view(
                       R"({"decoder": {"model_type": "x"}, "rope_parameters": {"a": {}}})")));
  EXPECT_THAT(NamesOf(*found), ElementsAre("decoder"));
  EXPECT_TRUE(found->readable_without_choice);
}

TEST(FindSubConfigsTest, FileThatDescribesAModelNeedsNoChoice) {
  for (const char* file :
       {R"({"head_dim": 64, "a_config": {"rope_theta": 7}})",
        R"({"rope_theta": 5, "a_config": {"rope_theta": 7}})",
        R"({"text_config": {}, "a_config": {"rope_theta": 7}})", R"({"a_config": {}})", "{}"}) {
    ASSERT_OK(found, FindSubConfigs(std::string_view(file)));
    EXPECT_TRUE(found->readable_without_choice) << file;
    EXPECT_THAT(ModelConfig::Parse(file), IsOk()) << file;
  }
}

TEST(FindSubConfigsTest, AbsurdNestingIsBounded) {
  std::string deep = "{}";
  for (int i = 0; i < 30; ++i) deep = R"({"a_config": )" + deep + "}";
  EXPECT_EQ(FindSubConfigs(std::string_view(deep))->configs.size(), 4u);
  std::string wide = R"({"b": 1)";
  for (int i = 0; i < 100; ++i) wide += ", \"k" + std::to_string(i) + "_config\": {}";
  EXPECT_EQ(FindSubConfigs(std::string_view(wide + "}"))->configs.size(), 64u);
}

TEST(SubConfigTest, ChosenOneIsReadAsIfItWereTheFile) {
  EXPECT_EQ(Read(kOmni, "thinker_config.text_config").config.rope_theta, 1e6);
  EXPECT_EQ(Read(kOmni, "thinker_config").config.rope_theta, 1e6);
  EXPECT_EQ(Read(kOmni, "talker_config.text_config").config.rope_theta, 7);
  const LayerConfig predictor = Read(kOmni, "talker_config.code_predictor_config");
  EXPECT_EQ(predictor.config.rope_theta, 11);
  EXPECT_EQ(predictor.config.head_dim, 32);
  EXPECT_EQ(predictor.pairing, Pairing::kHalf);
  const LayerConfig vision = Read(kOmni, "thinker_config.vision_config");
  EXPECT_EQ(vision.config.head_dim, 72);
  ASSERT_TRUE(vision.config.mrope.has_value());
  EXPECT_EQ(vision.config.mrope->layout, Mrope::Layout::kAxial);
}

TEST(SubConfigTest, TextConfigIsWhatTheFileIsReadBy) {
  constexpr char kFile[] = R"({"model_type": "cohere", "architectures": ["A"],
      "rope_scaling": {"type": "linear", "factor": 3},
      "text_config": {"head_dim": 64, "rope_theta": 7}, "vision_config": {"rope_theta": 9}})";
  const LayerConfig plain = Read(kFile, "");
  const LayerConfig chosen = Read(kFile, "text_config");
  EXPECT_EQ(chosen.config.rope_theta, 7);
  EXPECT_EQ(chosen.pairing, plain.pairing);
  EXPECT_EQ(chosen.names.architectures, plain.names.architectures);
  EXPECT_EQ(TextsOf(chosen.remarks), TextsOf(plain.remarks));
  EXPECT_THAT(TextsOf(plain.remarks),
              Contains("rope_scaling is not used: text_config is read instead"));
}

TEST(SubConfigTest, TowerWithTheTypeOfTheFileIsReadAsTheFilesTower) {
  const LayerConfig vision = Read(kVl, "vision_config");
  EXPECT_EQ(vision.names.model_type, "qwen2_5_vl_vision");
  EXPECT_EQ(vision.config.head_dim, 80);
  ASSERT_TRUE(vision.config.mrope.has_value());
  EXPECT_EQ(vision.config.mrope->layout, Mrope::Layout::kAxial);
  EXPECT_EQ(Read(kVl, "").config.mrope->layout, Mrope::Layout::kSections);
}

TEST(SubConfigTest, UnknownNameAndNoChoiceListWhatThereIs) {
  EXPECT_THAT(ModelConfig::Parse(kVl, "audio_config"),
              IsInvalid("sub_config: got \"audio_config\", want one of "
                        "vision_config"));
  EXPECT_THAT(ModelConfig::Parse(kOmni),
              IsInvalid("sub_config: got nothing, want one of talker_config, "));
  EXPECT_THAT(ModelConfig::Parse(kOmni, "quantization_config"),
              IsInvalid("sub_config: got \"quantization_config\""));
  EXPECT_THAT(ModelConfig::Parse("{}", "a"), IsInvalid("want no sub_config"));
}

TEST(SubConfigTest, ErrorsAndWarningsNameThePath) {
  EXPECT_THAT(
      ModelConfig::Parse(R"({"a_config": {"b_config": {"rope_theta": []}}})", "a_config.b_config"),
      IsInvalid("a_config.b_config.rope_theta: got a list of 0"));
  const LayerConfig layer =
      Read(R"({"a_config": {"head_dim": 64, "rope_pct": 1, "rope_theta": 7}})", "a_config");
  EXPECT_THAT(TextsOf(layer.remarks), ElementsAre("a_config.rope_pct is not read"));
}

TEST(SubConfigTest, FileSaysWhetherAnotherOneMayBeChosen) {
  EXPECT_TRUE(ModelConfig::Parse(kVl)->has_sub_configs());
  EXPECT_FALSE(ModelConfig::Parse(kVl, "vision_config")->has_sub_configs());
  EXPECT_FALSE(ModelConfig::Parse("{}")->has_sub_configs());
}

}  // namespace
}  // namespace rope::kernels
