#include "kernels/config/model_types.h"

#include <gtest/gtest.h>

namespace rope::kernels {
namespace {

TEST(PairingOfTest, TextEndingIsIgnored) {
  EXPECT_EQ(PairingOf("llama4"), Pairing::kInterleaved);
  EXPECT_EQ(PairingOf("llama4_text"), Pairing::kInterleaved);
  EXPECT_EQ(PairingOf("gemma3n_text"), Pairing::kHalf);
}

TEST(PairingOfTest, UnknownTypeHasNone) {
  EXPECT_EQ(PairingOf(""), std::nullopt);
  EXPECT_EQ(PairingOf("_text"), std::nullopt);
  EXPECT_EQ(PairingOf("llama5"), std::nullopt);
}

TEST(DefaultsOfTest, FractionsAreThoseOfHuggingFace) {
  EXPECT_EQ(DefaultsOf("glm4").partial_rotary_factor, 0.5);
  EXPECT_EQ(DefaultsOf("phi").partial_rotary_factor, 0.5);
  EXPECT_EQ(DefaultsOf("stablelm").partial_rotary_factor, 0.25);
  EXPECT_EQ(DefaultsOf("qwen3_5_text").partial_rotary_factor, 0.25);
  EXPECT_EQ(DefaultsOf("phi3").partial_rotary_factor, std::nullopt);
}

TEST(DefaultsOfTest, ErniesSectionsAreHeightWidthTime) {
  EXPECT_TRUE(DefaultsOf("ernie4_5_moe_vl").mrope_hw_interleaved);
  EXPECT_TRUE(DefaultsOf("ernie4_5_vl_text").mrope_hw_interleaved);
  EXPECT_FALSE(DefaultsOf("ernie4_5").mrope_hw_interleaved);
}

TEST(DefaultsOfTest, UnknownTypeHasNone) {
  const ModelDefaults& defaults = DefaultsOf("llama");
  EXPECT_EQ(defaults.rope_theta, std::nullopt);
  EXPECT_EQ(defaults.local_base, std::nullopt);
  EXPECT_EQ(defaults.head_dim, std::nullopt);
  EXPECT_EQ(defaults.no_rope_layer_interval, std::nullopt);
  EXPECT_FALSE(defaults.sliding_layers_unscaled);
  EXPECT_FALSE(defaults.mrope_hw_interleaved);
}

}  // namespace
}  // namespace rope::kernels
