// xPos on tensors, from request to rotated numbers.
#include "server/request/rotation_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
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
  // The first tensor, rotated by the reference backend.
  absl::StatusOr<std::vector<float>> Rotate(const v1::RotateRequest& sent) {
    return engine_.Rotate(sent);
  }

  // One head of `values` at `start`.
  static v1::RotateRequest Sample(const v1::RopeConfig& config, int64_t start,
                                  const std::vector<float>& values) {
    v1::RotateRequest request;
    *request.mutable_rope()->mutable_config() = config;
    request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
    request.mutable_positions()->set_start(start);
    v1::Tensor& tensor = *request.add_tensors();
    tensor.set_role(v1::ROLE_Q);
    tensor.set_layout("SD");
    tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
    SetShape(*tensor.mutable_array(), {1, static_cast<int64_t>(values.size())});
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

}  // namespace
}  // namespace rope::server
