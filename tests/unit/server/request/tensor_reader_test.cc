#include "server/request/tensor_reader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "server/request/prepared_rotation.h"
#include "server/request/validate.h"
#include "tests/support/prepared_call.h"
#include "tests/support/received_request.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::CallOf;
using ::rope::testing::PrepareOf;
using ::rope::testing::PrepareReceived;
using ::rope::testing::RawBytes;
using ::rope::testing::ReceivedRequest;
using ::rope::testing::SetShape;
using ::testing::FloatEq;
using ::testing::IsNull;
using ::testing::Pointee;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

absl::StatusOr<Plan> Check(const v1::RotateRequest& request) {
  static ModelRegistry& registry = *ModelRegistry::Create({})->release();  // lives on
  const ReceivedRequest received(request);
  return Validate(received.message, received.split, registry);
}

void ExpectFails(const v1::RotateRequest& request, const std::string& text) {
  EXPECT_THAT(Check(request), IsInvalid(text));
}

v1::Tensor& AddTensor(v1::RotateRequest& request, v1::DType dtype, v1::Role role = v1::ROLE_Q) {
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(role);
  tensor.set_layout("SHD");
  tensor.mutable_array()->set_dtype(dtype);
  SetShape(*tensor.mutable_array(), {4, 1, 4});
  tensor.mutable_array()->set_raw(std::string(dtype == v1::DTYPE_FP32 ? 64 : 32, '\0'));
  return tensor;
}

// Four tokens of four channels at positions 7, 8, 16 and 63. The original length is 8, so that
// floor(position / length) is 0, 1, 2 and 7.
v1::RotateRequest Sample(v1::DType dtype = v1::DTYPE_FP32) {
  v1::RotateRequest request;
  request.mutable_rope()->set_config_json(
      R"({"head_dim": 4, "rope_theta": 10000, "max_position_embeddings": 64, "rope_scaling":
          {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 8}})");
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  for (const double id : {7.0, 8.0, 16.0, 63.0}) {
    request.mutable_positions()->mutable_position_ids()->add_numbers(id);
  }
  AddTensor(request, dtype);
  return request;
}

v1::RotateRequest WithHeadRanges() {
  v1::RotateRequest request = Sample();
  v1::Tensor& tensor = *request.mutable_tensors(0);
  tensor.clear_role();
  tensor.add_head_ranges()->set_role(v1::ROLE_Q);
  tensor.mutable_head_ranges(0)->set_end(1);
  return request;
}

TEST(OutputDTypeTest, IsEachTensorsOwnUnlessOneIsNamed) {
  v1::RotateRequest request = Sample();
  AddTensor(request, v1::DTYPE_BF16);
  auto plan = Check(request);
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(plan->tensors[0].output_dtype, kernels::DType::kFloat32);
  EXPECT_EQ(plan->tensors[1].output_dtype, kernels::DType::kBFloat16);
  EXPECT_EQ(plan->bytes_per_token, 4 * (4 + 2));
  request.mutable_output()->set_dtype(v1::DTYPE_FP32);
  plan = Check(request);
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(plan->tensors[1].dtype, kernels::DType::kBFloat16);
  EXPECT_EQ(plan->tensors[1].output_dtype, kernels::DType::kFloat32);
  EXPECT_EQ(plan->tensors[1].output_bytes(), 64);
  EXPECT_EQ(plan->bytes_per_token, 4 * (4 + 4)) << "its output is the larger one";
  request.mutable_output()->set_dtype(v1::DTYPE_FP8_E5M2);
  plan = Check(request);
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(plan->tensors[0].output_bytes(), 16);
  EXPECT_EQ(plan->bytes_per_token, 4 * (4 + 2)) << "its input is the larger one";
}

