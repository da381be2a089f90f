// OPERATION_REPOSITION through a real server: a moved tensor must equal the raw tensor rotated to
// the new positions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

constexpr int64_t kTokens = 24;
constexpr int64_t kHeadDim = 64;

v1::RopeSpec Spec(const std::string& config_json) {
  v1::RopeSpec spec;
  spec.set_config_json(config_json);
  spec.set_pairing(v1::PAIRING_HALF);
  return spec;
}

const char* const kDefault = R"({"head_dim": 64, "rope_theta": 10000})";
const char* const kYarn =
    R"({"head_dim": 64, "rope_theta": 10000, "max_position_embeddings": 16384,
        "rope_scaling": {"rope_type": "yarn", "factor": 4,
                         "original_max_position_embeddings": 4096}})";
const char* const kDynamic =
    R"({"head_dim": 64, "rope_theta": 10000, "max_position_embeddings": 64,
        "rope_scaling": {"rope_type": "dynamic", "factor": 4}})";
const char* const kMrope =
    R"({"head_dim": 64, "rope_theta": 10000,
        "rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12]}})";

v1::Positions From(const std::vector<int64_t>& positions, int64_t axes = 1) {
  v1::Positions message;
  v1::Array& ids = *message.mutable_position_ids();
  for (const int64_t position : positions) ids.add_numbers(static_cast<double>(position));
  if (axes == 3) ids.add_shape(3);
  ids.add_shape(static_cast<int64_t>(positions.size()) / axes);
  return message;
}

