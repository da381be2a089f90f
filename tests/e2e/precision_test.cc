// Precision hf through the client library and a real server, compared bit for bit with Hugging
// Face's steps, computed one by one from the rows of Describe.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/dtype/element.h"
#include "rope/client.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::Client;
using client::DescribeRequest;
using client::DType;
using client::Operation;
using client::Pairing;
using client::Precision;
using client::Role;
using client::RotatedTensor;
using client::RotateRequest;

constexpr int64_t kTokens = 96;
constexpr int64_t kHeads = 3;
constexpr int64_t kHeadDim = 128;

uint16_t Bits(double value, DType dtype) {
  return dtype == DType::kFloat16 ? kernels::ToFloat16(value) : kernels::ToBFloat16(value);
}

float Float(uint16_t bits, DType dtype) {
  return dtype == DType::kFloat16 ? kernels::FromFloat16(bits) : kernels::FromBFloat16(bits);
}

struct Sample {
  explicit Sample(DType type, uint32_t seed) : dtype(type) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < kTokens * kHeads * kHeadDim; ++i) {
      bits.push_back(Bits(normal(random), dtype));
    }
  }
  DType dtype;
  std::vector<uint16_t> bits;
};

class PrecisionTest : public ::testing::Test {
 protected:
  static RotateRequest MakeRequest(const std::string& model, Pairing pairing, int64_t start) {
    RotateRequest request;
    request.rope.model = model;
    request.rope.pairing = pairing;
    request.rope.precision = Precision::kHf;
    request.positions.start = start;
    return request;
  }

  static void Add(const Sample& sample, Role role, RotateRequest& request) {
    request.tensors.push_back({.role = role,
                               .layout = "THD",
                               .dtype = sample.dtype,
                               .shape = {kTokens, kHeads, kHeadDim},
                               .data = sample.bits.data()});
  }

  // The number of elements of `got` that differ from the steps.
  int64_t CountWrong(const RotateRequest& request, const Sample& sample, const RotatedTensor& got) {
    DescribeRequest describe{.rope = request.rope, .dtype = sample.dtype};
    for (int64_t t = 0; t < kTokens; ++t) {
      describe.positions.push_back(*request.positions.start + t);
    }
    const auto rows = client_.Describe(describe);
    EXPECT_TRUE(rows.ok()) << rows.status().ToString();
    if (!rows.ok()) return -1;
    const bool half = request.rope.pairing == Pairing::kHalf;
    const auto* const output = static_cast<const uint16_t*>(got.data);
    const auto round = [&](float value) { return Float(Bits(value, sample.dtype), sample.dtype); };
    int64_t wrong = 0;
    for (size_t head = 0; head < kTokens * kHeads; ++head) {
      const client::Row& row = rows->rows[head / kHeads];
      for (size_t i = 0; i < kHeadDim / 2; ++i) {
        const size_t first = head * kHeadDim + (half ? i : 2 * i);
        const size_t second = first + (half ? kHeadDim / 2 : 1);
        const float a = Float(sample.bits[first], sample.dtype);
        const float b = Float(sample.bits[second], sample.dtype);
        const auto c = static_cast<float>(row.cos[i]);
        const auto s = static_cast<float>(row.sin[i]);
        wrong += output[first] != Bits(round(a * c) + round(-b * s), sample.dtype);
        wrong += output[second] != Bits(round(b * c) + round(a * s), sample.dtype);
      }
    }
    return wrong;
  }

  TestServer server_;
  Client client_ = *Client::Connect(server_.address());
};

TEST_F(PrecisionTest, HfIsBitEqualToItsStepsInBothDTypesOfARequest) {
  const Sample q(DType::kFloat16, 1);
  const Sample k(DType::kBFloat16, 2);
  for (const std::string model : {"llama-3.1-8b", "qwen3-8b"}) {
    for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
      for (const int64_t start : {0, 100000}) {
        RotateRequest request = MakeRequest(model, pairing, start);
        Add(q, Role::kQ, request);
        Add(k, Role::kK, request);
        ASSERT_OK(reply, client_.Rotate(request));
        EXPECT_EQ(CountWrong(request, q, reply->tensors[0]), 0) << model << " " << start;
        EXPECT_EQ(CountWrong(request, k, reply->tensors[1]), 0) << model << " " << start;
      }
    }
  }
}

// The results differ from the exact rotation in many elements, so hf was really applied.
TEST_F(PrecisionTest, ExactIsAnotherRotation) {
  const Sample k(DType::kBFloat16, 3);
  RotateRequest request = MakeRequest("llama-3.1-8b", Pairing::kHalf, 5000);
  Add(k, Role::kK, request);
  request.rope.precision = Precision::kExact;
  ASSERT_OK(reply, client_.Rotate(request));
  request.rope.precision = Precision::kHf;
  EXPECT_GT(CountWrong(request, k, reply->tensors[0]), kTokens * kHeads);
}

}  // namespace
}  // namespace rope::testing
