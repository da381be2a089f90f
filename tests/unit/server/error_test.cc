#include "server/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/limits.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::StatusIs;
using ::testing::EndsWith;
using ::testing::Eq;

TEST(InvalidFieldTest, SaysGotAndWant) {
  EXPECT_THAT(InvalidField("a.b", 3, "less"),
              StatusIs(absl::StatusCode::kInvalidArgument, Eq("a.b: got 3, want less")));
}

TEST(PrefixedTest, KeepsCodeAndRetryDelay) {
  const absl::Status prefixed = Prefixed("queue: ", RetryLater("full", 30));
  EXPECT_THAT(prefixed, StatusIs(absl::StatusCode::kResourceExhausted, Eq("queue: full")));
  EXPECT_EQ(RetryDelayMs(prefixed), 30);
  EXPECT_TRUE(Prefixed("x", absl::OkStatus()).ok());
}

TEST(RetryDelayTest, IsZeroWithoutOne) {
  EXPECT_EQ(RetryDelayMs(absl::ResourceExhaustedError("too large")), 0);
  EXPECT_EQ(RetryDelayMs(absl::OkStatus()), 0);
}

TEST(ShortMessageTest, LeavesShortOnesAndCutsLongOnes) {
  const auto max = static_cast<size_t>(limits::kErrorBytesMax);
  const std::string fits(max, 'x');
  EXPECT_EQ(ShortMessage(fits), fits);
  const std::string cut = ShortMessage(fits + "y");
  EXPECT_EQ(cut.size(), max);
  EXPECT_THAT(cut, EndsWith("x..."));
}

TEST(ExecutedTest, IsSaidBesideWhatWasWrong) {
  const absl::Status status = absl::InternalError("device: gone");
  EXPECT_FALSE(MayHaveExecuted(status));
  EXPECT_TRUE(MayHaveExecuted(MarkMayHaveExecuted(status)));
  EXPECT_EQ(MarkMayHaveExecuted(status).message(), "device: gone");
  EXPECT_TRUE(MayHaveExecuted(Prefixed("x: ", MarkMayHaveExecuted(status))));
}

TEST(ShortMessageTest, CutsBetweenCharacters) {
  const auto max = static_cast<size_t>(limits::kErrorBytesMax);
  for (size_t before = 0; before < 4; ++before) {
    std::string message(before, 'x');
    while (message.size() <= max) message += "\xE2\x82\xAC";  // a euro sign, three bytes
    const std::string cut = ShortMessage(message);
    EXPECT_LE(cut.size(), max);
    EXPECT_EQ((cut.size() - before) % 3, 0U) << before;
    EXPECT_THAT(cut, EndsWith("\xE2\x82\xAC..."));
  }
}

}  // namespace
}  // namespace rope::server