std::vector<int64_t> Consecutive(int64_t first) {
  std::vector<int64_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

class RepositionTest : public ::testing::Test {
 protected:
  RepositionTest() {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (float& value : raw_) value = normal(random);
  }

  std::vector<float> Send(v1::RotateRequest request, const std::vector<float>& values) {
    v1::Tensor& tensor = *request.add_tensors();
    tensor.set_role(v1::ROLE_K);
    tensor.set_layout("SD");
    tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
    tensor.mutable_array()->add_shape(kTokens);
    tensor.mutable_array()->add_shape(kHeadDim);
    tensor.mutable_array()->set_raw(values.data(), values.size() * sizeof(float));
    grpc::ClientContext context;
    v1::RotateResponse response;
    const grpc::Status status = stub_->Rotate(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<float> result(values.size());
    if (!status.ok()) return result;
    attention_factor_ = response.attention_factor();
    const std::string& bytes = response.tensors(0).array().raw();
    EXPECT_EQ(bytes.size(), result.size() * sizeof(float));
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }

  std::vector<float> Rotate(const v1::RopeSpec& rope, const v1::Positions& positions,
                            const std::vector<float>& values) {
    v1::RotateRequest request;
    *request.mutable_rope() = rope;
    *request.mutable_positions() = positions;
    return Send(request, values);
  }

  std::vector<float> Move(const v1::RopeSpec& from_rope, const v1::Positions& from,
                          const v1::RopeSpec& rope, const v1::Positions& to,
                          const std::vector<float>& values) {
    v1::RotateRequest request;
    request.set_operation(v1::OPERATION_REPOSITION);
    *request.mutable_rope() = rope;
    *request.mutable_positions() = to;
    *request.mutable_reposition()->mutable_from() = from;
    *request.mutable_reposition()->mutable_from_rope() = from_rope;
    return Send(request, values);
  }

  // The error of two rotations in fp32, each within 1.5e-7 of the length of its pair, times the
  // scale.
  void ExpectClose(const std::vector<float>& got, const std::vector<float>& want, double scale) {
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t row = i / kHeadDim * kHeadDim;
      const size_t pair = i % (kHeadDim / 2);
      const double length = std::fabs(raw_[row + pair]) + std::fabs(raw_[row + pair + 32]);
      ASSERT_NEAR(got[i], want[i], 2 * 1.5e-7 * scale * 1.5 * length) << i;
    }
  }

  // Rotates to `p1` under `from`, moves to `p2` under `to`, and compares with a rotation to `p2`.
  void ExpectMoves(const v1::RopeSpec& from, const v1::Positions& p1, const v1::RopeSpec& to,
                   const v1::Positions& p2, double scale) {
    const std::vector<float> moved = Move(from, p1, to, p2, Rotate(from, p1, raw_));
    ExpectClose(moved, Rotate(to, p2, raw_), scale);
  }

  TestServer server_;
  std::unique_ptr<v1::RopeService::Stub> stub_ = server_.NewStub();
  std::vector<float> raw_ = std::vector<float>(kTokens * kHeadDim);
  double attention_factor_ = 0;
};

TEST_F(RepositionTest, BothWaysWithinOneEmbedding) {
  for (const char* const config : {kDefault, kYarn}) {
    const v1::RopeSpec rope = Spec(config);
    ExpectMoves(rope, From(Consecutive(1000)), rope, From(Consecutive(0)), 1.14);
    ExpectMoves(rope, From(Consecutive(3)), rope, From(Consecutive((1 << 30) - kTokens)), 1.14);
    Move(rope, From(Consecutive(3)), rope, From(Consecutive(9)), raw_);
    EXPECT_EQ(attention_factor_, 1) << "nothing is scaled";
  }
}

TEST_F(RepositionTest, AcrossEmbeddingsEqualsRotatingUnderTheNewOne) {
  ExpectMoves(Spec(kDefault), From(Consecutive(500)), Spec(kYarn), From(Consecutive(20)), 1.14);
  const std::vector<float> moved =
      Move(Spec(kDefault), From(Consecutive(0)), Spec(kYarn), From(Consecutive(0)), raw_);
  EXPECT_NEAR(attention_factor_, 0.1 * std::log(4.0) + 1, 1e-12);
  EXPECT_NEAR(moved[0], raw_[0] * attention_factor_, 1e-6);
}

TEST_F(RepositionTest, LengthsOfBothSidesCountWhereTheyDecideTheFrequencies) {
  v1::Positions shorter = From(Consecutive(0));
  shorter.add_seq_lens(100);
  v1::Positions longer = From(Consecutive(0));
  longer.add_seq_lens(5000);
  const v1::RopeSpec dynamic = Spec(kDynamic);
  ExpectMoves(dynamic, shorter, dynamic, longer, 1);
  EXPECT_NE(Rotate(dynamic, shorter, raw_), Rotate(dynamic, longer, raw_));
}

TEST_F(RepositionTest, EveryAxisOfThreeMovesByItself) {
  std::vector<int64_t> before;
  std::vector<int64_t> after;
  for (int64_t i = 0; i < 3 * kTokens; ++i) {
    before.push_back(i * 37 % 101);
    after.push_back(i * 53 % 89);
  }
  const v1::RopeSpec rope = Spec(kMrope);
  ExpectMoves(rope, From(before, 3), rope, From(after, 3), 1);
  ExpectMoves(rope, From(Consecutive(7)), rope, From(after, 3), 1);
}

// Each move rounds once: an fp32 rounding is at most 2^-24 of the length of its pair.
TEST_F(RepositionTest, AThousandMovesThatSumToNothingGiveTheInputBack) {
  constexpr int kMoves = 1000;
  for (const char* const config : {kDefault, kYarn}) {
    const v1::RopeSpec rope = Spec(config);
    std::mt19937 random(3);
    std::vector<float> values = raw_;
    int64_t at = 5000;
    for (int move = 0; move < kMoves; ++move) {
      const int64_t next = move + 1 == kMoves ? 5000 : static_cast<int64_t>(random() % 1000000);
      values = Move(rope, From(Consecutive(at)), rope, From(Consecutive(next)), values);
      ASSERT_EQ(attention_factor_, 1) << "move " << move << " scales";
      at = next;
    }
    double roundings = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t first = i / kHeadDim * kHeadDim + i % (kHeadDim / 2);
      const double length = std::hypot(raw_[first], raw_[first + kHeadDim / 2]);
      roundings = std::max(roundings, std::fabs(values[i] - raw_[i]) / (std::ldexp(length, -24)));
    }
    std::printf("measured: %d moves that sum to nothing are off by %.1f fp32 roundings (%s)\n",
                kMoves, roundings, config == kDefault ? "default" : "yarn");
    EXPECT_LE(roundings, kMoves);
    EXPECT_GT(roundings, 0);
  }
}

}  // namespace
}  // namespace rope::testing
