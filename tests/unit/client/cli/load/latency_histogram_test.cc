#include "client/cli/load/latency_histogram.h"

#include <gtest/gtest.h>

#include <limits>

namespace rope::client {
namespace {

using std::chrono::nanoseconds;

TEST(LatencyHistogramTest, NothingAddedIsZero) {
  const LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0);
  EXPECT_EQ(histogram.Percentile(50), nanoseconds(0));
  EXPECT_EQ(histogram.Percentile(100), nanoseconds(0));
}

TEST(LatencyHistogramTest, SmallLatenciesAreExact) {
  LatencyHistogram histogram;
  for (int i = 1; i <= 100; ++i) histogram.Add(nanoseconds(i));
  EXPECT_EQ(histogram.Percentile(1), nanoseconds(1));
  EXPECT_EQ(histogram.Percentile(50), nanoseconds(50));
  EXPECT_EQ(histogram.Percentile(99.5), nanoseconds(100));
  EXPECT_EQ(histogram.Percentile(100), nanoseconds(100));
}

TEST(LatencyHistogramTest, LargeOnesAreAtMostASixtyFourthTooLarge) {
  for (int64_t value = 1; value < int64_t{1} << 60; value += value / 3 + 1) {
    LatencyHistogram histogram;
    histogram.Add(nanoseconds(value));
    histogram.Add(nanoseconds(std::numeric_limits<int64_t>::max()));
    const auto percentile = histogram.Percentile(50).count();
    EXPECT_GE(percentile, value);
    EXPECT_LE(percentile - value, value / 64) << value;
  }
}

TEST(LatencyHistogramTest, LargestIsExact) {
  LatencyHistogram histogram;
  histogram.Add(nanoseconds(5));
  histogram.Add(nanoseconds(1234567));
  EXPECT_EQ(histogram.Percentile(100), nanoseconds(1234567));
}

TEST(LatencyHistogramTest, ExtremesHaveBucketsToo) {
  LatencyHistogram histogram;
  histogram.Add(nanoseconds(-5));
  EXPECT_EQ(histogram.Percentile(100), nanoseconds(0));
  histogram.Add(nanoseconds::max());
  EXPECT_EQ(histogram.Percentile(100), nanoseconds::max());
}

TEST(LatencyHistogramTest, MergeAddsUp) {
  LatencyHistogram low;
  LatencyHistogram high;
  for (int i = 0; i < 90; ++i) low.Add(nanoseconds(10));
  for (int i = 0; i < 10; ++i) high.Add(nanoseconds(100));
  low.Merge(high);
  EXPECT_EQ(low.count(), 100);
  EXPECT_EQ(low.Percentile(90), nanoseconds(10));
  EXPECT_EQ(low.Percentile(91), nanoseconds(100));
}

}  // namespace
}  // namespace rope::client