TEST(OutputDTypeTest, OnlyFloatsAreOutputs) {
  v1::RotateRequest request = Sample();
  for (const v1::DType dtype : {v1::DTYPE_FP64, v1::DTYPE_INT32, v1::DTYPE_INT64}) {
    request.mutable_output()->set_dtype(dtype);
    ExpectFails(request, "output.dtype: got " + v1::DType_Name(dtype) + ", want DTYPE_FP32");
  }
  request.mutable_output()->set_dtype(static_cast<v1::DType>(77));
  ExpectFails(request, "output.dtype: got number 77, want DTYPE_FP32");
}

TEST(OutputDTypeTest, SizesMustFitAsOutputToo) {
  v1::RotateRequest request = Sample(v1::DTYPE_BF16);
  SetShape(*request.mutable_tensors(0)->mutable_array(), {0, int64_t{1} << 61, 2});
  ExpectFails(request, "tensors[0].array.shape: got [0, 2305843009213693952, 2]");
  SetShape(*request.mutable_tensors(0)->mutable_array(), {0, int64_t{1} << 60, 2});
  request.mutable_output()->set_dtype(v1::DTYPE_FP32);
  ExpectFails(request, "want a product that fits 63 bits");
}

TEST(Fp8ScaleTest, IsOneUnlessGiven) {
  v1::RotateRequest request = Sample();
  request.mutable_output()->set_dtype(v1::DTYPE_FP8_E4M3);
  EXPECT_EQ(Check(request)->tensors[0].output_scale, 1);
  request.mutable_tensors(0)->add_fp8_scales(0.25);
  EXPECT_EQ(Check(request)->tensors[0].output_scale, 0.25);
}

TEST(Fp8ScaleTest, GoesWithFp8OutputAlone) {
  v1::RotateRequest request = Sample(v1::DTYPE_BF16);
  request.mutable_tensors(0)->add_fp8_scales(2);
  ExpectFails(request,
              "tensors[0].fp8_scales: got it with output of DTYPE_BF16, want output.dtype "
              "DTYPE_FP8_E4M3 or DTYPE_FP8_E5M2 as well");
}

TEST(Fp8ScaleTest, MustBeAPositiveFloat) {
  v1::RotateRequest request = Sample();
  request.mutable_output()->set_dtype(v1::DTYPE_FP8_E4M3);
  for (const double bad : {0.0, -1.0, kInfinity, std::nan(""), 1e-40, 1e39}) {
    request.mutable_tensors(0)->mutable_fp8_scales()->Clear();
    request.mutable_tensors(0)->add_fp8_scales(bad);
    ExpectFails(request, "tensors[0].fp8_scales: got ");
    ExpectFails(request, "want a finite number above 0 that float32 holds");
  }
}

TEST(Fp8ScaleTest, OneForEachHeadIsNotBuiltYet) {
  v1::RotateRequest request = Sample();
  request.mutable_output()->set_dtype(v1::DTYPE_FP8_E4M3);
  for (int i = 0; i < 2; ++i) request.mutable_tensors(0)->add_fp8_scales(1);
  EXPECT_THAT(Check(request), IsUnimplemented("tensors[0].fp8_scales: got 2 scales, want one"));
}

TEST(ScaleTest, IsAnyFiniteFloatOnATensorOfOneRole) {
  v1::RotateRequest request = Sample();
  for (const double good : {0.0, -2.0, 0.125, 1e38}) {
    request.mutable_tensors(0)->set_scale(good);
    ASSERT_OK(plan, Check(request));
    EXPECT_EQ(plan->tensors[0].scale, static_cast<float>(good));
  }
  for (const double bad : {kInfinity, std::nan(""), 1e39, 1e-50}) {
    request.mutable_tensors(0)->set_scale(bad);
    ExpectFails(request, "tensors[0].scale: got ");
  }
  request = WithHeadRanges();
  request.mutable_tensors(0)->set_scale(2);
  ExpectFails(request,
              "tensors[0].scale: got it together with head_ranges, want a tensor of one "
              "role");
}

