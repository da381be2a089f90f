#include "server/request/explicit_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/local_engine.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::LocalEngine;
using ::rope::testing::RawBytes;
using ::rope::testing::SetShape;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// The angles of `rows` rows with two pairs each.
std::vector<double> Angles(int64_t rows) {
  std::vector<double> angles;
  for (int64_t i = 0; i < 2 * rows; ++i) angles.push_back(0.37 * static_cast<double>(i));
  return angles;
}

void SetNumbers(v1::Array& array, const std::vector<double>& values,
                const std::vector<int64_t>& shape) {
  array.mutable_numbers()->Assign(values.begin(), values.end());
  SetShape(array, shape);
}

// Two sequences of three tokens, one head of five channels. The last channel passes through.
v1::RotateRequest Sample() {
  v1::RotateRequest request;
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout("BSHD");
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
  SetShape(*tensor.mutable_array(), {2, 3, 1, 5});
  std::vector<float> values;
  for (int i = 0; i < 30; ++i) values.push_back(static_cast<float>(i % 7) - 3.0F);
  tensor.mutable_array()->set_raw(RawBytes(values));
  return request;
}

v1::RotateRequest WithAngles(const std::vector<int64_t>& rows) {
  v1::RotateRequest request = Sample();
  int64_t count = 1;
  for (const int64_t length : rows) count *= length;
  std::vector<int64_t> shape = rows;
  shape.push_back(2);
  SetNumbers(*request.mutable_rows()->mutable_angles(), Angles(count), shape);
  return request;
}

class ExplicitRowsTest : public ::testing::Test {
 protected:
  // Expects that token t was rotated by `sign` times the angles of row rows[t].
  void ExpectTurned(const v1::RotateRequest& request, const std::vector<int64_t>& rows,
                    double sign = 1) {
    ASSERT_OK(got, engine_.Rotate(request));
    std::vector<float> input(30);
    std::memcpy(input.data(), request.tensors(0).array().raw().data(), 30 * sizeof(float));
    for (size_t t = 0; t < 6; ++t) {
      for (size_t i = 0; i < 2; ++i) {
        const double angle = sign * Angles(100)[static_cast<size_t>(2 * rows[t]) + i];
        const double a = input[t * 5 + i];
        const double b = input[t * 5 + i + 2];
        EXPECT_NEAR((*got)[t * 5 + i], a * std::cos(angle) - b * std::sin(angle), 1e-6) << t;
        EXPECT_NEAR((*got)[t * 5 + i + 2], b * std::cos(angle) + a * std::sin(angle), 1e-6) << t;
      }
      EXPECT_EQ((*got)[t * 5 + 4], input[t * 5 + 4]) << "passes through";
    }
  }

  void ExpectFails(const v1::RotateRequest& request, absl::StatusCode code,
                   const std::string& text) {
    EXPECT_THAT(engine_.Rotate(request), Fails(code, text));
  }

  LocalEngine engine_;
};

TEST_F(ExplicitRowsTest, RowsLieAsTheTokensDo) {
  ExpectTurned(WithAngles({3}), {0, 1, 2, 0, 1, 2});
  ExpectTurned(WithAngles({2, 3}), {0, 1, 2, 3, 4, 5});
}

TEST_F(ExplicitRowsTest, PositionsPickRows) {
  v1::RotateRequest request = WithAngles({10});
  SetNumbers(*request.mutable_positions()->mutable_position_ids(), {9, 0, 3, 3, 1, 2}, {2, 3});
  ExpectTurned(request, {9, 0, 3, 3, 1, 2});
}

TEST_F(ExplicitRowsTest, CosAndSinOfAnyWidthSayTheSame) {
  v1::RotateRequest request = Sample();
  std::vector<float> cos;
  std::vector<float> sin;
  for (const double angle : Angles(3)) {
    cos.push_back(static_cast<float>(std::cos(angle)));
    sin.push_back(static_cast<float>(std::sin(angle)));
  }
  for (auto [array, values] : {std::pair(request.mutable_rows()->mutable_cos(), &cos),
                               std::pair(request.mutable_rows()->mutable_sin(), &sin)}) {
    array->set_dtype(v1::DTYPE_FP32);
    SetShape(*array, {3, 2});
    array->set_raw(RawBytes(*values));
  }
  ExpectTurned(request, {0, 1, 2, 0, 1, 2});
}

