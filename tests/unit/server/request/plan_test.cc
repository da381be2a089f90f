// From a request to its plan, and from there to rotated numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backends.h"
#include "kernels/dtype/element.h"
#include "server/request/rotation_plan.h"
#include "tests/support/local_engine.h"
#include "tests/support/received_request.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::LocalEngine;
using ::rope::testing::RawBytes;
using ::rope::testing::SetShape;
using ::testing::FloatNear;
using ::testing::Pointwise;

constexpr int64_t kChannels = 8;
constexpr int64_t kTokens = 3;

// Layers 0, 2 and 3 slide, layer 1 is full: theta 10000 and 1000000.
constexpr char kTwoKinds[] = R"({"model_type": "gemma3_text", "head_dim": 8,
    "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                    "sliding_attention"]})";

std::vector<float> Values(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i % 11) - 5.0F);
  return values;
}

// A tensor of `layers` layers in `layout`, which has the axes L, S and D.
v1::RotateRequest Sample(int64_t layers, const std::string& layout = "LSD") {
  v1::RotateRequest request;
  request.mutable_rope()->set_config_json(kTwoKinds);
  request.mutable_positions()->set_start(1000);
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_K);
  tensor.set_layout(layout);
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
  std::vector<int64_t> shape;
  for (const char axis : layout) {
    shape.push_back(axis == 'L' ? layers : axis == 'S' ? kTokens : kChannels);
  }
  SetShape(*tensor.mutable_array(), shape);
  tensor.mutable_array()->set_raw(RawBytes(Values(layers * kTokens * kChannels)));
  return request;
}

class LayerRopesTest : public ::testing::Test {
 protected:
  // Rotates `request` with the layers from `first_layer`, and each layer alone; expects the same.
  void ExpectAsEachLayerAlone(v1::RotateRequest request, int64_t first_layer, int64_t layers) {
    request.mutable_rope()->set_first_layer(static_cast<int32_t>(first_layer));
    ASSERT_OK(together, engine_.Rotate(request));
    const std::string layout = request.tensors(0).layout();
    const std::vector<float> all = Values(layers * kTokens * kChannels);
    for (int64_t layer = 0; layer < layers; ++layer) {
      std::vector<size_t> cells;  // of the layer, in memory order
      for (size_t i = 0; i < all.size(); ++i) {
        const auto row = static_cast<int64_t>(i) / kChannels;
        if ((layout == "LSD" ? row / kTokens : row % layers) == layer) cells.push_back(i);
      }
      v1::RotateRequest alone = request;
      alone.mutable_rope()->clear_first_layer();
      alone.mutable_rope()->set_layer(static_cast<int32_t>(first_layer + layer));
      v1::Tensor& tensor = *alone.mutable_tensors(0);
      tensor.set_layout("SD");
      SetShape(*tensor.mutable_array(), {kTokens, kChannels});
      std::vector<float> values;
      for (const size_t cell : cells) values.push_back(all[cell]);
      tensor.mutable_array()->set_raw(RawBytes(values));
      ASSERT_OK(want, engine_.Rotate(alone));
      for (size_t i = 0; i < cells.size(); ++i) {
        EXPECT_EQ((*together)[cells[i]], (*want)[i]) << "layer " << layer << " cell " << i;
      }
    }
  }

  void ExpectFails(const v1::RotateRequest& request, const std::string& text) {
    EXPECT_THAT(engine_.Check(request), IsInvalid(text));
  }

  LocalEngine engine_;
};

TEST_F(LayerRopesTest, EachLayerRotatesAsItDoesAlone) {
  ExpectAsEachLayerAlone(Sample(4), 0, 4);
  ExpectAsEachLayerAlone(Sample(2), 1, 2);
  ExpectAsEachLayerAlone(Sample(1), 3, 1);
  ExpectAsEachLayerAlone(Sample(4, "SLD"), 0, 4);
}

TEST_F(LayerRopesTest, SoDoTheInverseAndAReposition) {
  v1::RotateRequest inverse = Sample(4);
  inverse.set_operation(v1::OPERATION_INVERSE);
  ExpectAsEachLayerAlone(inverse, 0, 4);
  v1::RotateRequest reposition = Sample(4);
  reposition.set_operation(v1::OPERATION_REPOSITION);
  reposition.mutable_reposition()->mutable_from()->set_start(17);
  ExpectAsEachLayerAlone(reposition, 0, 4);
}

