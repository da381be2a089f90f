#include "client/cli/plot/plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "tests/support/matchers.h"

namespace rope::client {
namespace {

// theta 10000 with frequencies divided by 4.
DescribeReply LinearReply(int64_t pairs) {
  DescribeReply reply;
  reply.config = {.rope_type = RopeType::kLinear, .rope_theta = 10000, .factor = 4};
  reply.config.max_position_embeddings = 4096;
  reply.rotates = true;
  reply.attention_factor = 1;
  for (int64_t i = 0; i < pairs; ++i) {
    const double exponent = -static_cast<double>(i) / static_cast<double>(pairs);
    reply.inv_freq.push_back(std::pow(10000, exponent) / 4);
    reply.wavelengths.push_back(2 * std::numbers::pi / reply.inv_freq.back());
  }
  return reply;
}

// The points attribute of a polyline; empty if there is no such polyline.
std::string PointsOf(const std::string& svg, const std::string& id) {
  const std::string begin = "<polyline id=\"" + id + "\" points=\"";
  const size_t at = svg.find(begin);
  if (at == std::string::npos) return "";
  const size_t first = at + begin.size();
  return svg.substr(first, svg.find('"', first) - first);
}

size_t CountOf(const std::string& points) {
  return static_cast<size_t>(std::count(points.begin(), points.end(), ','));
}

TEST(PlotTest, EveryCurveHasAPointForEachFrequency) {
  const std::string svg = PlotSvg(LinearReply(32));
  for (const char* id : {"inv-freq-original", "inv-freq-scaled", "inv-freq-result",
                         "wavelength-original", "wavelength-result"}) {
    EXPECT_EQ(CountOf(PointsOf(svg, id)), 32u) << id;
  }
  EXPECT_GT(CountOf(PointsOf(svg, "decay-result")), 200u);
  EXPECT_EQ(CountOf(PointsOf(svg, "decay-result")), CountOf(PointsOf(svg, "decay-envelope")));
}

TEST(PlotTest, ResultOfLinearScalingLiesOnTheFullyScaledCurve) {
  const std::string svg = PlotSvg(LinearReply(16));
  EXPECT_EQ(PointsOf(svg, "inv-freq-result"), PointsOf(svg, "inv-freq-scaled"));
  EXPECT_NE(PointsOf(svg, "inv-freq-result"), PointsOf(svg, "inv-freq-original"));
}

TEST(PlotTest, NothingIsDrawnThatTheConfigDoesNotHave) {
  DescribeReply reply = LinearReply(8);
  reply.config.factor.reset();
  const std::string svg = PlotSvg(reply);
  EXPECT_THAT(svg, Not(HasSubstr("inv-freq-scaled")));
  EXPECT_THAT(svg, Not(HasSubstr("ramp-edges")));
}

TEST(PlotTest, FrequenciesOfZeroAreLeftOut) {
  DescribeReply reply = LinearReply(8);
  reply.inv_freq[7] = 0;
  reply.wavelengths[7] = std::numeric_limits<double>::infinity();
  const std::string svg = PlotSvg(reply);
  EXPECT_EQ(CountOf(PointsOf(svg, "inv-freq-result")), 7u);
  EXPECT_EQ(CountOf(PointsOf(svg, "wavelength-result")), 7u);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf,")));
}

TEST(PlotTest, RampEdgesAreMarkedAndNamed) {
  DescribeReply reply = LinearReply(8);
  reply.ramp = {.low_index = 2.5, .high_index = 5, .low_wavelength = 2048, .high_wavelength = 8192};
  const std::string svg = PlotSvg(reply);
  EXPECT_THAT(svg, HasSubstr("<g id=\"ramp-edges\" data-wavelengths=\"2048 8192\">"));
  EXPECT_THAT(svg, HasSubstr("<g id=\"ramp-indices\" data-indices=\"2.5 5\">"));
  EXPECT_THAT(svg, HasSubstr("kept up to 2048"));
}

TEST(PlotTest, OriginalOfExplicitFrequenciesIsThemselves) {
  DescribeReply reply = LinearReply(8);
  reply.config.factor.reset();
  reply.config.inv_freq = reply.inv_freq;
  const std::string svg = PlotSvg(reply);
  EXPECT_EQ(PointsOf(svg, "inv-freq-original"), PointsOf(svg, "inv-freq-result"));
}

TEST(PlotTest, OnePairIsDrawn) {
  const std::string svg = PlotSvg(LinearReply(1));
  EXPECT_EQ(CountOf(PointsOf(svg, "inv-freq-result")), 1u);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(LengthsTest, OriginalAndExtendedLengthAreBothGiven) {
  DescribeReply reply;
  reply.config.original_max_position_embeddings = 8192;
  reply.config.max_position_embeddings = 131072;
  EXPECT_THAT(LengthsOf(reply).values, ElementsAre(8192, 131072));
}

TEST(LengthsTest, ExtendedLengthIsTheFactorsWhereNothingElseSaysIt) {
  DescribeReply reply;
  reply.config.original_max_position_embeddings = 8192;
  reply.config.factor = 8;
  EXPECT_THAT(LengthsOf(reply).values, ElementsAre(8192, 65536));
}

TEST(LengthsTest, WithoutAnyTheRequestsLengthCountsAndThenADefault) {
  DescribeReply reply;
  reply.seq_len = 100;
  EXPECT_THAT(LengthsOf(reply).values, ElementsAre(100));
  EXPECT_TRUE(LengthsOf(reply).known);
  reply.seq_len = 1;
  EXPECT_THAT(LengthsOf(reply).values, ElementsAre(8192));
  EXPECT_FALSE(LengthsOf(reply).known);
}

TEST(DecayTest, IsOneAtDistanceZeroAndAMeanOfCosinesElsewhere) {
  const double frequencies[] = {1, 0.5};
  EXPECT_DOUBLE_EQ(DecayAt(frequencies, 0).product, 1);
  EXPECT_DOUBLE_EQ(DecayAt(frequencies, 0).envelope, 1);
  EXPECT_NEAR(DecayAt(frequencies, 3).product, (std::cos(3.0) + std::cos(1.5)) / 2, 1e-15);
  EXPECT_NEAR(DecayAt(frequencies, 3).envelope, std::cos(0.75), 1e-15);
}

}  // namespace
}  // namespace rope::client
