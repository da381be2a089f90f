#include "client/cli/kernels_config.h"

#include <gtest/gtest.h>

namespace rope::client {
namespace {

// Every field is set, to values that need not make a valid config; mrope by sections.
kernels::RopeConfig FullConfig() {
  kernels::RopeConfig config;
  config.rope_type = kernels::RopeType::kYarn;
  config.rope_theta = 7;
  config.head_dim = 64;
  config.rotary_dim = 32;
  config.partial_rotary_factor = 0.5;
  config.max_position_embeddings = 100;
  config.original_max_position_embeddings = 10;
  config.factor = 4;
  config.attention_factor = 1.5;
  config.mscale = 0.7;
  config.mscale_all_dim = 0.8;
  config.beta_fast = 33;
  config.beta_slow = 2;
  config.truncate = false;
  config.low_freq_factor = 1.25;
  config.high_freq_factor = 4.5;
  config.short_factor = {1, 2};
  config.long_factor = {3, 4};
  config.mrope = kernels::Mrope{.section = {4, 6, 6}, .layout = kernels::Mrope::Layout::kAxial};
  config.rotary_offset = 8;
  config.attn_factor = 0.9;
  config.ramp = kernels::YarnRamp::kTurns;
  config.longrope_branch = kernels::LongropeBranch::kLong;
  config.alpha = 1000;
  config.mixed_b = 0.625;
  config.xpos = kernels::XPos{.scale_base = 256, .centre = 7};
  config.inv_freq = {0.1, 0.01};
  config.seq_len_policy = kernels::SeqLenPolicy::kBatch;
  config.reverse = true;
  return config;
}

TEST(KernelsConfigTest, EveryFieldSurvivesBothWays) {
  kernels::RopeConfig config = FullConfig();
  Result<kernels::RopeConfig> back = KernelsConfigOf(ClientConfigOf(config));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(*back, config);

  config.mrope = kernels::Mrope{.axes = {2, 1, 0}};
  back = KernelsConfigOf(ClientConfigOf(config));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(*back, config);
}

TEST(KernelsConfigTest, SectionsAreThree) {
  RopeConfig config;
  config.mrope_section = {1, 2};
  EXPECT_EQ(KernelsConfigOf(config).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace rope::client