// Layers of two kinds. The frequencies of a sliding layer follow the length past 4096 tokens.
std::string FullAndDynamic(const std::string& first, const std::string& second) {
  return absl::StrCat(R"({"model_type": "gemma3_text", "head_dim": 8, "num_hidden_layers": 2,
      "max_position_embeddings": 4096, "layer_types": [")",
                      first, R"(", ")", second, R"("],
      "rope_parameters": {
        "full_attention": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0},
        "sliding_attention": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}})");
}

v1::RotateRequest Move(const std::string& config_json, int64_t from, int64_t to,
                       const std::string& layout = "LSD") {
  v1::RotateRequest request = Sample(2, layout);
  request.mutable_rope()->set_config_json(config_json);
  request.set_operation(v1::OPERATION_REPOSITION);
  request.mutable_reposition()->mutable_from()->set_start(from);
  request.mutable_positions()->set_start(to);
  return request;
}

TEST_F(LayerRopesTest, NoLayerIsRepositionedBetweenLengthsThatChangeItsFrequencies) {
  const std::string full = "full_attention";
  const std::string sliding = "sliding_attention";
  const std::vector<std::pair<int64_t, int64_t>> moves = {{0, 5000}, {5000, 0}, {5000, 6000}};
  for (const auto& config : {FullAndDynamic(full, sliding), FullAndDynamic(sliding, full)}) {
    for (const std::string layout : {"LSD", "SLD"}) {
      for (const auto& [from, to] : moves) {
        v1::RotateRequest request = Move(config, from, to, layout);
        request.mutable_rope()->set_first_layer(0);
        ExpectFails(request, "rope.first_layer: got it with a length that changes the frequencies");
      }
      ExpectAsEachLayerAlone(Move(config, 17, 4000, layout), 0, 2);
      v1::RotateRequest planned = Move(config, 17, 5000, layout);
      planned.mutable_positions()->add_seq_lens(8000);
      planned.mutable_reposition()->mutable_from()->add_seq_lens(8000);
      ExpectAsEachLayerAlone(planned, 0, 2);
    }
  }
}

// Each kind of layer has 18 MiB of frequencies: two branches, three multipliers, three dtypes.
TEST_F(LayerRopesTest, LayersWithTooManyDifferentFrequenciesAreRefused) {
  constexpr int64_t kWide = 65536;
  std::string factors = "[1";
  for (int64_t i = 1; i < kWide / 2; ++i) factors += ",1";
  factors += "]";
  const auto entry = [&](const std::string& name, int theta) {
    return absl::StrCat("\"", name, R"(": {"rope_type": "longrope", "rope_theta": )", theta,
                        R"(, "factor": 2.0, "original_max_position_embeddings": 8,
                             "short_factor": )",
                        factors, R"(, "long_factor": )", factors, "}");
  };
  const std::string parameters =
      absl::StrCat(R"("rope_parameters": {)", entry("full_attention", 100), ", ",
                   entry("sliding_attention", 200), "}}");
  for (const std::string head_dim : {R"("head_dim": 65536, )", ""}) {
    v1::RotateRequest request = Sample(1);
    request.mutable_rope()->set_config_json(absl::StrCat(
        R"({"model_type": "gemma3_text", "num_hidden_layers": 2, "sliding_window_pattern": 2, )",
        head_dim, parameters));
    request.mutable_rope()->set_precision(v1::PRECISION_HF);
    request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
    request.mutable_rope()->set_first_layer(0);
    v1::Tensor& tensor = *request.mutable_tensors(0);
    SetShape(*tensor.mutable_array(), {2, 1, kWide});
    tensor.mutable_array()->set_raw(RawBytes(Values(2 * kWide)));
    EXPECT_THAT(engine_.Check(request),
                IsExhausted("bytes of frequencies of different layers, want at most"));
  }
}

// xPos on tensors, from request to rotated numbers.

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

// Precision hf, from request to rotated numbers, compared with an oracle that rounds after each
// step of Hugging Face's eager code.

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
