#include "client/cli/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace rope::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Flag kFlags[] = {{"text", FlagKind::kText, "TEXT", ""},
                           {"integer", FlagKind::kInteger, "N", ""},
                           {"number", FlagKind::kNumber, "X", ""},
                           {"integers", FlagKind::kIntegers, "0,1", ""},
                           {"switch", FlagKind::kSwitch, "", ""}};

Result<Arguments> Parse(const std::vector<absl::string_view>& arguments) {
  return Arguments::Parse(arguments, kFlags);
}

TEST(ArgumentsTest, EveryKindInBothSpellings) {
  const auto arguments = Parse({"--text=a=b", "one", "--integer", "-3", "--number=2.5", "--switch",
                                "--integers=0,-1,2", "-"});
  ASSERT_TRUE(arguments.ok()) << arguments.status().ToString();
  EXPECT_EQ(arguments->Text("text"), "a=b");
  EXPECT_EQ(arguments->Integer("integer"), -3);
  EXPECT_EQ(arguments->Number("number"), 2.5);
  EXPECT_THAT(arguments->Integers("integers"), ElementsAre(0, -1, 2));
  EXPECT_TRUE(arguments->Has("switch"));
  EXPECT_THAT(arguments->positional(), ElementsAre("one", "-"));
}

TEST(ArgumentsTest, WhatIsNotGivenIsAbsent) {
  const auto arguments = Parse({});
  ASSERT_TRUE(arguments.ok());
  EXPECT_FALSE(arguments->Has("switch"));
  EXPECT_EQ(arguments->Integer("integer"), std::nullopt);
  EXPECT_EQ(arguments->Number("number"), std::nullopt);
  EXPECT_THAT(arguments->Integers("integers"), IsEmpty());
}

TEST(ArgumentsTest, AfterTwoDashesNothingIsAFlag) {
  const auto arguments = Parse({"--", "--switch"});
  ASSERT_TRUE(arguments.ok());
  EXPECT_THAT(arguments->positional(), ElementsAre("--switch"));
}

TEST(ArgumentsTest, MisuseIsRefusedByName) {
  const std::pair<std::vector<absl::string_view>, std::string> cases[] = {
      {{"--unknown=1"}, "unknown flag --unknown=1"},
      {{"--integer=1.5"}, "--integer: got 1.5"},
      {{"--integer="}, "--integer: got nothing"},
      {{"--integer"}, "--integer: got nothing"},
      {{"--integer=99999999999999999999"}, "--integer: got 99999999999999999999"},
      {{"--number=nan"}, "--number: got nan"},
      {{"--integers=1,,2"}, "--integers: got 1,,2"},
      {{"--switch=yes"}, "--switch: got yes, want no value"},
      {{"--text=a", "--text=b"}, "--text: got two values"},
  };
  for (const auto& [arguments, message] : cases) {
    const auto parsed = Parse(arguments);
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(parsed.status().message(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace rope::client
