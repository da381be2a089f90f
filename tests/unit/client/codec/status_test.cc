#include "rope/status.h"

#include <gtest/gtest.h>

namespace rope {
namespace {

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
