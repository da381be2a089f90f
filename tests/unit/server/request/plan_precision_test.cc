// Precision hf, from request to rotated numbers, compared with an oracle that rounds after each
// step of Hugging Face's eager code.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/backends.h"
#include "kernels/dtype/element.h"
#include "tests/support/local_engine.h"
#include "tests/support/received_request.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::LocalEngine;
using ::rope::testing::RawBytes;
using ::rope::testing::SetShape;
constexpr int64_t kHeadDim = 8;
const std::vector<double> kFrequencies = {1.0, 0.1, 0.01, 0.001};
const std::vector<double> kValues = {1.75, -2.5, 3.25, 0.375, -1.125, 2.75, -0.625, 1.5};

uint16_t Bits(double value, v1::DType dtype) {
  return dtype == v1::DTYPE_FP16 ? kernels::ToFloat16(value) : kernels::ToBFloat16(value);
}

float Rounded(float value, v1::DType dtype) {
  if (dtype == v1::DTYPE_FP32) return value;
  const uint16_t bits = Bits(value, dtype);
  return dtype == v1::DTYPE_FP16 ? kernels::FromFloat16(bits) : kernels::FromBFloat16(bits);
}

// q * cos + rotate_half(q) * sin, or rotate_every_two, rounded after each operation. `sign` is that
// of the sine.
std::vector<float> EagerHead(const std::vector<double>& head, const std::vector<int64_t>& positions,
                             v1::Pairing pairing, v1::DType dtype, float sign = 1) {
  std::vector<float> result(head.begin(), head.end());
  for (size_t i = 0; i < kFrequencies.size(); ++i) {
    const volatile float angle =
        static_cast<float>(positions[i]) * static_cast<float>(kFrequencies[i]);
    const float c = Rounded(static_cast<float>(std::cos(double{angle})), dtype);
    const float s = sign * Rounded(static_cast<float>(std::sin(double{angle})), dtype);
    const size_t first = pairing == v1::PAIRING_HALF ? i : 2 * i;
    const size_t second = pairing == v1::PAIRING_HALF ? i + 4 : 2 * i + 1;
    const volatile float ac = Rounded(result[first] * c, dtype);
    const volatile float bs = Rounded(-result[second] * s, dtype);
    const volatile float bc = Rounded(result[second] * c, dtype);
    const volatile float as = Rounded(result[first] * s, dtype);
    result[first] = Rounded(ac + bs, dtype);
    result[second] = Rounded(bc + as, dtype);
  }
  return result;
}

std::vector<float> EagerHead(int64_t position, v1::Pairing pairing, v1::DType dtype,
                             float sign = 1) {
  return EagerHead(kValues, std::vector<int64_t>(4, position), pairing, dtype, sign);
}

v1::Tensor MakeTensor(v1::DType dtype, v1::Role role) {
  v1::Tensor tensor;
  tensor.set_role(role);
  tensor.set_layout("SD");
  tensor.mutable_array()->set_dtype(dtype);
  SetShape(*tensor.mutable_array(), {1, kHeadDim});
  if (dtype == v1::DTYPE_FP32) {
    tensor.mutable_array()->set_raw(RawBytes(std::vector<float>(kValues.begin(), kValues.end())));
    return tensor;
  }
  std::vector<uint16_t> bits;
  for (const double value : kValues) bits.push_back(Bits(value, dtype));
  tensor.mutable_array()->set_raw(RawBytes(bits));
  return tensor;
}

// One token at `position`, without tensors. The frequencies are exact floats, so that all
// implementations have the same ones.
v1::RotateRequest MakeRequest(int64_t position, v1::Pairing pairing) {
  v1::RotateRequest request;
  v1::RopeSpec& rope = *request.mutable_rope();
  rope.mutable_config()->set_head_dim(kHeadDim);
  v1::Array& inv_freq = *rope.mutable_config()->mutable_inv_freq();
  inv_freq.set_dtype(v1::DTYPE_FP32);
  inv_freq.mutable_numbers()->Add(kFrequencies.begin(), kFrequencies.end());
  rope.set_pairing(pairing);
  rope.set_precision(v1::PRECISION_HF);
  request.mutable_positions()->set_start(position);
  return request;
}

class PlanPrecisionTest : public ::testing::TestWithParam<const char*> {
 protected:
  // The tensors of the answer, as floats.
  std::vector<std::vector<float>> Rotate(const v1::RotateRequest& sent) {
    const auto finished = engine_.Run(sent);
    EXPECT_THAT(finished.status(), IsOk());
    std::vector<std::vector<float>> tensors;
    for (int t = 0; finished.ok() && t < sent.tensors_size(); ++t) {
      const v1::DType dtype =
          sent.has_output() ? sent.output().dtype() : sent.tensors(t).array().dtype();
      tensors.push_back(Floats((*finished)->run.outputs[static_cast<size_t>(t)].data(), dtype));
    }
    return tensors;
  }

