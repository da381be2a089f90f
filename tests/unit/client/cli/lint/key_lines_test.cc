#include "client/cli/lint/key_lines.h"

#include <gtest/gtest.h>

#include <string>

namespace rope::client {
namespace {

constexpr char kConfig[] = R"({
  "model_type": "outer",
  "factor": 7,
  "layer_types": [{"rope_theta": 1}],
  "text_config": {
    "model_type": "inner",
    "rope_parameters": {
      "full_attention": {
        "factor": 2
      },
      "sliding_attention": {
        "factor": 1
      }
    }
  }
})";

TEST(KeyLinesTest, KeysOfTheRopeParametersAndOfTheLayerTypeComeFirst) {
  const KeyLines lines = KeyLines::Of(kConfig);
  EXPECT_EQ(lines.Find("factor", ""), 9);
  EXPECT_EQ(lines.Find("factor", "sliding_attention"), 12);
  EXPECT_EQ(lines.Find("sliding_attention.factor", ""), 12);
  EXPECT_EQ(lines.Find("text_config.rope_parameters", ""), 7);
  EXPECT_EQ(lines.Find("rope_theta", ""), 4);
  EXPECT_EQ(lines.Find("actor", ""), std::nullopt);
  EXPECT_EQ(lines.Find("", ""), std::nullopt);
  EXPECT_EQ(lines.error_line(), std::nullopt);
}

TEST(KeyLinesTest, ModelTypeIsThatOfTextConfig) {
  EXPECT_EQ(KeyLines::Of(kConfig).model_type(), "inner");
  EXPECT_EQ(KeyLines::Of(R"({"model_type": "llama"})").model_type(), "llama");
  EXPECT_EQ(KeyLines::Of(R"({"a": {"model_type": "llama"}, "model_type": 3})").model_type(), "");
}

TEST(KeyLinesTest, SyntaxErrorHasALineAndKeysBeforeItAreFound) {
  const KeyLines lines = KeyLines::Of("{\n\"a\": 1,\n\"b\": }\n");
  EXPECT_EQ(lines.error_line(), 3);
  EXPECT_EQ(lines.Find("a", ""), 2);
  EXPECT_EQ(KeyLines::Of("").error_line(), 1);
}

TEST(KeyLinesTest, DeepAndLargeTextsAreReadWithinTheLimits) {
  const std::string brackets(1 << 20, '[');
  EXPECT_TRUE(KeyLines::Of(brackets).error_line().has_value());
  std::string nested;
  for (int i = 0; i < 100000; ++i) nested += "{\"a\":";
  EXPECT_EQ(KeyLines::Of(nested).Find("a", ""), 1);
  std::string wide = "{\"a\": 1";
  for (int i = 0; i < 10000; ++i) wide += ",\n\"key" + std::to_string(i) + "\": 1";
  const KeyLines lines = KeyLines::Of(wide + "}");
  EXPECT_EQ(lines.Find("key10", ""), 12);
  EXPECT_EQ(lines.Find("key9999", ""), std::nullopt);
  const std::string long_key(1000, 'k');
  EXPECT_EQ(KeyLines::Of("{\"" + long_key + "\": 1}").Find(long_key, ""), std::nullopt);
}

TEST(KeyLinesTest, KeyWithinAnObjectIsFoundThereOnly) {
  const KeyLines lines = KeyLines::Of(R"({
    "rope_theta": 1,
    "vision_config": {
      "rope_theta": 2
    }
  })");
  EXPECT_EQ(lines.Find("rope_theta", "", "vision_config"), 4);
  EXPECT_EQ(lines.Find("vision_config.rope_theta", "", "vision_config"), 4);
  EXPECT_EQ(lines.Find("rope_theta", ""), 2);
  EXPECT_EQ(lines.Find("rope_theta", "", "audio_config"), std::nullopt);
}

}  // namespace
}  // namespace rope::client
