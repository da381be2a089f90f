#include "client/cli/arguments.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <vector>

#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

Usage TestUsage() {
  return {"ropectl test",
          "A command.",
          "FILE",
          {{"text", FlagKind::kText, "TEXT", "Some text."},
           {"integer", FlagKind::kInteger, "N", ""},
           {"number", FlagKind::kNumber, "X", ""},
           {"integers", FlagKind::kIntegers, "0,1", ""},
           {"duration", FlagKind::kDuration, "DURATION", "", /*environment=*/true},
           {"switch", FlagKind::kSwitch, "", ""}}};
}

Result<Arguments> Parse(const std::vector<absl::string_view>& arguments) {
  return Arguments::Parse(arguments, TestUsage());
}

TEST(ArgumentsTest, EveryKindInBothSpellings) {
  ASSERT_OK(arguments, Parse({"--text=a=b", "one", "--integer", "-3", "--number=2.5", "--switch",
                              "--integers=0,-1,2", "--duration=200ms", "-"}));
  EXPECT_EQ(arguments->Text("text"), "a=b");
  EXPECT_EQ(arguments->Integer("integer"), -3);
  EXPECT_EQ(arguments->Number("number"), 2.5);
  EXPECT_THAT(arguments->Integers("integers"), ElementsAre(0, -1, 2));
  EXPECT_EQ(arguments->Duration("duration"), std::chrono::milliseconds(200));
  EXPECT_TRUE(arguments->Has("switch"));
  EXPECT_THAT(arguments->positional(), ElementsAre("one", "-"));
}

TEST(ArgumentsTest, MisuseIsRefusedByName) {
  const std::pair<std::vector<absl::string_view>, std::string> cases[] = {
      {{"--unknown=1"}, "command line: got \"--unknown=1\""},
      {{"--integr=1"}, "did you mean --integer?"},
      {{"--integer=1.5"}, "--integer: got 1.5"},
      {{"--integer="}, "--integer: 1 required N"},
      {{"--integer"}, "--integer: 1 required N"},
      {{"--integer=99999999999999999999"}, "--integer: got 99999999999999999999"},
      {{"--number=nan"}, "--number: got nan"},
      {{"--integers=1,,2"}, "--integers: got 1,,2"},
      {{"--duration=5"}, "--duration: got 5, want a duration"},
      {{"--text=a", "--text=b"}, "--text: At Most 1 required but received 2"},
  };
  for (const auto& [arguments, message] : cases) {
    EXPECT_THAT(Parse(arguments), StatusIs(StatusCode::kInvalidArgument, HasSubstr(message)));
  }
}

TEST(ArgumentsTest, EnvironmentSetsWhatTheCommandLineDoesNot) {
  setenv("ROPE_DURATION", "7s", 1);
  const auto from_environment = Parse({});
  const auto from_both = Parse({"--duration=1s"});
  unsetenv("ROPE_DURATION");
  ASSERT_TRUE(from_environment.ok() && from_both.ok());
  EXPECT_EQ(from_environment->Duration("duration"), std::chrono::seconds(7));
  EXPECT_EQ(from_both->Duration("duration"), std::chrono::seconds(1));
}

}  // namespace
}  // namespace rope::client
