#include "kernels/compat/model_family.h"

#include <gtest/gtest.h>

namespace rope::kernels {
namespace {

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

}  // namespace
}  // namespace rope::kernels