TEST_F(ExplicitRowsTest, BackwardTurnsBack) {
  v1::RotateRequest request = WithAngles({3});
  request.set_operation(v1::OPERATION_BACKWARD);
  ExpectTurned(request, {0, 1, 2, 0, 1, 2}, -1);
}

TEST_F(ExplicitRowsTest, WhatDoesNotFitIsRefusedByName) {
  v1::RotateRequest request = Sample();
  request.mutable_rows();
  ExpectFails(request, kInvalid, "rows: got nothing, want cos_sin, cos and sin, or angles");
  SetNumbers(*request.mutable_rows()->mutable_cos(), Angles(3), {3, 2});
  ExpectFails(request, kInvalid, "rows.sin: got nothing, want cos and sin together");
  SetNumbers(*request.mutable_rows()->mutable_sin(), Angles(3), {2, 3});
  ExpectFails(request, kInvalid, "rows.sin.shape: got [2, 3], want [3, 2], as rows.cos");
  *request.mutable_rows()->mutable_angles() = request.rows().cos();
  ExpectFails(request, kInvalid, "rows: got two of angles, cos_sin, and cos and sin");
  ExpectFails(WithAngles({4}), kInvalid, "rows.shape: got [4], want [3] or [2, 3] rows");
  request = WithAngles({3});
  SetShape(*request.mutable_rows()->mutable_angles(), {6});
  ExpectFails(request, kInvalid, "rows.angles.shape: got [6], want [rows, pairs]");
  SetShape(*request.mutable_rows()->mutable_angles(), {2, 3});
  ExpectFails(request, kInvalid, "rows: got 3 pairs, want at most 2 for D 5");
  request = WithAngles({3});
  request.mutable_rows()->mutable_angles()->set_numbers(1, HUGE_VAL);
  ExpectFails(request, kInvalid, "rows.angles element 1: got inf, want a finite number");
  request = WithAngles({3});
  request.mutable_positions()->set_start(1);
  ExpectFails(request, absl::StatusCode::kOutOfRange,
              "positions: got 3, want less than the 3 rows");
}

TEST_F(ExplicitRowsTest, ATensorsOwnWindowMustHoldAllPairs) {
  v1::RotateRequest request = WithAngles({3});  // two pairs, heads of 5 channels
  for (const int64_t offset : {0, 1}) {
    request.mutable_tensors(0)->set_rotary_offset(offset);
    EXPECT_THAT(engine_.Check(request), IsOk()) << offset;
  }
  request.mutable_tensors(0)->set_rotary_offset(2);
  ExpectFails(request, kInvalid,
              "tensors[0].rotary_offset: got 2, want at most D - rotary_dim, 5 - 4");
}

TEST_F(ExplicitRowsTest, NothingElseMaySayHowToRotate) {
  v1::RotateRequest request = WithAngles({3});
  request.mutable_rope()->set_model("llama-3.1-8b");
  ExpectFails(request, kInvalid, "rope: got an embedding together with rows, want only a pairing");
  request = WithAngles({3});
  request.clear_rope();
  ExpectFails(request, kInvalid, "rope.pairing: got nothing");
  request = WithAngles({3});
  request.set_operation(v1::OPERATION_INVERSE);
  ExpectFails(request, kInvalid, "operation: got OPERATION_INVERSE");
  request = WithAngles({3});
  request.set_skip_attention_factor(true);
  ExpectFails(request, kInvalid, "skip_attention_factor: got true with rows");
  request = WithAngles({3});
  request.mutable_reposition();
  ExpectFails(request, kInvalid, "reposition: got it without OPERATION_REPOSITION, want it unset");
}

}  // namespace
}  // namespace rope::server
