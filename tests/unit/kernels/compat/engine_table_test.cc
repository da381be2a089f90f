#include "kernels/compat/engine_table.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

const EngineEntry& EntryOf(std::string_view engine, std::string_view first, Family family) {
  static const EngineEntry none;
  for (const EngineEntry& entry : EngineTable()) {
    if (entry.engine == engine && entry.first == first && entry.Covers(family)) return entry;
  }
  ADD_FAILURE() << "no entry of " << engine << " " << first;
  return none;
}

RopeConfig Yarn() {
  RopeConfig config = {.rope_type = RopeType::kYarn, .head_dim = 64};
  config.factor = 40;
  config.original_max_position_embeddings = 4096;
  return config;
}

TEST(EngineTableTest, EnginesAndVersionsAreNeighboursAndFamiliesBelongToOneEntry) {
  std::set<std::pair<std::string_view, std::string_view>> finished;
  std::set<Family> seen;
  const EngineEntry* before = nullptr;
  for (const EngineEntry& entry : EngineTable()) {
    if (before == nullptr || !before->SameVersions(entry)) {
      EXPECT_TRUE(finished.emplace(entry.engine, entry.first).second)
          << entry.engine << entry.first;
      seen.clear();
    }
    for (const Family family : entry.families) {
      EXPECT_TRUE(seen.insert(family).second) << entry.engine << " " << entry.first;
      EXPECT_NE(family, Family::kUnchecked) << entry.engine << " " << entry.first;
    }
    before = &entry;
  }
}

TEST(EngineTableTest, DynamicChangedInVllm22) {
  RopeConfig config = {.rope_type = RopeType::kDynamic, .head_dim = 128};
  config.factor = 4;
  config.max_position_embeddings = 4096;
  const auto alpha_since = [&](std::string_view first) {
    const auto read = Convert(EntryOf("vllm", first, Family::kOther), config);
    EXPECT_THAT(read, IsOk());
    return read.ok() ? read->config.alpha : std::nullopt;
  };
  EXPECT_EQ(alpha_since("0.12.0"), 13);
  EXPECT_EQ(alpha_since("0.22.0"), 1);
}

TEST(EngineTableTest, SglangTakesAMscaleOfZeroAsANumber) {
  RopeConfig config = Yarn();
  config.mscale = 0;
  config.mscale_all_dim = 0;
  ASSERT_OK(read, Convert(EntryOf("sglang", "0.5.16", Family::kOther), config));
  EXPECT_EQ(read->config.attention_factor, 1);
  ASSERT_OK(older, Convert(EntryOf("sglang", "0.5.9", Family::kOther), config));
  EXPECT_FALSE(older->config.attention_factor.has_value());
}

TEST(EngineTableTest, SglangHasNoMscaleWithMrope) {
  RopeConfig config = Yarn();
  config.mrope = Mrope{.section = {8, 12, 12}};
  const EngineEntry& entry = EntryOf("sglang", "0.5.16", Family::kQwen3Vl);
  EXPECT_THAT(Convert(entry, config), IsOk());
  config.mscale = 1;
  EXPECT_THAT(Convert(entry, config), IsInvalid("with mrope"));
}

TEST(EngineTableTest, LlamaCppTakesMscaleAsOneForMinistral3) {
  RopeConfig config = Yarn();
  config.mscale = 2;
  config.mscale_all_dim = 1;
  ASSERT_OK(read, Convert(EntryOf("llamacpp", "0c1e57098", Family::kMinistral3), config));
  EXPECT_EQ(read->config.attention_factor, 1);
  EXPECT_THAT(read->changes, ElementsAre(HasSubstr("reads mscale as 1")));
}

TEST(EngineTableTest, BetaZeroDividesInPython) {
  RopeConfig config = Yarn();
  config.beta_slow = 0;
  EXPECT_THAT(Convert(EntryOf("vllm", "0.32.0", Family::kOther), config),
              IsInvalid("beta_slow of 0"));
  EXPECT_THAT(Convert(EntryOf("hf", "5.23.0", Family::kOther), config), IsOk());
}

TEST(VersionsTest, OneOrARange) {
  EXPECT_EQ(Versions("1.0", "1.0"), "1.0");
  EXPECT_EQ(Versions("1.0", "1.2"), "1.0 to 1.2");
}

}  // namespace
}  // namespace rope::kernels
