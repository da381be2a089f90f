#include "client/cli/lint/lint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/frequencies/frequencies.h"
#include "tests/support/matchers.h"

namespace rope::client {
namespace {

constexpr int64_t kEnd = int64_t{1} << 30;

// Walks every position.
std::optional<int64_t> Walk(const Turns& a, const Turns& b, double error, int64_t end) {
  for (int64_t p = 0; p < end; ++p) {
    for (size_t i = 0; i < a.inv_freq.size(); ++i) {
      const kernels::CosSin first = kernels::ExactCosSin(p, a.inv_freq[i], a.factor);
      const kernels::CosSin second = kernels::ExactCosSin(p, b.inv_freq[i], b.factor);
      if (std::abs(first.cos - second.cos) > error) return p;
      if (std::abs(first.sin - second.sin) > error) return p;
    }
  }
  return std::nullopt;
}

TEST(FirstDifferenceTest, FactorsThatAreFurtherApartDifferAtPositionZero) {
  const Turns a = {{1}, 1};
  const Turns b = {{1}, 1.2};
  EXPECT_EQ(FindFirstDifference(a, b, 0.1, kEnd).position, 0);
  EXPECT_FALSE(FindFirstDifference(a, b, 0.21, kEnd).position.has_value());
}

TEST(FirstDifferenceTest, IsThePositionThatAWalkFinds) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int round = 0; round < 100; ++round) {
    Turns a;
    Turns b;
    for (int i = 0; i < 3; ++i) {
      const long double inv_freq = std::pow(10.0, -5 * uniform(random));
      a.inv_freq.push_back(inv_freq);
      b.inv_freq.push_back(inv_freq * (1 + 1e-3 * uniform(random)));
    }
    a.factor = 1 + uniform(random);
    b.factor = round % 2 == 0 ? a.factor : a.factor * (1 + 1e-3 * uniform(random));
    const double error = std::pow(10.0, -1 - 3 * uniform(random));
    const FirstDifference first = FindFirstDifference(a, b, error, 5000);
    EXPECT_EQ(first.position, Walk(a, b, error, 5000)) << round;
    EXPECT_TRUE(first.exact);
  }
}

TEST(FirstDifferenceTest, FrequenciesAboveAQuarterTurnAreWalkedRight) {
  const Turns a = {{3, 1.5L}, 1};
  const Turns b = {{0.5L, 1.5001L}, 1};
  for (const double error : {0.01, 0.3, 1.2, 1.9}) {
    EXPECT_EQ(FindFirstDifference(a, b, error, 100000).position, Walk(a, b, error, 100000))
        << error;
  }
}

TEST(FirstDifferenceTest, DistantPositionIsFoundAtOnce) {
  for (const long double inv_freq : {1.0L, 0.01L, 1e-4L, 1e-7L}) {
    const Turns a = {{inv_freq}, 1};
    const Turns b = {{inv_freq + 2e-12L}, 1};
    const FirstDifference first = FindFirstDifference(a, b, 1e-3, kEnd);
    ASSERT_TRUE(first.position.has_value());
    EXPECT_TRUE(first.exact);
    EXPECT_GE(*first.position, 500'000'000 - 1);
    EXPECT_LE(*first.position, 707'107'000);
    const kernels::CosSin one = kernels::ExactCosSin(*first.position, a.inv_freq[0], 1);
    const kernels::CosSin two = kernels::ExactCosSin(*first.position, b.inv_freq[0], 1);
    EXPECT_GT(std::max(std::abs(one.cos - two.cos), std::abs(one.sin - two.sin)), 1e-3);
  }
}

TEST(FirstDifferenceTest, PositionsFromTheEndOnAreNotSearched) {
  const Turns a = {{1}, 1};
  const Turns b = {{1.001L}, 1};
  const auto position = FindFirstDifference(a, b, 0.1, kEnd).position;
  ASSERT_TRUE(position.has_value());
  EXPECT_FALSE(FindFirstDifference(a, b, 0.1, *position).position.has_value());
  EXPECT_EQ(FindFirstDifference(a, b, 0.1, *position + 1).position, position);
  EXPECT_FALSE(FindFirstDifference(a, b, 0.1, 0).position.has_value());
  EXPECT_FALSE(FindFirstDifference({}, b, 0.1, kEnd).position.has_value());
}

TEST(FirstDifferenceTest, SearchThatUsesUpItsStepsGivesAnUpperBound) {
  // Nearly a quarter turn for each position: seen at whole positions, the phase drifts slowly
  // between the axes, while cos and sin change too fast for long steps.
  const long double turn = std::numbers::pi_v<long double> / 2 + 1.2e-9L;
  const Turns a = {{turn}, 1};
  const Turns b = {{turn + 2e-12L}, 1};
  const FirstDifference first = FindFirstDifference(a, b, 1e-3, kEnd);
  EXPECT_FALSE(first.exact);
  ASSERT_TRUE(first.position.has_value());
  EXPECT_GT(*first.position, 600'000'000);
  EXPECT_LE(*first.position, 707'107'000);
  EXPECT_FALSE(FindFirstDifference(a, b, 1e-3, 600'000'000).position.has_value());
}

TEST(KeyLinesTest, DeepAndLargeTextsAreReadWithinTheLimits) {
  const std::string brackets(1 << 20, '[');
  EXPECT_TRUE(KeyLines::Of(brackets).error_line().has_value());
  std::string nested;
  for (int i = 0; i < 100000; ++i) nested += "{\"a\":";
  EXPECT_EQ(KeyLines::Of(nested).Find("a", ""), 1);
  std::string wide = "{\"a\": 1";
  for (int i = 0; i < 10000; ++i) wide += ",\n\"key" + std::to_string(i) + "\": 1";
  const KeyLines lines = KeyLines::Of(wide + "}");
  EXPECT_EQ(lines.Find("key10", ""), 12);
  EXPECT_EQ(lines.Find("key9999", ""), std::nullopt);
  const std::string long_key(1000, 'k');
  EXPECT_EQ(KeyLines::Of("{\"" + long_key + "\": 1}").Find(long_key, ""), std::nullopt);
}

std::string ReadText(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Published configs that are read as their owners have them: nobody wants a warning of one. The
// other files have code of their own that is not followed here.
TEST(LintFilesTest, PublishedConfigsHaveNoWarning) {
  const std::set<std::string> remote = {"baichuan2-7b", "internlm2-chat-7b", "minimax-text-01",
                                        "qwen-7b"};
  const auto folder = std::filesystem::path(ROPE_SOURCE_DIR) / "tests" / "conformance" / "configs";
  std::set<std::string> warned;
  int linted = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    ++linted;
    for (const Finding& finding : LintText("config.json", ReadText(entry.path()), {}).findings) {
      if (finding.rule->weight < Weight::kWarning) continue;
      warned.insert(entry.path().stem());
      EXPECT_EQ(finding.rule->id, "remote-code") << entry.path() << finding.message;
    }
  }
  EXPECT_EQ(warned, remote);
  EXPECT_GE(linted, 61);
}

}  // namespace
}  // namespace rope::client
