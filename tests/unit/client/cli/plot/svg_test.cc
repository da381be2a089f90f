#include "client/cli/plot/svg.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/matchers.h"

namespace rope::client {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;

TEST(ScaleTest, LinearPixelsAreInProportion) {
  const Scale scale = {.min = 10, .max = 20, .first_pixel = 100, .last_pixel = 300};
  EXPECT_DOUBLE_EQ(scale.Pixel(10), 100);
  EXPECT_DOUBLE_EQ(scale.Pixel(12.5), 150);
  EXPECT_DOUBLE_EQ(scale.Pixel(20), 300);
}

TEST(ScaleTest, LogarithmicPixelsAreInProportionToTheExponent) {
  const Scale scale = {
      .min = 1e-4, .max = 1, .logarithmic = true, .first_pixel = 400, .last_pixel = 0};
  EXPECT_NEAR(scale.Pixel(1e-4), 400, 1e-9);
  EXPECT_NEAR(scale.Pixel(1e-1), 100, 1e-9);
  EXPECT_NEAR(scale.Pixel(1), 0, 1e-9);
}

TEST(ScaleTest, HoldsItsEndsAndNothingBeyond) {
  const Scale scale = {.min = 0, .max = 0.3};
  EXPECT_TRUE(scale.Holds(0));
  EXPECT_TRUE(scale.Holds(0.1 + 0.2));
  EXPECT_FALSE(scale.Holds(-0.001));
  EXPECT_FALSE(scale.Holds(0.301));
  EXPECT_FALSE(scale.Holds(std::numeric_limits<double>::quiet_NaN()));
}

TEST(TicksTest, LinearOnesAreRoundAndCoverTheScale) {
  EXPECT_THAT(Ticks({.min = -1, .max = 1}, 9),
              ElementsAre(DoubleNear(-1, 1e-12), DoubleNear(-0.5, 1e-12), DoubleEq(0),
                          DoubleNear(0.5, 1e-12), DoubleNear(1, 1e-12)));
  EXPECT_THAT(Ticks({.min = 0, .max = 127}, 9), ElementsAre(0, 20, 40, 60, 80, 100, 120));
  EXPECT_THAT(Ticks({.min = 3, .max = 8}, 3), ElementsAre(5));
}

TEST(TicksTest, LogarithmicOnesArePowersOfTen) {
  EXPECT_THAT(Ticks({.min = 1, .max = 65536, .logarithmic = true}, 9),
              ElementsAre(1, DoubleNear(10, 1e-9), DoubleNear(100, 1e-9), DoubleNear(1000, 1e-9),
                          DoubleNear(10000, 1e-9)));
}

TEST(TicksTest, ManyDecadesAreThinnedOut) {
  const auto ticks = Ticks({.min = 1e-20, .max = 1, .logarithmic = true}, 9);
  EXPECT_LE(ticks.size(), 9u);
  EXPECT_GE(ticks.size(), 5u);
}

TEST(TickLabelTest, IsShort) {
  EXPECT_EQ(TickLabel(0), "0");
  EXPECT_EQ(TickLabel(-0.5), "-0.5");
  EXPECT_EQ(TickLabel(131072), "131072");
  EXPECT_EQ(TickLabel(1e-6), "1e-6");
  EXPECT_EQ(TickLabel(2.5e9), "2.5e9");
}

TEST(SvgTest, TextAndAttributesAreEscaped) {
  Svg svg(10, 20);
  svg.Begin("a\"b", {{"note", "<&>"}});
  svg.Text(1, 2, "q < k & \"v\"", 9, Anchor::kEnd);
  svg.End();
  const std::string document = svg.Document();
  EXPECT_THAT(document, HasSubstr("<g id=\"a&quot;b\" data-note=\"&lt;&amp;&gt;\">"));
  EXPECT_THAT(document, HasSubstr("text-anchor=\"end\">q &lt; k &amp; &quot;v&quot;</text>"));
  EXPECT_THAT(document, HasSubstr("viewBox=\"0 0 10 20\""));
}

TEST(SvgTest, PolylineHasItsPointsInOrder) {
  Svg svg(10, 10);
  svg.Polyline("p", {{1, 2}, {3.456, 4}}, {"#000000", 2, "7 4"});
  EXPECT_THAT(svg.Document(),
              HasSubstr("<polyline id=\"p\" points=\"1.00,2.00 3.46,4.00\" fill=\"none\" "
                        "stroke=\"#000000\" stroke-width=\"2\" stroke-dasharray=\"7 4\"/>"));
}

}  // namespace
}  // namespace rope::client
