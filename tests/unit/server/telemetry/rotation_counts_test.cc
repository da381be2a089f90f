#include "server/telemetry/rotation_counts.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/telemetry/limits.h"
#include "tests/support/matchers.h"

namespace rope::server {
namespace {

using ::testing::UnorderedElementsAre;

constexpr int kPlaces = limits::kCountedModels;

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

void Count(RotationCounts& counts, const std::string& model) {
  counts.Count({.model = model});
}

TEST(RotationCountsTest, EachCombinationOfLabelsHasACounterOnceItHasCounted) {
  const std::string known[] = {"llama", "qwen"};
  RotationCounts counts(known);
  EXPECT_THAT(Read(counts), IsEmpty());
  counts.Count({Transport::kInline, v1::OPERATION_ROTATE, "llama"});
  counts.Count({Transport::kInline, v1::OPERATION_UNSPECIFIED, "llama"});
  counts.Count({Transport::kStream, v1::OPERATION_INVERSE, "llama"});
  counts.Count({Transport::kMemfd, v1::OPERATION_BACKWARD, "qwen"});
  counts.Count({Transport::kMemfd, v1::OPERATION_REPOSITION, kConfigModel});
  counts.Count({Transport::kRing, v1::OPERATION_ADD_SINUSOIDAL, kRowsModel});
  counts.Count({Transport::kInProcess, v1::OPERATION_ROTATE, "mine"});
  EXPECT_THAT(Read(counts),
              UnorderedElementsAre(
                  Pair("llama rotate inline", 2), Pair("llama inverse stream", 1),
                  Pair("qwen backward memfd", 1), Pair("(config) reposition memfd", 1),
                  Pair("(rows) add_sinusoidal ring", 1), Pair("mine rotate in_process", 1)));
}

TEST(RotationCountsTest, NamesAreBoundedAndTheFirstKeepTheirPlaces) {
  RotationCounts counts({});
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kPlaces + 100; ++i) Count(counts, absl::StrCat("model-", i));
  }
  const auto read = Read(counts);
  EXPECT_EQ(read.size(), kPlaces + 1U);
  EXPECT_EQ(read.at("(other) rotate inline"), 200);
  for (int i = 0; i < kPlaces; ++i) {
    EXPECT_EQ(read.at(absl::StrCat("model-", i, " rotate inline")), 2);
  }
}

TEST(RotationCountsTest, NamesOfClientsTakeNoPlaceOfThoseThatTheServerStartsWith) {
  const std::string known[] = {"llama"};
  RotationCounts counts(known);
  for (int i = 0; i < 2 * kPlaces; ++i) Count(counts, absl::StrCat("model-", i));
  Count(counts, "llama");
  Count(counts, std::string(kConfigModel));
  EXPECT_EQ(Read(counts).at("llama rotate inline"), 1);
  EXPECT_EQ(Read(counts).at("(config) rotate inline"), 1);
  EXPECT_EQ(Read(counts).at("(other) rotate inline"), kPlaces);
}

TEST(RotationCountsTest, ThreadsThatBringTheSameNamesFirstLoseNothing) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 500;
  RotationCounts counts({});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&counts] {
      for (int round = 0; round < kRounds; ++round) {
        for (int i = 0; i < 2 * kPlaces; ++i) Count(counts, absl::StrCat("model-", i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto read = Read(counts);
  EXPECT_EQ(read.size(), kPlaces + 1U);
  for (const auto& [labels, count] : read) {
    const int names = labels == "(other) rotate inline" ? kPlaces : 1;
    EXPECT_EQ(count, names * kThreads * kRounds) << labels;
  }
}

}  // namespace
}  // namespace rope::server
