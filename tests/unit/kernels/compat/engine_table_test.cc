#include "kernels/compat/engine_table.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

absl::StatusOr<CompatConfig> ConvertBy(std::string_view engine, std::string_view first,
                                       Family family, const RopeConfig& config) {
  for (const EngineVersions& versions : EngineTable()) {
    if (versions.engine != engine || versions.first != first) continue;
    const EngineEntry* const entry = versions.EntryFor(family);
    if (entry != nullptr) return Convert(versions, *entry, config);
  }
  return absl::NotFoundError("no entry of " + std::string(engine) + " " + std::string(first));
}

RopeConfig Yarn() {
  RopeConfig config = {.rope_type = RopeType::kYarn, .head_dim = 64};
  config.factor = 40;
  config.original_max_position_embeddings = 4096;
  return config;
}

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

TEST(EngineTableTest, DynamicChangedInVllm22) {
  RopeConfig config = {.rope_type = RopeType::kDynamic, .head_dim = 128};
  config.factor = 4;
  config.max_position_embeddings = 4096;
  const auto alpha_since = [&](std::string_view first) {
    const auto read = ConvertBy("vllm", first, Family::kOther, config);
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
  ASSERT_OK(read, ConvertBy("sglang", "0.5.16", Family::kOther, config));
  EXPECT_EQ(read->config.attention_factor, 1);
  ASSERT_OK(older, ConvertBy("sglang", "0.5.9", Family::kOther, config));
  EXPECT_FALSE(older->config.attention_factor.has_value());
}

TEST(EngineTableTest, SglangHasNoMscaleWithMrope) {
  RopeConfig config = Yarn();
  config.mrope = Mrope{.section = {8, 12, 12}};
  EXPECT_THAT(ConvertBy("sglang", "0.5.16", Family::kQwen3Vl, config), IsOk());
  config.mscale = 1;
  EXPECT_THAT(ConvertBy("sglang", "0.5.16", Family::kQwen3Vl, config), IsInvalid("with mrope"));
}

TEST(EngineTableTest, LlamaCppTakesMscaleAsOneForMinistral3) {
  RopeConfig config = Yarn();
  config.mscale = 2;
  config.mscale_all_dim = 1;
  ASSERT_OK(read, ConvertBy("llamacpp", "0c1e57098", Family::kMinistral3, config));
  EXPECT_EQ(read->config.attention_factor, 1);
  EXPECT_THAT(read->changes, ElementsAre(HasSubstr("reads mscale as 1")));
}

TEST(EngineTableTest, BetaZeroDividesInPython) {
  RopeConfig config = Yarn();
  config.beta_slow = 0;
  EXPECT_THAT(ConvertBy("vllm", "0.32.0", Family::kOther, config), IsInvalid("beta_slow of 0"));
  EXPECT_THAT(ConvertBy("hf", "5.23.0", Family::kOther, config), IsOk());
}

TEST(VersionsTest, OneOrARange) {
  EXPECT_EQ(Versions("1.0", "1.0"), "1.0");
  EXPECT_EQ(Versions("1.0", "1.2"), "1.0 to 1.2");
}

}  // namespace
}  // namespace rope::kernels
