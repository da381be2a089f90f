#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/compat/rope_readings.h"
#include "kernels/dtype/element.h"
#include "kernels/frequencies/inverse_frequencies.h"
#include "kernels/tables/derived_rows.h"
#include "kernels/tables/table_cache.h"
#include "kernels/tables/table_page.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/tables/table_rows.h"

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

// The numbers of such rows: tests/conformance/request_property_test.cc, against the oracle.
TEST(AppendMropeRowsTest, TokensOfOnePositionShareTheCachedRows) {
  TableCache cache(kLargeBudget);
  const Frequencies frequencies = MakeFrequencies(10000, 16);
  const Mrope mrope = {.section = {6, 5, 5}, .layout = Mrope::Layout::kSections};
  const std::vector<int64_t> text = {10, 11};
  const absl::Span<const int64_t> axes[] = {text, text, text};
  TokenRows rows;
  int64_t budget = kLargeBudget;
  ASSERT_THAT(AppendMropeRows(cache, frequencies, mrope, axes, budget, rows), IsOk());
  const TokenRows plain = Rows(cache, frequencies, text);
  EXPECT_EQ(rows.rows[1].page, plain.rows[1].page);
  EXPECT_EQ(rows.rows[1].index, plain.rows[1].index);
}

// Serves tokens until all are served, with `budget` bytes to build each time. Returns how many each
// time.
std::vector<int64_t> Served(std::vector<int64_t> t, std::vector<int64_t> h, std::vector<int64_t> w,
                            int64_t budget, bool cacheable = true) {
  TableCache cache(kLargeBudget);
  Frequencies frequencies = MakeFrequencies(10000, 64);
  frequencies.cacheable = cacheable;
  const Mrope mrope = {.section = {24, 20, 20}, .layout = Mrope::Layout::kSections};
  std::vector<int64_t> served;
  for (size_t begin = 0; begin < t.size();) {
    const absl::Span<const int64_t> axes[] = {absl::MakeConstSpan(t).subspan(begin),
                                              absl::MakeConstSpan(h).subspan(begin),
                                              absl::MakeConstSpan(w).subspan(begin)};
    TokenRows rows;
    int64_t left = budget;
    const auto count = AppendMropeRows(cache, frequencies, mrope, axes, left, rows);
    EXPECT_THAT(count, IsOk());
    if (!count.ok()) break;
    EXPECT_EQ(static_cast<int64_t>(rows.rows.size()), *count);
    served.push_back(*count);
    begin += static_cast<size_t>(*count);
  }
  return served;
}

constexpr int64_t kPageBytes = kPageRows * 2 * 64 * 4;

std::vector<int64_t> Scattered(int64_t first) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < 60; ++i) positions.push_back(first + i * 10 * kPageRows);
  return positions;
}

TEST(MropeBudgetTest, EachAxisBuildsItsPart) {
  for (const bool cacheable : {true, false}) {
    // A row that is not cached costs a quarter of a page.
    const int64_t budget = cacheable ? 63 * kPageBytes : 63 * kPageBytes / 4;
    EXPECT_THAT(Served(Scattered(0), Scattered(1 << 20), Scattered(1 << 21), budget, cacheable),
                ElementsAre(21, 21, 18))
        << cacheable;
  }
}

TEST(MropeBudgetTest, TextLeavesThePartOfTheOtherAxes) {
  std::vector<int64_t> text(30 * size_t{kPageRows});
  std::iota(text.begin(), text.end(), 0);
  EXPECT_THAT(Served(text, text, text, 60 * kPageBytes),
              ElementsAre(20 * kPageRows, 10 * kPageRows));
}

TEST(MropeBudgetTest, RowsOfTheirOwnMayCostTheBudgetOnceMore) {
  std::vector<int64_t> t(100, 1030);
  std::vector<int64_t> h(100, 1031);
  EXPECT_THAT(Served(t, h, t, kPageBytes), ElementsAre(64, 36));
}

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
