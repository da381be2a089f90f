#include "server/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "server/error.h"
#include "server/limits.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::IsOk;
using ::rope::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

TEST(AdmissionTest, ExactlyTheBudgetsAreAdmitted) {
  Admission admission(2, 100);
  const auto first = admission.Admit(60);
  const auto second = admission.Admit(40);
  EXPECT_THAT(first, IsOk());
  EXPECT_THAT(second, IsOk());
  EXPECT_EQ(admission.requests(), 2);
  EXPECT_EQ(admission.bytes(), 100);
}

TEST(AdmissionTest, FullQueueAsksToRetry) {
  Admission requests(1, 100);
  const auto held = requests.Admit(1);
  const auto refused = requests.Admit(1);
  EXPECT_THAT(refused,
              StatusIs(kExhausted, HasSubstr("queue: got request number 2, want at most")));
  EXPECT_EQ(RetryDelayMs(refused.status()), limits::kRetryDelayMs);
}

TEST(AdmissionTest, FullBytesAskToRetryAndSmallerOnesStillFit) {
  Admission admission(10, 100);
  const auto held = admission.Admit(60);
  const auto refused = admission.Admit(41);
  EXPECT_THAT(refused, StatusIs(kExhausted, HasSubstr("queue: got 41 bytes beside 60")));
  EXPECT_GT(RetryDelayMs(refused.status()), 0);
  EXPECT_EQ(admission.requests(), 1);
  EXPECT_THAT(admission.Admit(40), IsOk());
}

TEST(AdmissionTest, LargerThanTheWholeBudgetIsNotWorthRetrying) {
  Admission admission(10, 100);
  const auto refused = admission.Admit(101);
  EXPECT_THAT(refused, StatusIs(kExhausted, HasSubstr("request: got 101 bytes")));
  EXPECT_EQ(RetryDelayMs(refused.status()), 0);
}

TEST(PermitTest, GivesItsShareBackOnce) {
  Admission admission(1, 100);
  {
    auto admitted = admission.Admit(100);
    ASSERT_THAT(admitted, IsOk());
    Permit moved = *std::move(admitted);
    Permit again = std::move(moved);
    EXPECT_EQ(admission.requests(), 1);
  }
  EXPECT_EQ(admission.requests(), 0);
  EXPECT_EQ(admission.bytes(), 0);
  EXPECT_THAT(admission.Admit(100), IsOk());
}

TEST(PermitTest, EmptyOneHoldsNothing) {
  Admission admission(1, 100);
  { const Permit nothing; }
  EXPECT_EQ(admission.requests(), 0);
}

}  // namespace
}  // namespace rope::server
