// Norm, scales and other output dtypes through a real server, compared with the plain formulas in
// long double: the operations of a model on q and k before, during and after the rotation, rounded
// once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/conformance/rotation.h"
#include "tests/support/rotate_stream.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using kernels::DType;

constexpr int64_t kTokens = 5;
constexpr int64_t kHeads = 3;
constexpr int64_t kHeadDim = 80;
constexpr int64_t kFirst = 30000;  // position of the first token
constexpr double kLength = 8192;   // original_max_position_embeddings

struct Named {
  DType dtype;
  v1::DType message;
};
constexpr Named kInputs[] = {{DType::kFloat32, v1::DTYPE_FP32},
                             {DType::kFloat16, v1::DTYPE_FP16},
                             {DType::kBFloat16, v1::DTYPE_BF16}};
constexpr Named kOutputs[] = {{DType::kFloat32, v1::DTYPE_FP32},
                              {DType::kFloat16, v1::DTYPE_FP16},
                              {DType::kBFloat16, v1::DTYPE_BF16},
                              {DType::kFloat8E4M3, v1::DTYPE_FP8_E4M3},
                              {DType::kFloat8E5M2, v1::DTYPE_FP8_E5M2}};

// The options of a request, and the input of the formulas. Numbers are exact in float32.
struct Case {
  Named input = kInputs[0];
  std::optional<Named> output = {};
  bool half = true;
  int64_t rotary_dim = kHeadDim;
  bool rotates = true;
  bool backward = false;
  std::optional<float> eps = {};
  std::vector<float> weight = {};
  float scale = 1;
  std::optional<float> beta = {};
  float fp8_scale = 1;

  Named stored() const { return output.value_or(input); }
};

// [token][head][channel] values after rounding to the input's dtype.
std::vector<double> Values(const Case& c, std::string& bytes) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> uniform(-3, 3);
  const auto element_bytes = static_cast<size_t>(kernels::ElementBytes(c.input.dtype));
  std::vector<double> values(kTokens * kHeads * kHeadDim);
  bytes.resize(values.size() * element_bytes);
  auto* const elements = reinterpret_cast<uint8_t*>(bytes.data());
  for (size_t i = 0; i < values.size(); ++i) {
    kernels::WriteElement(uniform(random), c.input.dtype, elements + i * element_bytes);
    values[i] = kernels::ReadElement(elements + i * element_bytes, c.input.dtype);
  }
  return values;
}

struct Answer {
  std::vector<long double> exact;
  std::vector<long double> tolerance;  // before the last rounding
};