TEST(ScaleTest, MultipliesWhateverTheOperation) {
  v1::RotateRequest request = Sample();
  request.mutable_tensors(0)->set_scale(2);
  for (const v1::Operation operation : {v1::OPERATION_INVERSE, v1::OPERATION_BACKWARD}) {
    request.set_operation(operation);
    EXPECT_THAT(Check(request), IsOk());
  }
}

TEST(NormTest, WeightIsOptionalAndOfAnyFloat) {
  v1::RotateRequest request = Sample();
  v1::HeadNorm& norm = *request.mutable_tensors(0)->mutable_norm();
  norm.set_eps(1e-6);
  auto plan = Check(request);
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(plan->tensors[0].norm_eps, 1e-6F);
  EXPECT_THAT(plan->tensors[0].norm_weight, IsNull());
  for (const double weight : {1.0, 0.5, -2.0, 0.0}) norm.mutable_weight()->add_numbers(weight);
  plan = Check(request);
  ASSERT_THAT(plan, IsOk());
  EXPECT_THAT(plan->tensors[0].norm_weight, Pointee(ElementsAre(1, 0.5, -2, 0)));
  norm.mutable_weight()->clear_numbers();
  norm.mutable_weight()->set_dtype(v1::DTYPE_FP32);
  SetShape(*norm.mutable_weight(), {4});
  norm.mutable_weight()->set_raw(RawBytes<float>({4, 3, 2, 1}));
  plan = Check(request);
  ASSERT_THAT(plan, IsOk());
  EXPECT_THAT(plan->tensors[0].norm_weight, Pointee(ElementsAre(4, 3, 2, 1)));
}

TEST(NormTest, CallsOfAPreparedRequestShareTheWeight) {
  const auto registry = ModelRegistry::Create({}).value();
  v1::RotateRequest whole = Sample();
  v1::HeadNorm& norm = *whole.mutable_tensors(0)->mutable_norm();
  norm.set_eps(1e-6);
  for (const double weight : {1.0, 0.5, -2.0, 0.0}) norm.mutable_weight()->add_numbers(weight);
  ASSERT_OK(prepared, PrepareReceived(PrepareOf(whole), *registry));
  ReceivedRequest call(CallOf(whole, (*prepared)->id));
  Plan plan;
  ASSERT_THAT(BeginCall(**prepared, call.message, plan), IsOk());
  EXPECT_THAT(plan.tensors[0].norm_weight, Pointee(ElementsAre(1, 0.5, -2, 0)));
  EXPECT_EQ(plan.tensors[0].norm_weight, (*prepared)->plan.tensors[0].norm_weight);
}

TEST(NormTest, NumbersThatDoNotFitAreNamed) {
  v1::RotateRequest request = Sample();
  v1::HeadNorm& norm = *request.mutable_tensors(0)->mutable_norm();
  ExpectFails(request, "tensors[0].norm.eps: got 0, want a finite number above 0");
  for (const double bad : {-1e-6, kInfinity, std::nan(""), 1e-60}) {
    norm.set_eps(bad);
    ExpectFails(request, "tensors[0].norm.eps: got ");
  }
  norm.set_eps(1e-6);
  for (const double weight : {1.0, 2.0, 3.0}) norm.mutable_weight()->add_numbers(weight);
  ExpectFails(request, "tensors[0].norm.weight.shape: got [3], want [4], one for each channel");
  norm.mutable_weight()->add_numbers(1e39);
  ExpectFails(request, "tensors[0].norm.weight element 3: got 1e+39");
  norm.mutable_weight()->set_dtype(v1::DTYPE_INT32);
  ExpectFails(request, "tensors[0].norm.weight.dtype: got DTYPE_INT32");
}

TEST(NormTest, OnlyWhereItHasAMeaning) {
  v1::RotateRequest request = WithHeadRanges();
  request.mutable_tensors(0)->mutable_norm()->set_eps(1);
  ExpectFails(request,
              "tensors[0].norm: got it together with head_ranges, want a tensor of one "
              "role");
  request = Sample();
  request.mutable_tensors(0)->mutable_norm()->set_eps(1);
  for (const v1::Operation operation :
       {v1::OPERATION_INVERSE, v1::OPERATION_BACKWARD, v1::OPERATION_REPOSITION}) {
    request.set_operation(operation);
    if (operation == v1::OPERATION_REPOSITION) request.mutable_reposition();
    ExpectFails(request, "tensors[0].norm: got it together with " + v1::Operation_Name(operation) +
                             ", want OPERATION_ROTATE");
  }
}

