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

TEST(ResultDeathTest, ValueOfAnErrorStopsTheProcess) {
  Result<int> result = Status(StatusCode::kInternal, "broken");
  EXPECT_FALSE(result.ok());
  EXPECT_DEATH(static_cast<void>(result.value()), "INTERNAL: broken");
}

}  // namespace
}  // namespace rope