// Applies the formulas to one head, in place.
void ComputeHead(const Case& c, int64_t position, const double* input, Answer& answer) {
  std::vector<long double> x(input, input + kHeadDim);
  if (c.eps.has_value()) {
    long double sum = 0;
    for (const long double value : x) sum += value * value;
    const long double rms = std::sqrt(sum / kHeadDim + *c.eps);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= (c.weight.empty() ? 1 : c.weight[i]) / rms;
  }
  std::vector<long double> y = x;
  std::vector<long double> size(x.size());  // |a| + |b| of an element's pair
  for (size_t i = 0; i < x.size(); ++i) size[i] = std::fabs(x[i]);
  const auto pairs = static_cast<size_t>(c.rotates ? c.rotary_dim / 2 : 0);
  for (size_t i = 0; i < pairs; ++i) {
    const size_t a = c.half ? i : 2 * i;
    const size_t b = c.half ? i + pairs : 2 * i + 1;
    const long double angle =
        position * std::pow(10000.0L, -static_cast<long double>(i) / pairs) * (c.backward ? -1 : 1);
    y[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
    y[b] = x[b] * std::cos(angle) + x[a] * std::sin(angle);
    size[a] = size[b] = std::fabs(x[a]) + std::fabs(x[b]);
  }
  const long double u = std::ldexp(1.0L, -24);
  long double scale = c.scale;
  if (c.beta.has_value())
    scale *= 1 + *c.beta * std::log1p(std::floor(static_cast<double>(position) / kLength));
  for (size_t i = 0; i < y.size(); ++i) {
    const long double result = y[i] * scale / c.fp8_scale;
    const long double turned = (1.5e-7L + (c.eps.has_value() ? 3 * u : 0)) * size[i];
    // Scales add their own rounding errors, those of their product, and that of the quotient.
    const long double scaled = scale == 1 && c.fp8_scale == 1 ? 0 : 4 * u * std::fabs(result);
    answer.exact.push_back(result);
    answer.tolerance.push_back(turned * std::fabs(scale / c.fp8_scale) + scaled);
  }
}

v1::RotateRequest MakeRequest(const Case& c, const std::string& bytes) {
  v1::RotateRequest request;
  request.mutable_rope()->set_config_json(
      R"({"head_dim": 80, "rope_theta": 10000, "num_hidden_layers": 2, "no_rope_layers": [1, 0],
          "original_max_position_embeddings": 8192, "partial_rotary_factor": )" +
      std::to_string(static_cast<double>(c.rotary_dim) / kHeadDim) + "}");
  request.mutable_rope()->set_layer(c.rotates ? 0 : 1);
  request.mutable_rope()->set_pairing(c.half ? v1::PAIRING_HALF : v1::PAIRING_INTERLEAVED);
  request.mutable_positions()->set_start(kFirst);
  if (c.backward) request.set_operation(v1::OPERATION_BACKWARD);
  if (c.output.has_value()) request.mutable_output()->set_dtype(c.output->message);
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout("SHD");
  tensor.mutable_array()->set_dtype(c.input.message);
  for (const int64_t length : {kTokens, kHeads, kHeadDim}) {
    tensor.mutable_array()->add_shape(length);
  }
  tensor.mutable_array()->set_raw(bytes);
  if (c.eps.has_value()) {
    tensor.mutable_norm()->set_eps(*c.eps);
    for (const float weight : c.weight)
      tensor.mutable_norm()->mutable_weight()->add_numbers(weight);
  }
  if (c.scale != 1) tensor.set_scale(c.scale);
  if (c.beta.has_value()) tensor.set_llama4_scaling_beta(*c.beta);
  if (c.fp8_scale != 1) tensor.add_fp8_scales(c.fp8_scale);
  return request;
}

// Norm weights (gamma) of either sign.
std::vector<float> Weight() {
  std::vector<float> weight;
  for (int i = 0; i < kHeadDim; ++i) weight.push_back(0.75F + static_cast<float>(i % 9) / 16);
  weight[3] = -0.5F;
  return weight;
}

