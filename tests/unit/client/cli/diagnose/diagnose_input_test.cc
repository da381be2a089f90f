#include "client/cli/diagnose/diagnose_input.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "client/cli/npy.h"
#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

template <typename T>
std::string Npy(const char* descr, const std::vector<int64_t>& shape, const std::vector<T>& data) {
  return NpyHeader(descr, shape) +
         std::string(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(T));
}

// An array of this shape with the elements 0, 1, 2 ...
std::string Counting(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t length : shape) count *= length;
  std::vector<float> data;
  for (int64_t i = 0; i < count; ++i) data.push_back(static_cast<float>(i));
  return Npy("<f4", shape, data);
}

std::string MessageOf(const std::string& before, const std::string& after, const SamplePlan& plan) {
  const Result<RotatedSample> sample = SampleOf(before, after, plan);
  return sample.ok() ? "ok" : sample.status().message();
}

TEST(SampleTest, AxesBeforeAndAfterTheTokensAreRows) {
  const std::string npy = Counting({2, 3, 2, 2});  // B S H D
  ASSERT_OK(sample, SampleOf(npy, npy, {.layout = "BSHD", .start = 5}));
  EXPECT_EQ(sample->rows, 4);
  EXPECT_THAT(sample->positions, ElementsAre(5, 6, 7));
  EXPECT_EQ(sample->seq_len, 8);
  // Token 0: batch 0 heads 0 and 1, then batch 1.
  const std::vector<double> first(sample->before.begin(), sample->before.begin() + 8);
  EXPECT_THAT(first, ElementsAre(0, 1, 2, 3, 12, 13, 14, 15));
  const std::vector<double> second(sample->before.begin() + 8, sample->before.begin() + 12);
  EXPECT_THAT(second, ElementsAre(4, 5, 6, 7));
}

TEST(SampleTest, HeadsBeforeTheTokensAreRowsToo) {
  const std::string npy = Counting({2, 3, 2});  // H S D
  ASSERT_OK(sample, SampleOf(npy, npy, {.layout = "HSD", .positions = {9, 4, 7}}));
  EXPECT_EQ(sample->seq_len, 10);
  const std::vector<double> first(sample->before.begin(), sample->before.begin() + 4);
  EXPECT_THAT(first, ElementsAre(0, 1, 6, 7));
}

TEST(SampleTest, SampleHasEveryElementUpToAMebibyte) {
  const std::string npy = Counting({100, 20, 2});
  ASSERT_OK(sample, SampleOf(npy, npy, {.layout = "THD", .start = 0}));
  EXPECT_EQ(sample->before.size(), 100u * 20 * 2);
  EXPECT_EQ(sample->heads, 20);
  EXPECT_EQ(sample->HeadOf(7), 7);
}

TEST(SampleTest, LargeTensorsAreThinnedOutAndKeepTheLastToken) {
  const std::string npy = Counting({3000, 16, 16});
  ASSERT_OK(sample, SampleOf(npy, npy, {.layout = "THD", .start = 0}));
  EXPECT_EQ(sample->tokens_total, 3000);
  EXPECT_EQ(static_cast<int64_t>(sample->before.size()), kSampleElementsMax);
  EXPECT_EQ(sample->rows, 16);
  EXPECT_EQ(sample->positions[1], 1);
  EXPECT_EQ(sample->token_indices.back(), 2999);
  EXPECT_EQ(sample->all_positions.size(), 3000u);
}

TEST(SampleTest, ThinSampleIsAPartOfTheWhole) {
  const std::string npy = Counting({100, 20, 2});
  const RotatedSample thin = Thinned(*SampleOf(npy, npy, {.layout = "THD", .start = 0}));
  EXPECT_EQ(static_cast<int64_t>(thin.positions.size()), kThinTokensMax);
  EXPECT_EQ(thin.positions[1], 1);
  EXPECT_EQ(thin.positions.back(), 99);
  EXPECT_EQ(static_cast<int64_t>(thin.before.size()), kThinTokensMax * kThinRowsMax * 2);
  EXPECT_EQ(thin.before.back(), 99 * 40 + thin.row_indices.back() * 2 + 1);
}