TEST(TokenScalesTest, GrowWithTheLogarithmOfLengthsPassed) {
  v1::RotateRequest request = Sample();
  request.mutable_tensors(0)->set_llama4_scaling_beta(0.1);
  AddTensor(request, v1::DTYPE_FP32, v1::ROLE_K);
  for (const v1::Operation operation : {v1::OPERATION_ROTATE, v1::OPERATION_BACKWARD}) {
    request.set_operation(operation);
    ASSERT_OK(plan, Check(request));
    const auto scale = [](double lengths) {
      return FloatEq(static_cast<float>(1 + 0.1 * std::log(1 + lengths)));
    };
    EXPECT_THAT(plan->token_scales, ElementsAre(scale(0), scale(1), scale(2), scale(7)));
    EXPECT_TRUE(plan->tensors[0].token_scaled);
    EXPECT_FALSE(plan->tensors[1].token_scaled);
  }
}

TEST(TokenScalesTest, LayersThatDoNotRotateScaleToo) {
  v1::RotateRequest request = Sample();
  request.mutable_rope()->set_config_json(
      R"({"head_dim": 4, "rope_theta": 10000, "num_hidden_layers": 2, "no_rope_layers": [1, 0],
          "max_position_embeddings": 64, "rope_scaling":
          {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 8}})");
  request.mutable_rope()->set_layer(1);
  request.mutable_tensors(0)->set_llama4_scaling_beta(1);
  ASSERT_OK(plan, Check(request));
  EXPECT_FALSE(plan->rotates);
  ASSERT_EQ(plan->token_scales.size(), 4U);
  EXPECT_FLOAT_EQ(plan->token_scales[2], static_cast<float>(1 + std::log(3)));
}

TEST(TokenScalesTest, OnlyWhereTheyHaveAMeaning) {
  const auto with_beta = [](v1::RotateRequest request, double beta = 0.1) {
    request.mutable_tensors(0)->set_llama4_scaling_beta(beta);
    return request;
  };
  const std::string field = "tensors[0].llama4_scaling_beta: got ";
  ExpectFails(with_beta(WithHeadRanges()), field + "it together with head_ranges");
  v1::RotateRequest request = with_beta(Sample());
  request.mutable_tensors(0)->set_role(v1::ROLE_K);
  ExpectFails(request, field + "it on ROLE_K, want it on ROLE_Q only");
  for (const v1::Operation operation : {v1::OPERATION_INVERSE, v1::OPERATION_REPOSITION}) {
    request = with_beta(Sample());
    request.set_operation(operation);
    if (operation == v1::OPERATION_REPOSITION) request.mutable_reposition();
    ExpectFails(request, field + "it together with " + v1::Operation_Name(operation));
  }
  request = with_beta(Sample());
  request.mutable_rope()->set_config_json(R"({"head_dim": 4, "rope_theta": 10000})");
  ExpectFails(request, field + "it without original_max_position_embeddings");
  request = with_beta(Sample());
  request.mutable_rope()->clear_config_json();
  request.mutable_rows()->mutable_angles()->add_numbers(1);
  ExpectFails(request, field + "it without original_max_position_embeddings");
  for (const double bad : {kInfinity, std::nan(""), 1e39}) {
    ExpectFails(with_beta(Sample(), bad), field);
  }
  request = with_beta(Sample());
  AddTensor(request, v1::DTYPE_FP32).set_llama4_scaling_beta(0.2);
  ExpectFails(request, "tensors[1].llama4_scaling_beta: got 0.2, want 0.1");
}

}  // namespace
}  // namespace rope::server
