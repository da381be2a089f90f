// What a text cannot show of the reader; tests/conformance/cases/configs has the rest.
#include "kernels/config/config_json.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/config/config_json_document.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

void ExpectInvalid(std::string_view json, const std::string& message) {
  EXPECT_THAT(ModelConfig::Parse(json), IsInvalid(message));
}

TEST(ParseTest, BytesThatAreNoText) {
  ExpectInvalid(" \n\t", "config_json: got an empty text, want JSON");
  ExpectInvalid("{\"a\": \"\xff\"}", "config_json: got a syntax error at byte");
}

TEST(ParseTest, DeepNestingIsHarmless) {
  const std::string deep(500000, '[');
  ExpectInvalid(R"({"a": )" + deep, "config_json: got a syntax error");
  EXPECT_THAT(ModelConfig::Parse(R"({"a": )" + deep + std::string(500000, ']') + "}"), IsOk());
}

TEST(ParseTest, ManyUnknownKeysAreCounted) {
  std::string json = R"({"rope_theta": 1, "rope_scaling": {"type": "default")";
  for (int i = 0; i < 1000; ++i) json += ", \"x" + std::to_string(i) + "\": 1";
  ASSERT_OK(model, ModelConfig::Parse(json + "}}"));
  const std::vector<Remark> remarks = model->Layer({})->remarks;
  ASSERT_THAT(remarks, SizeIs(17));
  EXPECT_EQ(remarks.back().text, "984 more keys have no effect");
}

TEST(FindSubConfigsTest, AreListedByTheirPaths) {
  ASSERT_OK(found, FindSubConfigs(std::string_view(R"({
      "quantization_config": {"model_type": "none", "rope_theta": 3},
      "talker_config": {"code_predictor_config": {"rope_theta": 11}, "text_config": {}},
      "thinker_config": {"decoder": {"model_type": "x"}, "vision_config": {"num_heads": 16}}})")));
  std::vector<std::string> names;
  for (const SubConfig& config : found->configs) names.push_back(config.name);
  EXPECT_THAT(names, ElementsAre("talker_config", "talker_config.code_predictor_config",
                                 "talker_config.text_config", "thinker_config",
                                 "thinker_config.decoder", "thinker_config.vision_config"));
  EXPECT_FALSE(found->configs[0].states_rope);
  EXPECT_TRUE(found->configs[1].states_rope);
  EXPECT_FALSE(found->configs[5].states_rope);
  EXPECT_FALSE(found->readable_without_choice);
}

TEST(FindSubConfigsTest, AbsurdNestingIsBounded) {
  std::string deep = "{}";
  for (int i = 0; i < 30; ++i) deep = R"({"a_config": )" + deep + "}";
  EXPECT_EQ(FindSubConfigs(std::string_view(deep))->configs.size(), 4u);
  std::string wide = R"({"b": 1)";
  for (int i = 0; i < 100; ++i) wide += ", \"k" + std::to_string(i) + "_config\": {}";
  EXPECT_EQ(FindSubConfigs(std::string_view(wide + "}"))->configs.size(), 64u);
}

TEST(SubConfigTest, FileSaysWhetherAnotherOneMayBeChosen) {
  constexpr char kVl[] = R"({"head_dim": 128, "vision_config": {"hidden_size": 1280}})";
  EXPECT_TRUE(ModelConfig::Parse(kVl)->has_sub_configs());
  EXPECT_FALSE(ModelConfig::Parse(kVl, "vision_config")->has_sub_configs());
  EXPECT_FALSE(ModelConfig::Parse("{}")->has_sub_configs());
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
  ASSERT_OK(bases, ModelConfig::Parse(R"({"layer_rope_theta": [7, 7, 8]})"));
  EXPECT_TRUE(bases->SameLayers(0, 1));
  EXPECT_FALSE(bases->SameLayers(1, 2)) << "they have two bases";
}

}  // namespace
}  // namespace rope::kernels
