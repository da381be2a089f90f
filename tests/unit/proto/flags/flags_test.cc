#include "proto/flags/flags.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <optional>
#include <string>

#include "proto/nearest_name.h"
#include "tests/support/matchers.h"

namespace rope::proto {
namespace {

TEST(FlagsTest, SizesHaveBinaryUnits) {
  EXPECT_EQ(ParseSize("0"), 0);
  EXPECT_EQ(ParseSize("77"), 77);
  EXPECT_EQ(ParseSize("5KiB"), 5 << 10);
  EXPECT_EQ(ParseSize("64MiB"), 64 << 20);
  EXPECT_EQ(ParseSize("3GiB"), int64_t{3} << 30);
  EXPECT_EQ(ParseSize("9223372036854775807"), std::numeric_limits<int64_t>::max());
  for (const char* text : {"", "MiB", "1MB", "1.5GiB", "-1", "-1KiB", "+1", " 1", "64 MiB", "1mib",
                           "9223372036854775808", "8589934592GiB"}) {
    EXPECT_EQ(ParseSize(text), std::nullopt) << text;
  }
}

TEST(FlagsTest, DurationsHaveUnits) {
  EXPECT_EQ(ParseDuration("5s"), absl::Seconds(5));
  EXPECT_EQ(ParseDuration("200ms"), absl::Milliseconds(200));
  EXPECT_EQ(ParseDuration("1m30s"), absl::Seconds(90));
  EXPECT_EQ(ParseDuration("0"), absl::ZeroDuration());
  for (const char* text : {"", "5", "soon", "-1s", "inf", "5 s"}) {
    EXPECT_EQ(ParseDuration(text), std::nullopt) << text;
  }
}

TEST(FlagsTest, NearestNameIsFewEditsAway) {
  const std::vector<std::string> names = {"--listen", "--device", "--drain_lead"};
  EXPECT_EQ(NearestName("--lisen", names), "--listen");
  EXPECT_EQ(NearestName("--drain-lead", names), "--drain_lead");
  EXPECT_EQ(NearestName("--nothing_like_it", names), "");
  EXPECT_EQ(NearestName("", {}), "");
}

TEST(FlagsTest, BoundsAreIncludedAndErrorsNameFlagValueAndRange) {
  const auto parse = [](const std::string& argument) {
    int64_t number = 0;
    std::string size;
    std::string duration;
    const auto app = NewApp("program", "A program.");
    app->add_option("--number", number)->check(IntegerBetween(1, 9));
    app->add_option("--size", size)->check(SizeBetween(1024, 2048));
    app->add_option("--duration", duration)
        ->check(DurationBetween(absl::Seconds(1), absl::Seconds(2)));
    return std::string(ParseFlags(*app, {argument}).message());
  };
  for (const char* good : {"--number=1", "--number=9", "--size=1KiB", "--size=2048",
                           "--duration=1s", "--duration=2s"}) {
    EXPECT_EQ(parse(good), "") << good;
  }
  EXPECT_THAT(parse("--number=10"),
              HasSubstr("--number: got \"10\", want a whole number from 1 to 9"));
  EXPECT_THAT(parse("--size=3KiB"), HasSubstr("--size: got \"3KiB\", want bytes from 1024"));
  EXPECT_THAT(parse("--duration=3s"), HasSubstr("--duration: got \"3s\", want a duration from 1s"));
  EXPECT_THAT(parse("--nubmer=1"), HasSubstr("did you mean --number?"));
}

TEST(FlagsTest, EnvironmentNamesEveryFlagButHelpAndVersion) {
  const auto app = NewApp("program", "A program.");
  std::string lead;
  app->add_option("--drain_lead", lead);
  ReadEnvironment(*app);
  EXPECT_THAT(app->help(), HasSubstr("ROPE_DRAIN_LEAD"));
  EXPECT_EQ(app->help().find("ROPE_HELP"), std::string::npos);
  EXPECT_EQ(app->help().find("ROPE_VERSION"), std::string::npos);
}

TEST(FlagsTest, AVariableThatIsNearlyAFlagsIsNamed) {
  const auto app = NewApp("program", "A program.");
  std::string lead;
  app->add_option("--drain_lead", lead);
  ReadEnvironment(*app);
  for (const char* name : {"ROPE_DRAIN_LEED", "ROPE_DRAIN_LEAD", "ROPE_OTHER", "DRAIN_LEED"}) {
    setenv(name, "7s", 1);
  }
  EXPECT_THAT(MisspeltVariables(*app),
              ElementsAre("ROPE_DRAIN_LEED: is not read; did you mean ROPE_DRAIN_LEAD?"));
  for (const char* name : {"ROPE_DRAIN_LEED", "ROPE_DRAIN_LEAD", "ROPE_OTHER", "DRAIN_LEED"}) {
    unsetenv(name);
  }
}

}  // namespace
}  // namespace rope::proto
