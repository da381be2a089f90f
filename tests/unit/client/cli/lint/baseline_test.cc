#include "client/cli/lint/baseline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace rope::client {
namespace {

using ::testing::SizeIs;

std::vector<FileReport> Reports(const std::string& file, int64_t line, const std::string& message) {
  FileReport report;
  report.file = file;
  report.findings = {{.rule = &RuleOf(kSyntax), .line = line, .message = message},
                     {.rule = &RuleOf(kInvalidValue), .message = "factor: got \"\xff\""}};
  return {report};
}

TEST(BaselineTest, FindingIsKnownAgainInAnotherLineAndNotInAnotherFile) {
  const auto baseline = ParseBaseline(BaselineText(BaselineOf(Reports("a.json", 3, "a comma"))));
  ASSERT_TRUE(baseline.ok());
  std::vector<FileReport> moved = Reports("./a.json", 8, "a comma");
  EXPECT_EQ(RemoveKnown(*baseline, moved), 1);  // the other one has bytes that are no UTF-8
  EXPECT_THAT(moved[0].findings, SizeIs(1));
  std::vector<FileReport> other = Reports("b.json", 3, "a comma");
  EXPECT_EQ(RemoveKnown(*baseline, other), 0);
  std::vector<FileReport> changed = Reports("a.json", 3, "another comma");
  EXPECT_EQ(RemoveKnown(*baseline, changed), 0);
}

TEST(BaselineTest, OtherTextsAreRefused) {
  for (const std::string text : {"", "{}", "[1]", R"([{"file": "a"}])", "[", R"([{"file": 1,
      "rule": "a", "sub_config": "", "message": ""}])"}) {
    EXPECT_FALSE(ParseBaseline(text).ok()) << text;
  }
  EXPECT_TRUE(ParseBaseline("[]").ok());
}

}  // namespace
}  // namespace rope::client