class FusedOpsTest : public ::testing::Test {
 protected:
  v1::RotateResponse Send(const v1::RotateRequest& request) {
    v1::RotateResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->Rotate(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  static void ExpectExact(const Case& c, const std::vector<double>& input,
                          const v1::Tensor& tensor) {
    Answer answer;
    for (int64_t row = 0; row < kTokens * kHeads; ++row) {
      ComputeHead(c, kFirst + row / kHeads, input.data() + row * kHeadDim, answer);
    }
    const auto [dtype, message] = c.stored();
    const std::string& raw = tensor.array().raw();
    EXPECT_EQ(tensor.array().dtype(), message);
    ASSERT_EQ(static_cast<int64_t>(raw.size()),
              kTokens * kHeads * kHeadDim * kernels::ElementBytes(dtype));
    const long double largest = dtype == DType::kFloat8E4M3   ? 448
                                : dtype == DType::kFloat8E5M2 ? 57344
                                                              : HUGE_VALL;
    for (size_t i = 0; i < answer.exact.size(); ++i) {
      const double got =
          kernels::ReadElement(reinterpret_cast<const uint8_t*>(raw.data()) +
                                   static_cast<int64_t>(i) * kernels::ElementBytes(dtype),
                               dtype);
      const long double want = std::clamp(answer.exact[i], -largest, largest);
      const auto reach = static_cast<double>(std::fabs(want) + answer.tolerance[i]);
      const long double tolerance = answer.tolerance[i] + HalfUnit(reach, dtype);
      ASSERT_LE(std::fabs(got - want), tolerance)
          << "element " << i << ": got " << got << ", want " << static_cast<double>(want) << ", "
          << kernels::Name(c.input.dtype) << " to " << kernels::Name(dtype);
    }
  }

  void Check(const Case& c) {
    std::string bytes;
    const std::vector<double> input = Values(c, bytes);
    const v1::RotateResponse response = Send(MakeRequest(c, bytes));
    ASSERT_EQ(response.tensors_size(), 1);
    ExpectExact(c, input, response.tensors(0));
  }

  TestServer server_;
  std::unique_ptr<v1::RopeService::Stub> stub_ = server_.NewStub();
};

TEST_F(FusedOpsTest, EveryDTypeIntoEveryOther) {
  for (const Named& input : kInputs) {
    for (const Named& output : kOutputs) {
      for (const bool half : {true, false}) {
        for (const int64_t rotary_dim : {kHeadDim, kHeadDim / 4}) {
          Case c = {.input = input, .output = output, .half = half, .rotary_dim = rotary_dim};
          Check(c);
          if (kernels::IsFloat8(output.dtype))
            c.fp8_scale = 0.0078125F;  // e4m3: some results saturate
          Check(c);
          c.rotates = false;
          Check(c);
        }
      }
    }
  }
}

// Qwen3: q_norm over head_dim with a weight, then the rotation. Gemma 3: the same with 1 + w.
TEST_F(FusedOpsTest, NormThenRotation) {
  for (const Named& input : kInputs) {
    for (const bool half : {true, false}) {
      for (const int64_t rotary_dim : {kHeadDim, kHeadDim / 2}) {
        Check({.input = input, .half = half, .rotary_dim = rotary_dim, .eps = 1e-6F});
        Check({.input = input,
               .half = half,
               .rotary_dim = rotary_dim,
               .eps = 1e-6F,
               .weight = Weight()});
      }
    }
  }
}

// Llama 4 scales q by position in the layers that do not rotate.
TEST_F(FusedOpsTest, ScalesOfATensorAndOfItsTokens) {
  for (const bool rotates : {true, false}) {
    for (const bool backward : {true, false}) {
      Check({.rotates = rotates, .backward = backward, .scale = 0.11180339887F});
      Check({.rotates = rotates, .backward = backward, .beta = 0.1F});
      Check({.rotates = rotates, .backward = backward, .scale = -3, .beta = 0.1F});
    }
  }
}

TEST_F(FusedOpsTest, AllOfItAtOnce) {
  for (const Named& input : kInputs) {
    for (const Named& output : kOutputs) {
      for (const bool rotates : {true, false}) {
        Case c = {.input = input,
                  .output = output,
                  .rotary_dim = kHeadDim / 2,
                  .rotates = rotates,
                  .eps = 1e-5F,
                  .weight = Weight(),
                  .scale = 0.08838834764F,
                  .beta = 0.1F};
        if (kernels::IsFloat8(output.dtype)) c.fp8_scale = 0.01F;
        Check(c);
      }
    }
  }
}

TEST_F(FusedOpsTest, StridesAndOutputLayoutsMoveTheSameNumbers) {
  const Case c = {.input = kInputs[2],
                  .output = kOutputs[3],
                  .eps = 1e-6F,
                  .weight = Weight(),
                  .beta = 0.1F,
                  .fp8_scale = 0.5F};
  std::string bytes;
  const std::vector<double> input = Values(c, bytes);
  v1::RotateRequest request = MakeRequest(c, bytes);
  const std::string want = Send(request).tensors(0).array().raw();
  // The same heads, each followed by seven elements of padding.
  std::string padded;
  for (size_t row = 0; row < kTokens * kHeads; ++row) {
    padded += bytes.substr(row * kHeadDim * 2, kHeadDim * 2);
    if (row + 1 < kTokens * kHeads) padded += std::string(14, 'x');
  }
  v1::Array& array = *request.mutable_tensors(0)->mutable_array();
  array.set_raw(padded);
  for (const int64_t stride : {kHeads * (kHeadDim + 7), kHeadDim + 7, int64_t{1}}) {
    array.add_strides(stride);
  }
  EXPECT_EQ(Send(request).tensors(0).array().raw(), want);
  request.mutable_output()->add_layouts("HSD");
  const std::string moved = Send(request).tensors(0).array().raw();
  ASSERT_EQ(moved.size(), want.size());
  for (size_t token = 0; token < kTokens; ++token) {
    for (size_t head = 0; head < kHeads; ++head) {
      EXPECT_EQ(moved.substr((head * kTokens + token) * kHeadDim, kHeadDim),
                want.substr((token * kHeads + head) * kHeadDim, kHeadDim));
    }
  }
}

TEST_F(FusedOpsTest, TensorsOfSeveralDTypesShareARequestAndAStream) {
  grpc::ClientContext context;
  const auto stream = OpenStream(*stub_, context);
  for (const Named& output : kOutputs) {
    v1::RotateRequest request;
    std::vector<Case> cases;
    std::vector<std::vector<double>> inputs;
    for (const Named& input : kInputs) {
      Case c = {.input = input, .output = output};
      if (kernels::IsFloat8(output.dtype)) c.fp8_scale = 0.25F;
      if (input.dtype == DType::kBFloat16) c.eps = 1e-6F;
      std::string bytes;
      inputs.push_back(Values(c, bytes));
      v1::RotateRequest one = MakeRequest(c, bytes);
      if (cases.empty()) request = one;
      if (!cases.empty()) *request.add_tensors() = one.tensors(0);
      cases.push_back(std::move(c));
    }
    ASSERT_TRUE(stream->Write(request));
    v1::RotateResponse response;
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.error().message(), "");
    ASSERT_EQ(response.tensors_size(), 3);
    for (int i = 0; i < 3; ++i) {
      const auto index = static_cast<size_t>(i);
      ExpectExact(cases[index], inputs[index], response.tensors(i));
    }
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

// Larger than one slice. The larger of a token's input and output decides where slices end.
TEST_F(FusedOpsTest, LargeTensorsAreCutByTheirLargerSide) {
  Case c = {.input = kInputs[2], .output = kOutputs[0], .beta = 0.1F};
  constexpr int64_t kRows = 20000;
  v1::RotateRequest request = MakeRequest(c, "");
  v1::Array& array = *request.mutable_tensors(0)->mutable_array();
  array.set_shape(0, kRows);
  std::string raw(kRows * kHeads * kHeadDim * 2, '\0');
  for (size_t i = 0; i < raw.size(); i += 2) raw[i + 1] = static_cast<char>(0x3f);  // 0.5
  array.set_raw(raw);
  grpc::ClientContext context;
  v1::RotateResponse response;
  const grpc::Status status = stub_->Rotate(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const std::string& got = response.tensors(0).array().raw();
  ASSERT_EQ(got.size(), 2 * raw.size());
  const std::vector<double> head(kHeadDim, 0.5);
  for (int64_t token = 0; token < kRows; token += 97) {
    Answer answer;
    ComputeHead(c, kFirst + token, head.data(), answer);
    for (int64_t i = 0; i < kHeadDim; ++i) {
      const int64_t at = (token * kHeads + token % kHeads) * kHeadDim + i;
      const double value = kernels::ReadElement(
          reinterpret_cast<const uint8_t*>(got.data()) + 4 * at, DType::kFloat32);
      const auto index = static_cast<size_t>(i);
      ASSERT_NEAR(value, static_cast<double>(answer.exact[index]),
                  static_cast<double>(answer.tolerance[index]))
          << token << " " << i;
    }
  }
}

}  // namespace
}  // namespace rope::testing
