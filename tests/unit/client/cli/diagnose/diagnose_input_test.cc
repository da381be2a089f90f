#include "client/cli/diagnose/diagnose_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "client/cli/npy.h"

namespace rope::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  const auto sample = SampleOf(npy, npy, {.layout = "BSHD", .start = 5});
  ASSERT_TRUE(sample.ok()) << sample.status().ToString();
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
  const auto sample = SampleOf(npy, npy, {.layout = "HSD", .positions = {9, 4, 7}});
  ASSERT_TRUE(sample.ok()) << sample.status().ToString();
  EXPECT_EQ(sample->seq_len, 10);
  const std::vector<double> first(sample->before.begin(), sample->before.begin() + 4);
  EXPECT_THAT(first, ElementsAre(0, 1, 6, 7));
}

TEST(SampleTest, LargeTensorsAreThinnedOutAndKeepNeighboursAndTheLastToken) {
  const std::string npy = Counting({100, 20, 2});
  const auto sample = SampleOf(npy, npy, {.layout = "THD", .start = 0});
  ASSERT_TRUE(sample.ok());
  EXPECT_EQ(sample->tokens_total, 100);
  EXPECT_EQ(sample->rows_total, 20);
  EXPECT_EQ(static_cast<int64_t>(sample->positions.size()), kSampleTokensMax);
  EXPECT_EQ(sample->positions[1], 1);
  EXPECT_EQ(sample->positions.back(), 99);
  EXPECT_EQ(static_cast<int64_t>(sample->before.size()), kSampleTokensMax * kSampleRowsMax * 2);
}

TEST(SampleTest, SixteenBitAndDoubleElementsAreRead) {
  const std::string half = Npy<uint16_t>("<f2", {1, 2}, {0x3c00, 0xc000});
  const std::string bfloat = Npy<uint16_t>("<u2", {1, 2}, {0x3f80, 0xc000});
  const std::string wide = Npy<double>("<f8", {1, 2}, {1, -2});
  for (const std::string& npy : {half, bfloat, wide}) {
    const auto sample = SampleOf(npy, npy, {.layout = "SD", .start = 0});
    ASSERT_TRUE(sample.ok());
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
