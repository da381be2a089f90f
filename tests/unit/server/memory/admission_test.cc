#include "server/memory/admission.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "server/error.h"
#include "server/limits.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

TEST(BudgetTest, AmountThatWouldWrapIsRefused) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  Budget budget(10);
  EXPECT_TRUE(budget.TryAcquire(5));
  EXPECT_FALSE(budget.TryAcquire(kMost));
  EXPECT_FALSE(budget.TryAcquire(kMost - 4));
  EXPECT_EQ(budget.held(), 5u);
}

TEST(BudgetTest, ThreadsNeverHoldMoreThanThereIs) {
  constexpr uint64_t kMax = 3;
  Budget budget(kMax);
  std::atomic<uint64_t> held = 0;
  std::atomic<int> too_many = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20000; ++round) {
        if (!budget.TryAcquire(1)) continue;
        too_many += held.fetch_add(1) >= kMax ? 1 : 0;
        held.fetch_sub(1);
        budget.Give(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(too_many, 0);
  EXPECT_EQ(budget.held(), 0u);
}

constexpr uint64_t kSession = 7;
constexpr uint64_t kOther = 8;

// Options by which one session may use the whole budget.
Admission::Options Whole(int64_t requests, int64_t bytes) {
  return {requests, bytes, requests, bytes};
}

TEST(AdmissionTest, FullQueueAsksToRetry) {
  Admission admission({1, 100, 2, 100});
  const auto held = admission.Admit(kSession, 1);
  const auto refused = admission.Admit(kSession, 1);
  EXPECT_THAT(refused, IsExhausted("queue: got 1 request while 1 are held"));
  EXPECT_EQ(proto::PartsOf(refused.status()).retry_delay_ms, limits::kRetryDelayMs);
  EXPECT_EQ(admission.refusals().requests, 1);
  EXPECT_THAT(admission.Admit(kSession, 1), IsExhausted("while 1 are held"));
}

TEST(AdmissionTest, FullBytesAskToRetryAndSmallerOnesStillFit) {
  Admission admission({10, 100, 10, 200});
  const auto held = admission.Admit(kSession, 60);
  const auto refused = admission.Admit(kSession, 41);
  EXPECT_THAT(refused, IsExhausted("request: got 41 bytes while 60 are held"));
  EXPECT_GT(proto::PartsOf(refused.status()).retry_delay_ms, 0);
  EXPECT_EQ(admission.requests(), 1);
  EXPECT_EQ(admission.refusals().bytes, 1);
  EXPECT_THAT(admission.Admit(kSession, 100), IsExhausted("while 60 are held"));
  EXPECT_THAT(admission.Admit(kSession, 40), IsOk());
}

TEST(AdmissionTest, LargerThanASessionsPartIsNotWorthRetrying) {
  Admission admission(Whole(10, 100));
  const auto refused = admission.Admit(kSession, 101);
  EXPECT_THAT(refused, IsExhausted("request: got 101 bytes to hold"));
  EXPECT_EQ(proto::PartsOf(refused.status()).retry_delay_ms, 0);
  EXPECT_EQ(admission.refusals().too_large, 1);
}

TEST(AdmissionTest, OneSessionGetsHalfAndAnotherTheRest) {
  Admission admission(Admission::HalfForASession(4, 100));
  const auto first = admission.Admit(kSession, 50);
  EXPECT_THAT(first, IsOk());
  const auto refused = admission.Admit(kSession, 1);
  EXPECT_THAT(refused, IsExhausted("for one connection"));
  EXPECT_GT(proto::PartsOf(refused.status()).retry_delay_ms, 0);
  EXPECT_EQ(admission.refusals().session_bytes, 1);
  const auto other = admission.Admit(kOther, 50);
  EXPECT_THAT(other, IsOk());
}

TEST(AdmissionTest, OneSessionGetsHalfOfTheRequests) {
  Admission admission(Admission::HalfForASession(4, 100));
  const auto first = admission.Admit(kSession, 1);
  const auto second = admission.Admit(kSession, 1);
  EXPECT_THAT(admission.Admit(kSession, 1), IsExhausted("queue"));
  EXPECT_EQ(admission.refusals().session_requests, 1);
  EXPECT_THAT(admission.Admit(kOther, 1), IsOk());
}

TEST(PermitTest, GivesItsShareBackOnce) {
  Admission admission(Whole(1, 100));
  {
    auto admitted = admission.Admit(kSession, 100);
    ASSERT_THAT(admitted, IsOk());
    Permit moved = *std::move(admitted);
    Permit again = std::move(moved);
    EXPECT_EQ(admission.requests(), 1);
  }
  EXPECT_EQ(admission.requests(), 0);
  EXPECT_EQ(admission.bytes(), 0);
  EXPECT_THAT(admission.Admit(kSession, 100), IsOk());
}

TEST(PermitTest, GrowsWithinItsSessionsPartAndKeepsTheReply) {
  Admission admission(Admission::HalfForASession(4, 100));
  auto permit = admission.Admit(kSession, 20);
  ASSERT_THAT(permit, IsOk());
  EXPECT_THAT(permit->Grow(30, "rows"), IsOk());
  const absl::Status refused = permit->Grow(1, "rows.cos");
  EXPECT_THAT(refused, IsExhausted("rows.cos: got 1 bytes to hold, want"));
  EXPECT_EQ(proto::PartsOf(refused).retry_delay_ms, 0) << "alone it is too large";
  EXPECT_EQ(permit->bytes(), 50);
  permit->KeepReply(5);
  EXPECT_EQ(admission.bytes(), 5);
  EXPECT_EQ(admission.requests(), 0);
  EXPECT_THAT(admission.Admit(kSession, 45), IsOk());
  permit = Permit();
  EXPECT_EQ(admission.bytes(), 0);
  EXPECT_EQ(admission.requests(), 0);
}

TEST(PermitTest, IsAdmittedWhenItIsFirstExtended) {
  Admission admission(Admission::HalfForASession(4, 100));
  Permit permit;
  EXPECT_THAT(admission.Extend(kSession, 51, "reply", permit),
              IsExhausted("reply: got 51 bytes to hold, want at most 50"));
  EXPECT_FALSE(permit.admitted());
  EXPECT_EQ(admission.requests(), 0);
  EXPECT_THAT(admission.Extend(kSession, 20, "request", permit), IsOk());
  EXPECT_THAT(admission.Extend(kSession, 30, "reply", permit), IsOk());
  EXPECT_EQ(admission.requests(), 1);
  EXPECT_EQ(admission.bytes(), 50);
  EXPECT_THAT(admission.Extend(kSession, 1, "reply", permit), IsExhausted(""));
  permit.KeepReply(7);
  EXPECT_EQ(admission.requests(), 0);
  EXPECT_EQ(admission.bytes(), 7);
}

// A permit holds of its identity what it holds of its session, over all sessions.
TEST(AdmissionTest, LimitsOfAnIdentityHoldOverItsSessions) {
  Admission admission(Whole(9, 1000));
  const auto use = std::make_shared<IdentityUse>("one");
  use->SetLimits(2, 100);
  auto first = admission.Admit(kSession, 60, use);
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(admission.Admit(kOther, 41, use), IsExhausted("request"));
  auto second = admission.Admit(kOther, 30, use);
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT(admission.Admit(kOther, 0, use), IsExhausted("queue"));
  EXPECT_THAT(admission.Admit(kOther, 500), IsOk()) << "another identity";
  EXPECT_THAT(second->Grow(11, "reply"), IsExhausted("reply"));
  EXPECT_THAT(second->Grow(10, "reply"), IsOk());
  first->KeepReply(5);
  auto third = admission.Admit(kSession, 55, use);
  EXPECT_THAT(third, IsOk());
  EXPECT_THAT(third->Grow(1, "reply"), IsExhausted("reply"));
  for (Permit* held : {&*first, &*second, &*third}) *held = Permit();
  EXPECT_THAT(admission.Admit(kSession, 100, use), IsOk());
  EXPECT_EQ(admission.bytes(), 0);
}

TEST(AdmissionTest, WhatTheServerRefusesAnIdentityDoesNotHold) {
  Admission admission(Whole(1, 50));
  const auto use = std::make_shared<IdentityUse>("one");
  use->SetLimits(1, 100);
  EXPECT_THAT(admission.Admit(kSession, 60, use), Not(IsOk())) << "more than there is";
  auto held = admission.Admit(kOther, 1);
  EXPECT_THAT(admission.Admit(kSession, 1, use), IsExhausted("queue")) << "no place";
  *held = Permit();
  EXPECT_THAT(admission.Admit(kSession, 50, use), IsOk());
}

}  // namespace
}  // namespace rope::server
