#include "kernels/compat/model_family.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rope::kernels {
namespace {

TEST(ParseReleaseTest, OtherTextsAreNone) {
  for (const char* text : {"", "abc", "0.12.", ".1", "0..1", "v1", "1.-2", "0c1e57098", "1.0.post",
                           "1.0.postx", "99999999999999999999", " 1"}) {
    EXPECT_FALSE(ParseRelease(text).has_value()) << text;
  }
}

TEST(FamilyOfTest, ArchitectureDecidesBeforeModelType) {
  EXPECT_EQ(FamilyOf({"kimi_k2", {"DeepseekV3ForCausalLM"}}), Family::kDeepSeek);
  EXPECT_EQ(FamilyOf({"mine", {"DeepseekV3ForCausalLM"}}), Family::kDeepSeek);
  EXPECT_EQ(FamilyOf({"deepseek_v3", {"LlamaForCausalLM"}}), Family::kOther);
}

TEST(FamilyOfTest, ModelTypeDecidesWithoutATextArchitecture) {
  EXPECT_EQ(FamilyOf({"kimi_k2", {}}), Family::kDeepSeek);
  EXPECT_EQ(FamilyOf({"ministral3", {"Mistral3ForConditionalGeneration"}}), Family::kMinistral3);
  EXPECT_EQ(FamilyOf({"gemma4_text", {}}), Family::kGemma4);
  EXPECT_EQ(FamilyOf({"llama", {}}), Family::kOther);
  EXPECT_EQ(FamilyOf({"deepseek_v4", {}}), Family::kUnchecked);
}

TEST(FamilyOfTest, NoNameIsNoFamily) {
  EXPECT_FALSE(FamilyOf({}).has_value());
  EXPECT_EQ(FamilyOf({"", {"SomeModel"}}), Family::kOther);
}

LayerConfig Layer(const char* model_type, std::optional<Pairing> pairing) {
  LayerConfig layer;
  layer.pairing = pairing;
  layer.names.model_type = model_type;
  return layer;
}

TEST(PairsInTest, ConsolidatedWeightsOfMistralAreReadAsThoseOfHuggingFace) {
  const LayerConfig weights = Layer("mistral", Pairing::kInterleaved);
  const LayerConfig hf = Layer("mistral", Pairing::kHalf);
  for (const char* engine : {"vllm", "llamacpp"}) {
    EXPECT_EQ(PairsIn(engine, weights).pairing, Pairing::kHalf) << engine;
    EXPECT_EQ(PairsIn(engine, weights).order(), PairsIn(engine, hf).order()) << engine;
  }
  EXPECT_EQ(PairsIn("", weights).pairing, Pairing::kInterleaved);
  EXPECT_EQ(PairsIn("vllm", weights, Pairing::kInterleaved).pairing, Pairing::kInterleaved);
  EXPECT_EQ(PairsIn("vllm", Layer("gptj", Pairing::kInterleaved)).order(), Pairing::kInterleaved);
}

TEST(PairsInTest, OriginalRopeOfChatGlmIsNotReadByTwoEngines) {
  const LayerConfig half = Layer("chatglm", Pairing::kHalf);
  for (const char* engine : {"sglang", "llamacpp"}) {
    EXPECT_TRUE(PairsIn(engine, half).misread) << engine;
    EXPECT_EQ(PairsIn(engine, half).order(), Pairing::kInterleaved) << engine;
    EXPECT_FALSE(PairsIn(engine, Layer("chatglm", Pairing::kInterleaved)).misread) << engine;
    EXPECT_FALSE(PairsIn(engine, half, Pairing::kHalf).misread) << engine;
  }
  EXPECT_EQ(PairsIn("vllm", half).order(), Pairing::kHalf);
}

}  // namespace
}  // namespace rope::kernels
