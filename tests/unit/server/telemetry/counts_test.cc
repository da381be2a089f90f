#include "server/telemetry/counts.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

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

}  // namespace
}  // namespace rope::server