  // Of one head.
  static std::vector<float> Floats(const char* bytes, v1::DType dtype) {
    std::vector<float> values(kHeadDim);
    if (dtype == v1::DTYPE_FP32) {
      std::memcpy(values.data(), bytes, values.size() * sizeof(float));
      return values;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, bytes + 2 * i, sizeof(bits));
      values[i] =
          dtype == v1::DTYPE_FP16 ? kernels::FromFloat16(bits) : kernels::FromBFloat16(bits);
    }
    return values;
  }

  LocalEngine engine_{kernels::CreateBackend(GetParam(), {}).value()};
};

INSTANTIATE_TEST_SUITE_P(All, PlanPrecisionTest, ::testing::Values("reference", "cpu"));

TEST_P(PlanPrecisionTest, EachTensorIsRoundedInItsOwnDType) {
  for (const v1::Pairing pairing : {v1::PAIRING_HALF, v1::PAIRING_INTERLEAVED}) {
    for (const int64_t position : {0, 1, 77, 4095, 131071, 16777217}) {
      v1::RotateRequest request = MakeRequest(position, pairing);
      *request.add_tensors() = MakeTensor(v1::DTYPE_FP16, v1::ROLE_Q);
      *request.add_tensors() = MakeTensor(v1::DTYPE_BF16, v1::ROLE_K);
      *request.add_tensors() = MakeTensor(v1::DTYPE_FP32, v1::ROLE_K);
      *request.add_tensors() = MakeTensor(v1::DTYPE_FP16, v1::ROLE_K);
      EXPECT_THAT(Rotate(request), ElementsAre(EagerHead(position, pairing, v1::DTYPE_FP16),
                                               EagerHead(position, pairing, v1::DTYPE_BF16),
                                               EagerHead(position, pairing, v1::DTYPE_FP32),
                                               EagerHead(position, pairing, v1::DTYPE_FP16)))
          << position;
    }
  }
}

// The gradient that autograd computes: the same products with the opposite sign of the sine.
TEST_P(PlanPrecisionTest, BackwardTurnsBackInTheSameSteps) {
  v1::RotateRequest request = MakeRequest(77, v1::PAIRING_HALF);
  *request.add_tensors() = MakeTensor(v1::DTYPE_BF16, v1::ROLE_Q);
  for (const v1::Operation operation : {v1::OPERATION_BACKWARD, v1::OPERATION_INVERSE}) {
    request.set_operation(operation);
    EXPECT_THAT(Rotate(request), ElementsAre(EagerHead(77, v1::PAIRING_HALF, v1::DTYPE_BF16, -1)));
  }
}

TEST_P(PlanPrecisionTest, ThreeAxisPositionsTakeTheRowsOfTheirAxes) {
  v1::RotateRequest request = MakeRequest(0, v1::PAIRING_HALF);
  for (const int64_t count : {2, 1, 1}) {
    request.mutable_rope()->mutable_config()->add_mrope_section(count);
  }
  request.mutable_positions()->clear_start();
  v1::Array& ids = *request.mutable_positions()->mutable_position_ids();
  for (const int64_t id : {300, 41, 52}) ids.add_numbers(static_cast<double>(id));
  SetShape(ids, {3, 1});
  *request.add_tensors() = MakeTensor(v1::DTYPE_FP16, v1::ROLE_Q);
  *request.add_tensors() = MakeTensor(v1::DTYPE_BF16, v1::ROLE_K);
  const std::vector<int64_t> by_pair = {300, 300, 41, 52};
  EXPECT_THAT(Rotate(request),
              ElementsAre(EagerHead(kValues, by_pair, v1::PAIRING_HALF, v1::DTYPE_FP16),
                          EagerHead(kValues, by_pair, v1::PAIRING_HALF, v1::DTYPE_BF16)));
}

// As in Llama 4: rotates in the tensor's dtype, then multiplies by a float32 factor.
TEST_P(PlanPrecisionTest, ScaleAndOutputDTypeComeAfterTheSteps) {
  v1::RotateRequest request = MakeRequest(77, v1::PAIRING_HALF);
  v1::Tensor& tensor = *request.add_tensors();
  tensor = MakeTensor(v1::DTYPE_BF16, v1::ROLE_Q);
  tensor.set_scale(0.3);
  request.mutable_output()->set_dtype(v1::DTYPE_FP32);
  std::vector<float> want = EagerHead(77, v1::PAIRING_HALF, v1::DTYPE_BF16);
  for (float& value : want) value *= 0.3F;
  const std::vector<float> got = Rotate(request).at(0);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_FLOAT_EQ(got[i], want[i]) << i;
}

}  // namespace
}  // namespace rope::server
