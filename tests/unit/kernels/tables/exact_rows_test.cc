#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/dtype/element.h"
#include "kernels/tables/derived_rows.h"
#include "tests/support/matchers.h"

namespace rope::kernels {
namespace {

std::shared_ptr<const ResolvedRope> Resolved(double theta, double attention_factor = 1) {
  RopeConfig config;
  config.rope_theta = theta;
  if (attention_factor != 1) {
    config.rope_type = RopeType::kYarn;
    config.factor = 4;
    config.original_max_position_embeddings = 4096;
    config.attention_factor = attention_factor;
  }
  return Resolve(config, 8).value();
}

const std::vector<CosSin> kRow = {{.cos = 1, .sin = 2}, {.cos = 3, .sin = 4}};

template <typename T>
std::vector<T> Written(const RowFormat& format, int array) {
  const auto bytes = static_cast<size_t>(RowBytes(format, 2));
  std::vector<T> arrays[2] = {std::vector<T>(bytes / sizeof(T)), std::vector<T>(bytes / sizeof(T))};
  WriteRow(format, kRow,
           {reinterpret_cast<char*>(arrays[0].data()), reinterpret_cast<char*>(arrays[1].data())});
  return arrays[array];
}

TEST(ExactRowsTest, LayoutsPlaceCosAndSinAsEnginesDo) {
  EXPECT_THAT(Written<double>({RowLayout::kCosSin}, 0), ElementsAre(1, 3));
  EXPECT_THAT(Written<double>({RowLayout::kCosSin}, 1), ElementsAre(2, 4));
  EXPECT_THAT(Written<double>({RowLayout::kCosSinCache}, 0), ElementsAre(1, 3, 2, 4));
  EXPECT_THAT(Written<double>({RowLayout::kDuplicated}, 0), ElementsAre(1, 3, 1, 3));
  EXPECT_THAT(Written<double>({RowLayout::kDuplicated}, 1), ElementsAre(2, 4, 2, 4));
  EXPECT_THAT(Written<double>({RowLayout::kComplex}, 0), ElementsAre(1, 2, 3, 4));
}

TEST(ExactRowsTest, ShapesAndBytesFollowTheLayout) {
  EXPECT_EQ(ArraysOf(RowLayout::kCosSin), 2);
  EXPECT_EQ(ArraysOf(RowLayout::kDuplicated), 2);
  EXPECT_EQ(ArraysOf(RowLayout::kCosSinCache), 1);
  EXPECT_EQ(ArraysOf(RowLayout::kComplex), 1);
  EXPECT_THAT(RowShape(RowLayout::kCosSin, 5), ElementsAre(5));
  EXPECT_THAT(RowShape(RowLayout::kCosSinCache, 5), ElementsAre(10));
  EXPECT_THAT(RowShape(RowLayout::kDuplicated, 5), ElementsAre(10));
  EXPECT_THAT(RowShape(RowLayout::kComplex, 5), ElementsAre(5, 2));
  EXPECT_EQ(RowBytes({RowLayout::kCosSin}, 5), 40);
  EXPECT_EQ(RowBytes({RowLayout::kComplex, DType::kFloat32}, 5), 40);
  EXPECT_EQ(RowBytes({RowLayout::kDuplicated, DType::kBFloat16}, 5), 20);
}

TEST(ExactRowsTest, EveryDTypeIsRoundedOnceToNearest) {
  // The halfway case of bf16 (1 + 2^-8) plus 2^-30: by way of fp32 it would be a tie, and go to 1.
  const std::vector<CosSin> row = {{.cos = 1 + 0x1p-8 + 0x1p-30, .sin = 0}};
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    uint8_t bytes[8] = {};
    WriteRow({RowLayout::kComplex, dtype}, row, {reinterpret_cast<char*>(bytes), nullptr});
    EXPECT_EQ(ReadElement(bytes, dtype), RoundedTo(row[0].cos, dtype)) << Name(dtype);
  }
  EXPECT_EQ(RoundedTo(row[0].cos, DType::kBFloat16), 1 + 0x1p-7);
}

TEST(ExactRowsTest, RowsOfAPositionHaveTheAttentionFactor) {
  const auto resolved = Resolved(10000, 1.5);
  const RowSource source = {.frequencies = resolved->ForSeqLen(1, Multiplier::kAttentionFactor),
                            .columns = 4};
  std::vector<CosSin> row;
  ReadRow(source, 1000003, 0, row);
  ASSERT_EQ(row.size(), 4U);
  const std::vector<InverseFrequency> inv_freq = resolved->Evaluate(1).inv_freq;
  for (size_t j = 0; j < 4; ++j) {
    const long double angle = 1000003 * inv_freq[j];
    EXPECT_NEAR(row[j].cos, static_cast<double>(1.5L * std::cos(angle)), 1e-13);
    EXPECT_NEAR(row[j].sin, static_cast<double>(1.5L * std::sin(angle)), 1e-13);
  }
}

TEST(ExactRowsTest, ColumnsThatDoNotTurnAreOneAndZero) {
  RopeConfig config;
  config.inv_freq = {0.5, 0, 0, 0};
  const auto resolved = Resolve(config, 8).value();
  const RowSource source = {.frequencies = resolved->ForSeqLen(1, Multiplier::kAttentionFactor),
                            .columns = 4};
  ASSERT_EQ(source.frequencies->inv_freq.size(), 1U);
  std::vector<CosSin> row;
  ReadRow(source, 7, 0, row);
  EXPECT_NEAR(row[0].cos, std::cos(3.5), 1e-15);
  for (size_t j = 1; j < 4; ++j) {
    EXPECT_EQ(row[j].cos, 1);
    EXPECT_EQ(row[j].sin, 0);
  }
}

TEST(ExactRowsTest, MoveBetweenTwoEmbeddingsTurnsByTheDifferenceOfTheirAngles) {
  const auto to = Resolved(10000);
  const auto from = Resolved(500000);
  const RowSource source = {.frequencies = to->ForDifferences(1),
                            .from = from->ForDifferences(1),
                            .multiplier = 0.75,
                            .columns = 4};
  std::vector<CosSin> row;
  ReadRow(source, 1000, 77, row);
  for (size_t j = 0; j < 4; ++j) {
    const long double angle =
        1000 * to->Evaluate(1).inv_freq[j] - 77 * from->Evaluate(1).inv_freq[j];
    EXPECT_NEAR(row[j].cos, static_cast<double>(0.75L * std::cos(angle)), 1e-14);
    EXPECT_NEAR(row[j].sin, static_cast<double>(0.75L * std::sin(angle)), 1e-14);
  }
}

}  // namespace
}  // namespace rope::kernels
