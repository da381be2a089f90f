#include "kernels/canonical_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
