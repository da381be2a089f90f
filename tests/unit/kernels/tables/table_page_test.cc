#include "kernels/tables/table_page.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/compat/rope_remarks.h"
#include "kernels/frequencies/eager_rows.h"
#include "kernels/tables/table_cache.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

std::shared_ptr<const ResolvedRope> MustResolve(const RopeConfig& config) {
  auto rope = Resolve(config);
  EXPECT_THAT(rope, IsOk());
  return rope.ok() ? *rope : nullptr;
}

RopeConfig WithXPos(int64_t centre) {
  RopeConfig config = {.head_dim = 64};
  config.xpos = XPos{.scale_base = 512, .centre = centre};
  return config;
}

// The scale of xPos, computed directly from its formula.
long double Scale(int64_t position, int64_t centre, size_t column) {
  const long double zeta = (2 * static_cast<long double>(column) + 0.4L * 64) / (1.4L * 64);
  return std::pow(zeta, static_cast<long double>(position - centre) / 512);
}

void ExpectRow(const TablePage& page, int64_t row, const Frequencies& frequencies, int64_t position,
               Side side, int64_t centre, double multiplier) {
  for (size_t j = 0; j < frequencies.inv_freq.size(); ++j) {
    const long double forward = Scale(position, centre, j);
    const auto scale = static_cast<double>(multiplier * (side == Side::kQ ? forward : 1 / forward));
    const CosSin want = ExactCosSin(position, frequencies.inv_freq[j], 1);
    // Half a unit in the last place, plus the error of 64 steps in double.
    const double tolerance = scale * (std::abs(want.cos) * 0x1p-24 + 1e-12);
    EXPECT_NEAR(page.Cos(row)[j], scale * want.cos, tolerance) << position << " " << j;
    EXPECT_NEAR(page.Sin(row)[j], scale * want.sin, scale * (std::abs(want.sin) * 0x1p-24 + 1e-12))
        << position << " " << j;
  }
}

TEST(XPosPageTest, RowsOfQAndKScaleInOppositeDirections) {
  constexpr int64_t kCentre = 1000;
  const auto rope = MustResolve(WithXPos(kCentre));
  ASSERT_TRUE(rope->DependsOnSide());
  for (const Side side : {Side::kQ, Side::kK}) {
    const auto frequencies = rope->ForSeqLen(1, Multiplier::kAttentionFactor, {.side = side});
    for (const int64_t first : {0, 960, 20032, 34944}) {
      ASSERT_OK(page, BuildPage(*frequencies, first));
      for (const int64_t row : {0, 1, 7, 8, 40, 63}) {
        ExpectRow(**page, row, *frequencies, first + row, side, kCentre, 1);
      }
    }
  }
}

TEST(XPosPageTest, ProductOfQAndKDependsOnTheDistanceAlone) {
  const auto rope = MustResolve(WithXPos(100));
  const auto q = rope->ForSeqLen(1, Multiplier::kOne, {.side = Side::kQ});
  const auto k = rope->ForSeqLen(1, Multiplier::kOne, {.side = Side::kK});
  for (size_t j = 0; j < q->inv_freq.size(); ++j) {
    const auto product = [&](int64_t at) {
      const CosSin a = CosSinAt(*q, j, at + 30);
      const CosSin b = CosSinAt(*k, j, at);
      return a.cos * b.cos + a.sin * b.sin;
    };
    EXPECT_NEAR(product(0), product(5000), 1e-13) << j;
  }
}

TEST(XPosPageTest, SidesAndCentresHaveTablesOfTheirOwn) {
  const auto rope = MustResolve(WithXPos(5));
  const auto q = rope->ForSeqLen(1, Multiplier::kOne, {.side = Side::kQ});
  const auto k = rope->ForSeqLen(1, Multiplier::kOne, {.side = Side::kK});
  EXPECT_FALSE(q->key == k->key);
  const auto other = MustResolve(WithXPos(6))->ForSeqLen(1, Multiplier::kOne);
  EXPECT_FALSE(q->key == other->key);
  EXPECT_EQ(q->key, MustResolve(WithXPos(5))->ForSeqLen(9, Multiplier::kOne)->key);
  const auto plain = MustResolve({.head_dim = 64});
  EXPECT_FALSE(q->key == plain->ForSeqLen(1, Multiplier::kOne)->key);
  EXPECT_EQ(plain->ForSeqLen(1, Multiplier::kOne, {.side = Side::kK}),
            plain->ForSeqLen(1, Multiplier::kOne, {.side = Side::kQ}));
}

