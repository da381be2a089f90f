#include "server/start_log.h"

#include <gtest/gtest.h>

#include "tests/support/matchers.h"

namespace rope::server {
namespace {

std::vector<std::string> TextsOf(const ModelRegistry::FileReport& file) {
  std::vector<std::string> texts;
  for (const LogLine& line : LinesOf(file)) texts.push_back(line.In(LogFormat::kLogfmt));
  return texts;
}

TEST(StartLogTest, FileHasALineForEachWarningUpToABound) {
  EXPECT_THAT(TextsOf({.name = "mine"}), IsEmpty());
  EXPECT_THAT(TextsOf({.name = "mine", .replaces_preset = true, .warnings = {"a \"b\"\n"}}),
              ElementsAre("model=mine replaces the preset of this name",
                          R"(model=mine warning="a \"b\"\n")"));
  const std::vector<std::string> many(kWarningsShown + 3, "w");
  const std::vector<std::string> lines = TextsOf({.name = "mine", .warnings = many});
  EXPECT_THAT(lines, SizeIs(kWarningsShown + 1));
  EXPECT_EQ(lines.back(), "model=mine warnings_left_out=3");
}

}  // namespace
}  // namespace rope::server
