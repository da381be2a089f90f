#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/compat/engine_table.h"
#include "kernels/compat/model_family.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/config/rope_config.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

TEST(EngineTableTest, EnginesAreNeighboursAndFamiliesBelongToOneEntry) {
  std::set<std::pair<std::string_view, std::string_view>> finished;
  for (const EngineVersions& versions : EngineTable()) {
    SCOPED_TRACE(std::string(versions.engine) + " " + std::string(versions.first));
    EXPECT_TRUE(finished.emplace(versions.engine, versions.first).second);
    std::set<Family> seen;
    for (const EngineEntry* const entry : versions.entries) {
      EXPECT_TRUE(IsBetween(entry->first, versions.last, entry->last));
      for (const Family family : entry->families) {
        EXPECT_TRUE(seen.insert(family).second);
        EXPECT_NE(family, Family::kUnchecked);
      }
    }
  }
}

TEST(ParseReleaseTest, OtherTextsAreNone) {
  for (const char* text : {"", "abc", "0.12.", ".1", "0..1", "v1", "1.-2", "0c1e57098", "1.0.post",
                           "1.0.postx", "99999999999999999999", " 1"}) {
    EXPECT_FALSE(ParseRelease(text).has_value()) << text;
  }
}

TEST(FamilyOfTest, ATextArchitectureDecidesBeforeModelType) {
  EXPECT_EQ(FamilyOf({"mine", {"DeepseekV3ForCausalLM"}}), Family::kDeepSeek);
  EXPECT_EQ(FamilyOf({"deepseek_v3", {"LlamaForCausalLM"}}), Family::kOther);
  EXPECT_EQ(FamilyOf({"ministral3", {"Mistral3ForConditionalGeneration"}}), Family::kMinistral3);
  EXPECT_EQ(FamilyOf({"kimi_k2", {}}), Family::kDeepSeek);
  EXPECT_EQ(FamilyOf({"gemma4_text", {}}), Family::kGemma4);
  EXPECT_EQ(FamilyOf({"llama", {}}), Family::kOther);
  EXPECT_EQ(FamilyOf({"deepseek_v4", {}}), Family::kUnchecked);
  EXPECT_EQ(FamilyOf({}), std::nullopt);
  EXPECT_EQ(FamilyOf({"", {"SomeModel"}}), Family::kOther);
}

std::vector<std::string> TextsOf(const std::vector<Remark>& remarks) {
  std::vector<std::string> texts;
  for (const Remark& remark : remarks) texts.push_back(remark.text);
  return texts;
}

std::vector<std::string> TextsOn(const RopeConfig& config) {
  EXPECT_THAT(Validate(config), IsOk());
  return TextsOf(Remarks(config));
}

RopeConfig Yarn() {
  RopeConfig config = {.rope_type = RopeType::kYarn, .rope_theta = 150000, .head_dim = 64};
  config.factor = 32;
  config.original_max_position_embeddings = 4096;
  return config;
}

// Remarks() on what no config.json says; the others are rows of tests/conformance/cases/configs.
TEST(RemarksTest, HeadDimOfTheTensorDecidesTheEdges) {
  RopeConfig config = Yarn();
  config.head_dim.reset();
  EXPECT_THAT(Remarks(config), IsEmpty());
  EXPECT_THAT(TextsOf(Remarks(config, 64)), ElementsAre(HasSubstr("truncate absent")));
}

TEST(RemarksTest, SettingsWithoutEffect) {
  RopeConfig config = {.head_dim = 64};
  config.ramp = YarnRamp::kTurns;
  config.longrope_branch = LongropeBranch::kLong;
  config.seq_len_policy = SeqLenPolicy::kBatch;
  EXPECT_THAT(TextsOn(config), ElementsAre("ramp has no effect for rope_type default",
                                           "longrope_branch has no effect for rope_type default",
                                           "seq_len_policy has no effect for rope_type default"));
}

TEST(RemarksTest, RampByTurnsHasNoEdgesToRound) {
  RopeConfig config = Yarn();
  config.ramp = YarnRamp::kTurns;
  EXPECT_THAT(TextsOn(config), IsEmpty());
  config.truncate = true;
  EXPECT_THAT(TextsOn(config), ElementsAre(HasSubstr("truncate has no effect with ramp")));
}

}  // namespace
}  // namespace rope::kernels
