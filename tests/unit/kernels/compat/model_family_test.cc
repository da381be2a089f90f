#include "kernels/compat/model_family.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rope::kernels {
namespace {

TEST(ParseReleaseTest, NumbersCompareAsVersions) {
  EXPECT_LT(ParseRelease("0.9.2"), ParseRelease("0.10.0"));
  EXPECT_LT(ParseRelease("0.10"), ParseRelease("0.10.1.1"));
  EXPECT_EQ(ParseRelease("1.0"), ParseRelease("1.0.0"));
  EXPECT_EQ(ParseRelease("0.5.10.post1"), ParseRelease("0.5.10"));
}

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

}  // namespace
}  // namespace rope::kernels
