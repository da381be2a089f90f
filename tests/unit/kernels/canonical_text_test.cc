#include "kernels/canonical_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <vector>

namespace rope::kernels {
namespace {

TEST(CanonicalTextTest, ExactNumbersAndFieldsByName) {
  LayerRope rope;
  rope.layer.config.rope_theta = 0.1;
  rope.layer.config.rotary_dim = 64;
  rope.layer.config.inv_freq = {1, 0.5};
  rope.layer.layer_type = "full\nattention";
  rope.pairing = Pairing::kInterleaved;
  EXPECT_EQ(
      CanonicalText(rope),
      "rope.v1/config_id/3\nrope_type=0\nrope_theta=1.999999999999ap-4\nrotary_dim=64\n"
      "inv_freq=1p+0,1p-1,\nreverse=0\nprecision=0\npairing=1\nlayer_type=14:full\nattention\n"
      "rotates=1\n");
}

// Two embeddings with one text would have one config_id, and the second would be rotated as the
// first.
TEST(CanonicalTextTest, EveryFieldCounts) {
  const std::vector<std::function<void(LayerRope&)>> changes = {
      [](LayerRope& r) { r.layer.config.rope_type = RopeType::kYarn; },
      [](LayerRope& r) { r.layer.config.rope_theta = 500000; },
      [](LayerRope& r) { r.layer.config.rope_theta = 500000.00000000006; },
      [](LayerRope& r) { r.layer.config.head_dim = 64; },
      [](LayerRope& r) { r.layer.config.rotary_dim = 64; },
      [](LayerRope& r) { r.layer.config.partial_rotary_factor = 0.5; },
      [](LayerRope& r) { r.layer.config.max_position_embeddings = 64; },
      [](LayerRope& r) { r.layer.config.original_max_position_embeddings = 64; },
      [](LayerRope& r) { r.layer.config.factor = 4; },
      [](LayerRope& r) { r.layer.config.attention_factor = 4; },
      [](LayerRope& r) { r.layer.config.mscale = 4; },
      [](LayerRope& r) { r.layer.config.mscale_all_dim = 4; },
      [](LayerRope& r) { r.layer.config.beta_fast = 4; },
      [](LayerRope& r) { r.layer.config.beta_slow = 4; },
      [](LayerRope& r) { r.layer.config.truncate = true; },
      [](LayerRope& r) { r.layer.config.truncate = false; },
      [](LayerRope& r) { r.layer.config.low_freq_factor = 4; },
      [](LayerRope& r) { r.layer.config.high_freq_factor = 4; },
      [](LayerRope& r) {
        r.layer.config.short_factor = {1, 2};
      },
      [](LayerRope& r) {
        r.layer.config.long_factor = {1, 2};
      },
      [](LayerRope& r) {
        r.layer.config.mrope = Mrope{.section = {1, 2, 3}};
      },
      [](LayerRope& r) {
        r.layer.config.mrope = Mrope{.section = {12, 3, 0}};
      },
      [](LayerRope& r) {
        r.layer.config.mrope = {.section = {1, 2, 3}, .layout = Mrope::Layout::kAxial};
      },
      [](LayerRope& r) {
        r.layer.config.mrope = Mrope{.axes = {1, 2, 3}};
      },
      [](LayerRope& r) { r.layer.config.rotary_offset = 0; },
      [](LayerRope& r) { r.layer.config.attn_factor = 4; },
      [](LayerRope& r) { r.layer.config.ramp = YarnRamp::kTurns; },
      [](LayerRope& r) { r.layer.config.longrope_branch = LongropeBranch::kLong; },
      [](LayerRope& r) { r.layer.config.alpha = 4; },
      [](LayerRope& r) { r.layer.config.mixed_b = 4; },
      [](LayerRope& r) { r.layer.config.xpos = XPos{}; },
      [](LayerRope& r) { r.layer.config.xpos = XPos{.centre = 1}; },
      [](LayerRope& r) {
        r.layer.config.inv_freq = {1, 2};
      },
      [](LayerRope& r) { r.layer.config.seq_len_policy = SeqLenPolicy::kBatch; },
      [](LayerRope& r) { r.layer.config.reverse = true; },
      [](LayerRope& r) { r.layer.config.precision = Precision::kHf; },
      [](LayerRope& r) { r.pairing = Pairing::kHalf; },
      [](LayerRope& r) { r.pairing = Pairing::kInterleaved; },
      [](LayerRope& r) { r.layer.channel_order = Pairing::kHalf; },
      [](LayerRope& r) { r.layer.layer_type = "full_attention"; },
      [](LayerRope& r) { r.layer.rotates = false; },
  };
  std::set<std::string> texts = {CanonicalText({})};
  for (const auto& change : changes) {
    LayerRope rope;
    change(rope);
    EXPECT_TRUE(texts.insert(CanonicalText(rope)).second) << CanonicalText(rope);
  }
}

TEST(CanonicalTextTest, WhereTheConfigCameFromDoesNotCount) {
  LayerRope rope;
  rope.layer.names.model_type = "llama";
  rope.layer.names.architectures = {"LlamaForCausalLM"};
  rope.layer.remarks = {{RemarkKind::kUnknownKey, "a note"}};
  rope.warnings = {"another"};
  rope.layer.pairing = Pairing::kHalf;  // of the model type; the caller's is rope.pairing
  rope.stated.rope_theta = 5;           // before `compat`
  EXPECT_EQ(CanonicalText(rope), CanonicalText({}));
}

}  // namespace
}  // namespace rope::kernels
