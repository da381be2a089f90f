// The effect of a config's switches on tensors, from request to rotated numbers.
#include "server/request/rotation_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/local_engine.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::LocalEngine;
using ::rope::testing::RawBytes;
using ::rope::testing::SetShape;
using ::testing::FloatNear;
using ::testing::Pointwise;

class PlanRotationTest : public ::testing::Test {
 protected:
  absl::StatusOr<Plan> Check(const v1::RotateRequest& sent) { return engine_.Check(sent); }

  // The first tensor, rotated by the reference backend.
  absl::StatusOr<std::vector<float>> Rotate(const v1::RotateRequest& sent) {
    return engine_.Rotate(sent);
  }

  // One head of `values` at each of consecutive positions from `start`.
  static v1::RotateRequest Sample(const v1::RopeConfig& config, int64_t start,
                                  const std::vector<float>& values, int64_t tokens = 1) {
    v1::RotateRequest request;
    *request.mutable_rope()->mutable_config() = config;
    request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
    request.mutable_positions()->set_start(start);
    v1::Tensor& tensor = *request.add_tensors();
    tensor.set_role(v1::ROLE_Q);
    tensor.set_layout("SD");
    tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
    SetShape(*tensor.mutable_array(), {tokens, static_cast<int64_t>(values.size()) / tokens});
    tensor.mutable_array()->set_raw(RawBytes(values));
    return request;
  }

  static v1::RotateRequest AsK(v1::RotateRequest request) {
    request.mutable_tensors(0)->set_role(v1::ROLE_K);
    return request;
  }

  LocalEngine engine_;
};

const std::vector<float> kEight = {1, 2, 3, 4, 5, 6, 7, 8};

v1::RopeConfig HeadDim(int64_t head_dim) {
  v1::RopeConfig config;
  config.set_head_dim(head_dim);
  return config;
}

TEST_F(PlanRotationTest, AWindowAtAnOffsetTurnsThoseChannelsAndNoOthers) {
  v1::RopeConfig config = HeadDim(8);
  config.set_rotary_dim(4);
  config.set_rotary_offset(3);
  ASSERT_OK(got, Rotate(Sample(config, 9, kEight)));
  // The same channels as a separate head.
  ASSERT_OK(window, Rotate(Sample(HeadDim(4), 9, {4, 5, 6, 7})));
  EXPECT_THAT(*got,
              ElementsAre(1, 2, 3, window->at(0), window->at(1), window->at(2), window->at(3), 8));
}

// Multi-head latent attention: the config describes only the rotating part, which is at the end of
// wider heads.
TEST_F(PlanRotationTest, AWindowMayLieInAHeadOfMoreChannelsThanTheConfigs) {
  v1::RopeConfig config = HeadDim(4);
  config.set_partial_rotary_factor(1);
  config.set_rotary_offset(4);
  ASSERT_OK(trailing, Rotate(Sample(config, 9, kEight)));
  ASSERT_OK(window, Rotate(Sample(HeadDim(4), 9, {5, 6, 7, 8})));
  EXPECT_THAT(*trailing,
              ElementsAre(1, 2, 3, 4, window->at(0), window->at(1), window->at(2), window->at(3)));
  config.set_rotary_offset(0);
  ASSERT_OK(leading, Rotate(Sample(config, 9, kEight)));
  EXPECT_THAT(std::vector<float>(leading->begin() + 4, leading->end()), ElementsAre(5, 6, 7, 8));
  EXPECT_NE(leading->front(), 1);
}

TEST_F(PlanRotationTest, AHeadThatTheWindowDoesNotFitIsRefused) {
  v1::RopeConfig config = HeadDim(4);
  EXPECT_THAT(Check(Sample(config, 9, kEight)),
              IsInvalid("tensors[0].array.shape: got D 8, want the config's "
                        "head_dim 4; more with rotary_offset alone"));
  config.set_rotary_offset(5);
  EXPECT_THAT(Check(Sample(config, 9, kEight)),
              IsInvalid("tensors[0].array.shape: got D 8, want at least 9, "
                        "head_dim and rotary_offset + rotary_dim"));
  config.set_head_dim(10);
  config.set_rotary_dim(2);
  EXPECT_THAT(Check(Sample(config, 9, kEight)), IsInvalid("got D 8, want at least 10"));
}

