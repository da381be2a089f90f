#include "server/telemetry/counts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/matchers.h"

namespace rope::server {
namespace {

using ::testing::UnorderedElementsAre;

// {"model operation transport": count}.
std::map<std::string, double> Read(const RotationCounts& counts) {
  std::map<std::string, double> read;
  for (const prometheus::ClientMetric& metric : counts.Read()) {
    EXPECT_EQ(metric.label[0].name, "model");
    EXPECT_EQ(metric.label[1].name, "operation");
    EXPECT_EQ(metric.label[2].name, "transport");
    const auto [at, is_new] = read.emplace(
        absl::StrCat(metric.label[0].value, " ", metric.label[1].value, " ", metric.label[2].value),
        metric.counter.value);
    EXPECT_TRUE(is_new) << at->first;
  }
  return read;
}

TEST(RotationCountsTest, EachCombinationOfLabelsHasACounterOnceItHasCounted) {
  const std::string known[] = {"llama-3.1-8b", "qwen", "mine"};
  RotationCounts counts(known);
  EXPECT_THAT(Read(counts), IsEmpty());
  counts.Count({Transport::kInline, v1::OPERATION_ROTATE, "llama-3.1-8b"});
  counts.Count({Transport::kInline, v1::OPERATION_UNSPECIFIED, "meta-llama/Llama-3.1-8B"});
  counts.Count({Transport::kStream, v1::OPERATION_INVERSE, "llama-3.1-8B"});
  counts.Count({Transport::kMemfd, v1::OPERATION_BACKWARD, "qwen"});
  counts.Count({Transport::kMemfd, v1::OPERATION_REPOSITION, kConfigModel});
  counts.Count({Transport::kRing, v1::OPERATION_ADD_SINUSOIDAL, kRowsModel});
  counts.Count({Transport::kInProcess, v1::OPERATION_ROTATE, "mine"});
  counts.Count({Transport::kInProcess, v1::OPERATION_ROTATE, "no model"});
  EXPECT_THAT(Read(counts),
              UnorderedElementsAre(
                  Pair("llama-3.1-8b rotate inline", 2), Pair("llama-3.1-8b inverse stream", 1),
                  Pair("qwen backward memfd", 1), Pair("(config) reposition memfd", 1),
                  Pair("(rows) add_sinusoidal ring", 1), Pair("mine rotate in_process", 1)));
}

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

TEST(HistogramTest, EachValueFindsTheFirstBoundThatIsNotBelowIt) {
  const std::vector<std::vector<int64_t>> all = {
      {},
      {0},
      {kMost},
      {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, kMost},
      {std::begin(kDurationBounds), std::end(kDurationBounds)},
      {kGrpcDurationBounds.begin(), kGrpcDurationBounds.end()},
      {kGrpcSizeBounds.begin(), kGrpcSizeBounds.end()}};
  for (const std::vector<int64_t>& bounds : all) {
    const BucketBounds buckets(bounds);
    std::vector<int64_t> values = {0, kMost - 1, kMost};
    for (int bits = 0; bits < 63; ++bits) values.push_back(int64_t{1} << bits);
    values.insert(values.end(), bounds.begin(), bounds.end());
    for (const int64_t value : values) {
      for (const int64_t near :
           {std::max<int64_t>(value, 1) - 1, value, std::min(value, kMost - 1) + 1}) {
        EXPECT_EQ(buckets.Find(near),
                  static_cast<size_t>(std::ranges::lower_bound(bounds, near) - bounds.begin()))
            << near;
      }
    }
  }
}

TEST(HistogramTest, BucketsAddUpAndTheSumIsInUnits) {
  constexpr int64_t kBounds[] = {0, 10, 20, 30};
  const BucketBounds buckets(kBounds);
  Histogram histogram(buckets, 10);
  for (const int64_t value : {-5, 10, 11, 31, 20, 25}) histogram.Observe(value);
  const auto read = histogram.Read({{"a", "b"}});
  EXPECT_EQ(read.label.front().value, "b");
  ASSERT_EQ(read.histogram.bucket.size(), 5U);
  EXPECT_EQ(read.histogram.bucket[0].cumulative_count, 1U);
  EXPECT_EQ(read.histogram.bucket[1].upper_bound, 1);
  EXPECT_EQ(read.histogram.bucket[1].cumulative_count, 2U);
  EXPECT_EQ(read.histogram.bucket[3].upper_bound, 3);
  EXPECT_EQ(read.histogram.bucket[3].cumulative_count, 5U);
  EXPECT_EQ(read.histogram.bucket[4].cumulative_count, 6U);
  EXPECT_EQ(read.histogram.sample_count, 6U);
  EXPECT_DOUBLE_EQ(read.histogram.sample_sum, 9.7);
}

}  // namespace
}  // namespace rope::server