TEST(XPosPageTest, RangeIsWhereFloat32HoldsTheScale) {
  const auto rope = MustResolve(WithXPos(40000));
  const auto range = rope->position_range();
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->last - 40000, 40000 - range->first);
  EXPECT_NEAR(static_cast<double>(range->last - 40000), 87 * 512 / std::log(3.5), 1);
  for (const Side side : {Side::kQ, Side::kK}) {
    const auto frequencies = rope->ForSeqLen(1, Multiplier::kOne, {.side = side});
    for (const int64_t position : {range->first, range->last}) {
      const CosSin got = CosSinAt(*frequencies, 0, position);
      const auto length = static_cast<float>(std::hypot(got.cos, got.sin));
      EXPECT_TRUE(std::isnormal(length)) << position;
    }
  }
  EXPECT_FALSE(MustResolve({.head_dim = 64})->position_range().has_value());
}

TEST(XPosRulesTest, ScaleBaseAndCentreAreChecked) {
  const auto check = [](XPos xpos, const char* message) {
    RopeConfig config = {.head_dim = 8};
    config.xpos = xpos;
    EXPECT_THAT(Resolve(config), IsInvalid(message));
  };
  check({.scale_base = 0.5}, "xpos.scale_base: got 0.5, want a finite number >= 1");
  check({.scale_base = NAN}, "xpos.scale_base: got nan");
  check({.centre = -1}, "xpos.centre: got -1, want a position from 0 to 2^30");
  check({.centre = (int64_t{1} << 30) + 1}, "xpos.centre: got 1073741825");
  RopeConfig config = {.head_dim = 8};
  config.xpos = XPos{.scale_base = 1, .centre = int64_t{1} << 30};
  EXPECT_THAT(Resolve(config), IsOk());
  EXPECT_THAT(Remarks(config), ::testing::Contains(::testing::Field(
                                   &Remark::text, HasSubstr("it stays at 1073741824"))));
  config.mrope = Mrope{.section = {2, 1, 1}};
  EXPECT_THAT(Resolve(config), IsInvalid("xpos: got xpos and mrope_section"));
}

TEST(EagerPageTest, RowsAreTheEagerCodesOneByOne) {
  RopeConfig config = {.rope_type = RopeType::kYarn, .head_dim = 64};
  config.factor = 4;
  config.original_max_position_embeddings = 1024;
  config.precision = Precision::kHf;
  const auto rope = MustResolve(config);
  const auto multiplier = static_cast<float>(rope->attention_factor());
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const auto frequencies = rope->ForSeqLen(1, Multiplier::kAttentionFactor, {.dtype = dtype});
    ASSERT_OK(page, BuildPage(*frequencies, 1000000 / kPageRows * kPageRows));
    for (int64_t row = 0; row < kPageRows; ++row) {
      const int64_t position = 1000000 / kPageRows * kPageRows + row;
      for (size_t j = 0; j < frequencies->inv_freq.size(); ++j) {
        const CosSin want =
            EagerCosSin(position, static_cast<float>(frequencies->inv_freq[j]), multiplier, dtype);
        ASSERT_EQ((*page)->Cos(row)[j], want.cos);
        ASSERT_EQ((*page)->Sin(row)[j], want.sin);
      }
    }
  }
}

TEST(EagerPageTest, RowsBuiltForOneRequestAreTheSame) {
  RopeConfig config = {.rope_type = RopeType::kDynamic, .head_dim = 64};
  config.factor = 4;
  config.max_position_embeddings = 1024;
  config.precision = Precision::kHf;
  const auto frequencies = MustResolve(config)->ForSeqLen(5000, Multiplier::kOne);
  ASSERT_FALSE(frequencies->cacheable);
  TableCache cache(1 << 20);
  TokenRows rows;
  const int64_t position = 4999;
  ASSERT_THAT(cache.AppendRows(*frequencies, {&position, 1}, rows), IsOk());
  const float* const cos = rows.rows[0].page->Cos(rows.rows[0].index);
  for (size_t j = 0; j < frequencies->inv_freq.size(); ++j) {
    EXPECT_EQ(cos[j], CosSinAt(*frequencies, j, position).cos);
  }
}

}  // namespace
}  // namespace rope::kernels