// As an MLA cache row: the config's head_dim is that of the rotated part.
TEST_F(PlanRotationTest, ATensorsOwnWindowReplacesTheConfigs) {
  const v1::RopeConfig config = HeadDim(4);
  v1::RotateRequest request = Sample(config, 9, kEight);
  ASSERT_OK(plain, Rotate(Sample(config, 9, {5, 6, 7, 8})));
  request.mutable_tensors(0)->set_rotary_offset(4);
  ASSERT_OK(trailing, Rotate(request));
  EXPECT_THAT(std::vector<float>(trailing->begin(), trailing->begin() + 4),
              ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(std::vector<float>(trailing->begin() + 4, trailing->end()), *plain);
  request.mutable_tensors(0)->set_rotary_offset(0);
  ASSERT_OK(leading, Rotate(request));
  EXPECT_THAT(std::vector<float>(leading->begin() + 4, leading->end()), ElementsAre(5, 6, 7, 8));
}

TEST_F(PlanRotationTest, ATensorsOwnWindowMustFitItsHeads) {
  const v1::RopeConfig config = HeadDim(4);
  v1::RotateRequest request = Sample(config, 9, kEight);
  const auto fails = [&](int64_t offset, const std::string& text) {
    request.mutable_tensors(0)->set_rotary_offset(offset);
    EXPECT_THAT(Check(request), IsInvalid(text));
  };
  fails(-1, "tensors[0].rotary_offset: got -1, want a channel >= 0");
  fails(5, "tensors[0].rotary_offset: got 5, want at most D - rotary_dim, 8 - 4");
  fails(std::numeric_limits<int64_t>::max(), "tensors[0].rotary_offset: got 9223372036854775807");
  request.mutable_tensors(0)->set_rotary_offset(4);
  *request.add_tensors() = Sample(config, 9, {5, 6, 7, 8}).tensors(0);
  EXPECT_THAT(Check(request), IsOk()) << "a tensor of D 4 beside it";
  *request.add_tensors() = Sample(config, 9, kEight).tensors(0);
  EXPECT_THAT(Check(request), IsInvalid("tensors[2].array.shape: got D 8, want "
                                        "4, as tensors[1]"));
}

TEST_F(PlanRotationTest, WindowsAtOtherOffsetsCannotBeRepositionedBetween) {
  v1::RopeConfig config = HeadDim(8);
  config.set_rotary_dim(4);
  config.set_rotary_offset(4);
  v1::RotateRequest request = Sample(config, 9, kEight);
  request.set_operation(v1::OPERATION_REPOSITION);
  request.mutable_reposition()->mutable_from()->set_start(1);
  *request.mutable_reposition()->mutable_from_rope() = request.rope();
  request.mutable_reposition()->mutable_from_rope()->mutable_config()->set_rotary_offset(0);
  EXPECT_THAT(Check(request), IsInvalid("reposition.from_rope: got rotary_offset 0, want 4"));
}

v1::RopeConfig XPosConfig() {
  v1::RopeConfig config = HeadDim(8);
  config.mutable_xpos()->set_scale_base(64);
  config.mutable_xpos()->set_centre(100);
  return config;
}

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

TEST_F(PlanRotationTest, XPosProductsOfQAndKFollowTheirDistanceAlone) {
  const auto product = [this](int64_t q, int64_t k) {
    return Dot(*Rotate(Sample(XPosConfig(), q, kEight)),
               *Rotate(AsK(Sample(XPosConfig(), k, kEight))));
  };
  const double near = product(110, 100);
  EXPECT_NEAR(product(1510, 1500), near, 1e-3);
  EXPECT_NEAR(product(12, 2), near, 1e-3);
  EXPECT_LT(std::fabs(product(1000, 10)), std::fabs(near));  // it decays
  // At the centre nothing is scaled.
  EXPECT_EQ(*Rotate(Sample(XPosConfig(), 100, kEight)), *Rotate(Sample(HeadDim(8), 100, kEight)));
}

TEST_F(PlanRotationTest, XPosInverseAndRepositionTakeTheScaleAlong) {
  for (const bool is_k : {false, true}) {
    const auto as = [is_k](const v1::RotateRequest& r) { return is_k ? AsK(r) : r; };
    ASSERT_OK(at_300, Rotate(as(Sample(XPosConfig(), 300, kEight))));
    v1::RotateRequest inverse = as(Sample(XPosConfig(), 300, *at_300));
    inverse.set_operation(v1::OPERATION_INVERSE);
    EXPECT_THAT(*Rotate(inverse), Pointwise(FloatNear(1e-4F), kEight));
    v1::RotateRequest move = as(Sample(XPosConfig(), 90, *at_300));
    move.set_operation(v1::OPERATION_REPOSITION);
    move.mutable_reposition()->mutable_from()->set_start(300);
    EXPECT_THAT(*Rotate(move),
                Pointwise(FloatNear(1e-4F), *Rotate(as(Sample(XPosConfig(), 90, kEight)))));
  }
}

TEST_F(PlanRotationTest, XPosPastFloat32IsOutOfRange) {
  EXPECT_THAT(Check(Sample(XPosConfig(), 1 << 20, kEight)), IsOutOfRange("positions: got 1048576"));
  v1::RotateRequest move = Sample(XPosConfig(), 0, kEight);
  move.set_operation(v1::OPERATION_REPOSITION);
  move.mutable_reposition()->mutable_from()->set_start(1 << 20);
  EXPECT_THAT(Check(move), IsOutOfRange("got a move by -1048576"));
}

TEST_F(PlanRotationTest, RepositionBetweenXPosAndNoneIsRefused) {
  v1::RotateRequest request = Sample(XPosConfig(), 100, kEight);
  request.set_operation(v1::OPERATION_REPOSITION);
  request.mutable_reposition()->mutable_from()->set_start(1);
  v1::RopeSpec& from = *request.mutable_reposition()->mutable_from_rope();
  *from.mutable_config() = HeadDim(8);
  from.set_pairing(v1::PAIRING_HALF);
  EXPECT_THAT(Check(request), IsInvalid("a different embedding with xpos"));
}

v1::RopeConfig DynamicConfig() {
  v1::RopeConfig config = HeadDim(8);
  config.set_rope_type("dynamic");
  config.set_factor(4);
  config.set_max_position_embeddings(4);
  return config;
}

TEST_F(PlanRotationTest, TheLongestSequenceDecidesForAllWhereTheConfigOrCompatSaysSo) {
  // Two packed sequences, of 2 and of 6 tokens: the second is past the model's 4.
  const auto frequencies_of_first = [this](const v1::RotateRequest& sent) {
    v1::RotateRequest request = sent;
    request.mutable_tensors(0)->set_layout("TD");
    v1::Array& offsets = *request.mutable_positions()->mutable_cu_seqlens();
    for (const double offset : {0.0, 2.0, 8.0}) offsets.add_numbers(offset);
    const auto plan = Check(request);
    EXPECT_THAT(plan, IsOk());
    return plan.ok() ? plan->row_sets[0].runs.front().frequencies->inv_freq
                     : std::vector<kernels::InverseFrequency>();
  };
  const std::vector<float> values(64, 1.0F);
  const v1::RotateRequest by_sequence = Sample(DynamicConfig(), 0, values, 8);
  v1::RotateRequest by_policy = by_sequence;
  by_policy.mutable_rope()->mutable_config()->set_seq_len_policy(v1::SEQ_LEN_POLICY_BATCH);
  v1::RotateRequest by_compat = by_sequence;
  by_compat.mutable_rope()->set_compat(v1::COMPAT_HF);
  EXPECT_NE(frequencies_of_first(by_sequence), frequencies_of_first(by_policy));
  EXPECT_EQ(frequencies_of_first(by_compat), frequencies_of_first(by_policy));
}

TEST_F(PlanRotationTest, CompatExpandsToFieldsAndSaysWhatItChanged) {
  v1::RopeConfig config = HeadDim(64);
  config.set_rope_type("yarn");
  config.set_factor(40);
  config.set_original_max_position_embeddings(4096);
  config.set_mscale(0.707);
  v1::RotateRequest request = Sample(config, 5, std::vector<float>(64, 1.0F));
  ASSERT_OK(plain, Check(request));
  request.mutable_rope()->set_compat(v1::COMPAT_DEEPSEEK);
  ASSERT_OK(deepseek, Check(request));
  EXPECT_NEAR(plain->attention_factor, 1.36889, 1e-5);
  EXPECT_NEAR(deepseek->attention_factor, 1.2608, 1e-4);
  EXPECT_THAT(deepseek->warnings, Contains(HasSubstr("DeepSeek's code reads mscale as 0.707")));
}

TEST_F(PlanRotationTest, CompatIsRefusedWhereItCouldNotAct) {
  ASSERT_OK(entry, engine_.registry().Find(Sample(HeadDim(8), 0, kEight).rope()));
  v1::RopeSpec spec;
  spec.set_config_id((*entry)->config_id());
  EXPECT_THAT(engine_.registry().Find(spec), IsOk());
  spec.set_compat(v1::COMPAT_VLLM);
  EXPECT_THAT(engine_.registry().Find(spec), IsInvalid("rope.config_id: got it together with"));
  v1::RopeSpec model = Sample(HeadDim(8), 0, kEight).rope();
  model.set_compat(static_cast<v1::Compat>(77));
  EXPECT_THAT(engine_.registry().Find(model), IsInvalid("rope.compat: got 77"));
}

v1::RotateRequest AddSinusoidal(v1::RotateRequest request, v1::Pairing pairing) {
  request.set_operation(v1::OPERATION_ADD_SINUSOIDAL);
  request.mutable_rope()->set_pairing(pairing);
  return request;
}

TEST_F(PlanRotationTest, SinusoidalTableIsAddedInTheOrderOfThePairs) {
  v1::RopeConfig config = HeadDim(8);
  config.set_rotary_dim(4);
  config.set_rotary_offset(3);
  const std::vector<double> angles = {70.0, 0.7};  // position 70, theta 10000 over 4 channels
  for (const v1::Pairing pairing : {v1::PAIRING_HALF, v1::PAIRING_INTERLEAVED}) {
    ASSERT_OK(got, Rotate(AddSinusoidal(Sample(config, 70, kEight), pairing)));
    std::vector<float> want = kEight;
    for (size_t i = 0; i < 2; ++i) {
      const size_t first = 3 + (pairing == v1::PAIRING_HALF ? i : 2 * i);
      want[first] += static_cast<float>(std::sin(angles[i]));
      want[first + (pairing == v1::PAIRING_HALF ? 2 : 1)] +=
          static_cast<float>(std::cos(angles[i]));
    }
    EXPECT_THAT(*got, Pointwise(FloatNear(1e-6F), want));
    EXPECT_EQ(*got, *Rotate(AsK(AddSinusoidal(Sample(config, 70, kEight), pairing))));
  }
}

// A pair of frequency 0 does not rotate, and rows omit it. ADD_SINUSOIDAL still adds its cos(0).
TEST_F(PlanRotationTest, SinusoidalTableHasItsFrequenciesOfZeroToo) {
  v1::RopeConfig config = HeadDim(8);
  config.set_rope_type("proportional");
  config.set_partial_rotary_factor(0.5);
  config.set_factor(1);
  ASSERT_OK(got, Rotate(AddSinusoidal(Sample(config, 0, kEight), v1::PAIRING_HALF)));
  EXPECT_THAT(*got, ElementsAre(1, 2, 3, 4, 6, 7, 8, 9));
}

TEST_F(PlanRotationTest, SinusoidalTableIsRefusedWhereThereIsNone) {
  const auto refused = [this](const v1::RopeConfig& config, const std::string& text) {
    EXPECT_THAT(Check(AddSinusoidal(Sample(config, 3, kEight), v1::PAIRING_HALF)), IsInvalid(text));
  };
  v1::RopeConfig yarn = HeadDim(8);
  yarn.set_rope_type("yarn");
  yarn.set_factor(4);
  yarn.set_max_position_embeddings(64);
  yarn.set_attention_factor(1.5);
  refused(yarn, "operation: got OPERATION_ADD_SINUSOIDAL with attention factor 1.5, want an");
  v1::RopeConfig xpos = HeadDim(8);
  xpos.mutable_xpos()->set_scale_base(512);
  refused(xpos, "operation: got OPERATION_ADD_SINUSOIDAL with xpos, want an embedding without it");
  v1::RotateRequest moved = AddSinusoidal(Sample(HeadDim(8), 3, kEight), v1::PAIRING_HALF);
  moved.mutable_reposition()->mutable_from()->set_start(1);
  EXPECT_THAT(Check(moved), IsInvalid("reposition: got it without"));
}

}  // namespace
}  // namespace rope::server
