#include "server/models/kept_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/config/config_json.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::IsOk;

TEST(KeptBytesTest, ShortTextsAllocateNothing) {
  EXPECT_EQ(KeptBytes(std::string("short")), 0);
  EXPECT_GE(KeptBytes(std::string(100, 'x')), 100);
  EXPECT_GE(KeptBytes(std::vector<std::string>(10)),
            static_cast<int64_t>(10 * sizeof(std::string)));
}

TEST(KeptBytesTest, EveryListOfAConfigCounts) {
  constexpr int64_t kList = 1000 * sizeof(double);
  kernels::RopeConfig config;
  EXPECT_EQ(KeptBytes(config), 0);
  config.short_factor.resize(1000);
  EXPECT_GE(KeptBytes(config), kList);
  config.long_factor.resize(1000);
  EXPECT_GE(KeptBytes(config), 2 * kList);
  config.inv_freq.resize(1000);
  EXPECT_GE(KeptBytes(config), 3 * kList);
  config.mrope.emplace().axes.resize(1000);
  EXPECT_GE(KeptBytes(config), 3 * kList + 1000);
}

TEST(KeptBytesTest, ModelCountsTheListsOfEachLayerType) {
  const auto config = kernels::ModelConfig::Parse(R"({"head_dim": 8, "rope_parameters": {
      "full_attention": {"rope_type": "longrope", "short_factor": [1, 2, 3, 4],
                         "long_factor": [1, 2, 3, 4], "original_max_position_embeddings": 8,
                         "factor": 2.0, "rope_theta": 1e4},
      "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}})");
  ASSERT_THAT(config, IsOk());
  const auto full = config->Layer({.layer_type = "full_attention"});
  ASSERT_THAT(full, IsOk());
  EXPECT_GE(full->KeptBytes(), static_cast<int64_t>(8 * sizeof(double)));
  EXPECT_GE(config->KeptBytes(),
            full->KeptBytes() + static_cast<int64_t>(2 * sizeof(kernels::LayerConfig)));
}

TEST(KeptBytesTest, ResolvedRopeCountsWhatItsScaleTakes) {
  kernels::RopeConfig config;
  config.head_dim = 65536;
  const auto plain = kernels::Resolve(config);
  ASSERT_THAT(plain, IsOk());
  config.xpos.emplace();
  const auto scaled = kernels::Resolve(config);
  ASSERT_THAT(scaled, IsOk());
  EXPECT_GE(KeptBytes(**scaled), 4 * KeptBytes(**plain)) << "twice the lists, for q and for k";
}

}  // namespace
}  // namespace rope::server
