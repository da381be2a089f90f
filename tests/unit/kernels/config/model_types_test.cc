#include "kernels/config/model_types.h"

#include <gtest/gtest.h>

namespace rope::kernels {
namespace {

TEST(ModelTypeOfTest, TextEndingMayBeThereOrNot) {
  EXPECT_EQ(ModelTypeOf("llama4").pairing, Pairing::kInterleaved);
  EXPECT_EQ(ModelTypeOf("llama4_text").pairing, Pairing::kInterleaved);
  EXPECT_EQ(ModelTypeOf("gemma3n_text").pairing, Pairing::kHalf);
  EXPECT_EQ(ModelTypeOf("llama_text").pairing, Pairing::kHalf);
}

TEST(ModelTypeOfTest, UnknownTypeHasAnEmptyEntry) {
  for (const char* const name : {"", "_text", "llama5", "text"}) {
    EXPECT_EQ(ModelTypeOf(name).pairing, std::nullopt) << name;
    EXPECT_TRUE(ModelTypeOf(name).defaults.empty()) << name;
  }
}

TEST(ModelTypeOfTest, FractionsAreThoseOfHuggingFace) {
  const auto fraction = [](const char* name) {
    return ModelTypeOf(name).defaults.at("partial_rotary_factor").get<double>();
  };
  EXPECT_EQ(fraction("glm4"), 0.5);
  EXPECT_EQ(fraction("phi"), 0.5);
  EXPECT_EQ(fraction("stablelm"), 0.25);
  EXPECT_EQ(fraction("qwen3_5_text"), 0.25);
  EXPECT_FALSE(ModelTypeOf("phi3").defaults.contains("partial_rotary_factor"));
}

TEST(ModelTypeOfTest, ErniesSectionsAreHeightWidthTime) {
  EXPECT_EQ(ModelTypeOf("ernie4_5_moe_vl").mrope_layout, Mrope::Layout::kHwInterleaved);
  EXPECT_EQ(ModelTypeOf("ernie4_5_vl_text").mrope_layout, Mrope::Layout::kHwInterleaved);
  EXPECT_EQ(ModelTypeOf("ernie4_5").mrope_layout, std::nullopt);
}

TEST(ModelTypeOfTest, DeepSeeksCodeLeavesAnotherChannelOrder) {
  EXPECT_EQ(ModelTypeOf("deepseek_v3").pairing, Pairing::kInterleaved);
  EXPECT_EQ(ModelTypeOf("deepseek_v3").channel_order, Pairing::kHalf);
  EXPECT_EQ(ModelTypeOf("deepseek_v2").channel_order, std::nullopt);
}

TEST(ModelTypeOfTest, NanoChatTurnsTheOtherWay) {
  EXPECT_TRUE(ModelTypeOf("nanochat").reverse);
  EXPECT_FALSE(ModelTypeOf("llama").reverse);
}

}  // namespace
}  // namespace rope::kernels