TEST(SampleTest, HeadsAndSequencesOfRowsFollowTheLayout) {
  const std::string npy = Counting({2, 3, 4, 2});
  ASSERT_OK(outer, SampleOf(npy, npy, {.layout = "BHSD", .start = 0}));
  EXPECT_TRUE(outer->heads_before_tokens);
  EXPECT_EQ(outer->HeadOf(4), 1);  // batch 1, head 1
  EXPECT_EQ(outer->SequenceOf(4), 1);
  ASSERT_OK(inner, SampleOf(npy, npy, {.layout = "HBSD", .start = 0}));
  EXPECT_EQ(inner->HeadOf(4), 1);  // head 1, batch 1
  EXPECT_EQ(inner->SequenceOf(4), 1);
}

TEST(SampleTest, Float32ThatHoldsSixteenBitValuesIsOfThatType) {
  const auto type_of = [](const std::vector<float>& values) {
    const std::string npy = Npy("<f4", {1, 2}, values);
    return SampleOf(npy, npy, {.layout = "SD", .start = 0})->dtype;
  };
  EXPECT_EQ(type_of({1.5f, -0.0078125f}), DType::kBFloat16);
  EXPECT_EQ(type_of({1.5f, 1.0009765625f}), DType::kFloat16);
  EXPECT_EQ(type_of({1.5f, 1.00000012f}), DType::kFloat32);
}

TEST(SampleTest, SixteenBitAndDoubleElementsAreRead) {
  const std::string half = Npy<uint16_t>("<f2", {1, 2}, {0x3c00, 0xc000});
  const std::string bfloat = Npy<uint16_t>("<u2", {1, 2}, {0x3f80, 0xc000});
  const std::string wide = Npy<double>("<f8", {1, 2}, {1, -2});
  for (const std::string& npy : {half, bfloat, wide}) {
    ASSERT_OK(sample, SampleOf(npy, npy, {.layout = "SD", .start = 0}));
    EXPECT_THAT(sample->after, ElementsAre(1, -2));
  }
  EXPECT_EQ(SampleOf(wide, bfloat, {.layout = "SD", .start = 0})->dtype, DType::kBFloat16);
}

TEST(SampleTest, WhatDoesNotFitTogetherIsRefused) {
  const std::string npy = Counting({3, 2, 4});
  const SamplePlan good = {.layout = "SHD", .start = 0};
  EXPECT_EQ(MessageOf(npy, npy, good), "ok");
  EXPECT_THAT(MessageOf("x", npy, good), HasSubstr("--before: npy"));
  EXPECT_EQ(MessageOf(npy, Counting({3, 2, 2}), good),
            "--after: got shape 3,2,2, want that of --before, 3,2,4");
  for (const char* layout : {"", "SD", "SHH", "DSH", "BHD", "STD", "SXD"}) {
    EXPECT_THAT(MessageOf(npy, npy, {.layout = layout, .start = 0}), HasSubstr("--layout: got "))
        << layout;
  }
  EXPECT_EQ(MessageOf(npy, npy, {.layout = "SHD"}),
            "--start, --positions: got neither, want one of them");
  EXPECT_EQ(MessageOf(npy, npy, {.layout = "SHD", .start = 0, .positions = {1, 2, 3}}),
            "--start, --positions: got both, want one of them");
  EXPECT_EQ(MessageOf(npy, npy, {.layout = "SHD", .positions = {1, 2}}),
            "--positions: got 2 of them, want 3");
  EXPECT_THAT(MessageOf(npy, npy, {.layout = "SHD", .positions = {1, -2, 3}}),
              HasSubstr("--positions: got -2"));
  EXPECT_THAT(MessageOf(npy, npy, {.layout = "SHD", .start = int64_t{1} << 30}),
              HasSubstr("--start: got 1073741824"));
  EXPECT_THAT(MessageOf(Npy<int32_t>("<i4", {1, 2}, {1, 2}), npy, good),
              HasSubstr("--before: got <i4"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string bad = Npy<float>("<f4", {1, 2}, {1, nan});
  EXPECT_EQ(MessageOf(bad, bad, {.layout = "SD", .start = 0}),
            "--before: got inf or nan, want numbers");
  EXPECT_EQ(MessageOf(Counting({0, 2}), Counting({0, 2}), {.layout = "SD", .start = 0}),
            "--before: got no elements, want some");
}

}  // namespace
}  // namespace rope::client
