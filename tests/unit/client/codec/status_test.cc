#include "rope/status.h"

#include <gtest/gtest.h>

namespace rope {
namespace {

TEST(StatusTest, DefaultIsOk) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().ToString(), "OK");
}

TEST(StatusTest, TextNamesCodeAndMessage) {
  const Status status(StatusCode::kOutOfRange, "positions.start: got 2, want less");
  EXPECT_EQ(status.ToString(), "OUT_OF_RANGE: positions.start: got 2, want less");
}

TEST(StatusTest, NumberThatGrpcLacksIsUnknown) {
  EXPECT_STREQ(Name(static_cast<StatusCode>(99)), "UNKNOWN");
}

TEST(ResultTest, ValueOfAnErrorThrowsAndSaysWhatFailed) {
  Result<int> result = Status(StatusCode::kInternal, "broken", {.reason = Reason::kInternal});
  EXPECT_FALSE(result.ok());
  try {
    static_cast<void>(*result);
    FAIL() << "no exception";
  } catch (const BadResult& error) {
    EXPECT_STREQ(error.what(), "rope::Result without a value: INTERNAL: broken");
    EXPECT_EQ(error.status().detail().reason, Reason::kInternal);
  }
}

}  // namespace
}  // namespace rope
