#include "server/clients/account.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "server/error.h"
#include "server/limits.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::FakeClock;

TEST(BudgetTest, AmountThatWouldWrapIsRefused) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  Budget budget(10);
  EXPECT_TRUE(budget.TryAcquire(5));
  EXPECT_FALSE(budget.TryAcquire(kMost));
  EXPECT_FALSE(budget.TryAcquire(kMost - 4));
  EXPECT_EQ(budget.held(), 5);
}

TEST(BudgetTest, ThreadsNeverHoldMoreThanThereIs) {
  constexpr int64_t kMax = 3;
  Budget budget(kMax);
  std::atomic<int64_t> held = 0;
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
  EXPECT_EQ(budget.held(), 0);
}

class AccountTest : public ::testing::Test {
 protected:
  AccountTest() : AccountTest({.connections = 4, .requests = 4, .request_bytes = 100}) {}
  explicit AccountTest(const Accounts::Budgets& budgets) : accounts_(budgets, clock_) {}

  absl::StatusOr<Permit> Admit(const std::shared_ptr<Account>& account, int64_t bytes) {
    Permit permit;
    const absl::Status status = permit.Admit(*account, bytes, "request");
    if (!status.ok()) return status;
    return permit;
  }
  int64_t bytes() const { return accounts_.held(Resource::kRequestBytes); }
  int64_t requests() const { return accounts_.held(Resource::kRequests); }

  FakeClock clock_;
  Accounts accounts_;
  const std::shared_ptr<Account> one_ = accounts_.Of("uid:1");
  const std::shared_ptr<Account> two_ = accounts_.Of("uid:2");
};

TEST_F(AccountTest, OwnerHasOneAccountWhileAnybodyHoldsIt) {
  EXPECT_EQ(accounts_.Of("uid:1"), one_);
  EXPECT_NE(one_, two_);
  auto third = accounts_.Of("uid:3");
  third->SetLimits(0, 0);
  EXPECT_THAT(Admit(accounts_.Of("uid:3"), 1), IsExhausted("queue"));
  third.reset();
  EXPECT_THAT(Admit(accounts_.Of("uid:3"), 1), IsOk()) << "it is a new one";
}

TEST_F(AccountTest, LoneOwnerHasTheWholeServer) {
  const auto first = Admit(one_, 60);
  const auto second = Admit(one_, 40);
  EXPECT_THAT(first, IsOk());
  EXPECT_THAT(second, IsOk());
  EXPECT_EQ(requests(), 2);
  EXPECT_EQ(bytes(), 100);
  const auto refused = Admit(one_, 1);
  EXPECT_THAT(refused, IsExhausted("request: got 1 bytes beside 100 of all clients, want at most "
                                   "100 (--memory_bytes)"));
  EXPECT_EQ(proto::PartsOf(refused.status()).retry_delay_ms, limits::kRetryDelayMs);
  EXPECT_EQ(requests(), 2) << "a refused request has no place";
  EXPECT_EQ(accounts_.refusals(Resource::kRequestBytes).full, 1);
}

TEST_F(AccountTest, OwnerHasHalfWhileAnotherAsks) {
  EXPECT_THAT(Admit(one_, 1), IsOk());
  EXPECT_THAT(Admit(two_, 1), IsOk());
  const auto first = Admit(one_, 50);
  EXPECT_THAT(first, IsOk());
  const auto refused = Admit(one_, 1);
  EXPECT_THAT(refused, IsExhausted("request: got 1 bytes beside 50 of uid:1, want at most 50"));
  EXPECT_GT(proto::PartsOf(refused.status()).retry_delay_ms, 0);
  EXPECT_EQ(accounts_.refusals(Resource::kRequestBytes).owner_share, 1);
  EXPECT_THAT(Admit(two_, 50), IsOk());
}

TEST_F(AccountTest, OwnerHasHalfOfTheRequestsUntilNobodyElseHasAskedForASecond) {
  EXPECT_THAT(Admit(two_, 1), IsOk());
  const auto first = Admit(one_, 1);
  const auto second = Admit(one_, 1);
  EXPECT_THAT(Admit(one_, 1), IsExhausted("queue: got request 3 of uid:1, want at most 2"));
  EXPECT_EQ(accounts_.refusals(Resource::kRequests).owner_share, 1);
  clock_.Advance(Accounts::kSharedFor);
  const auto third = Admit(one_, 1);
  EXPECT_THAT(third, IsOk());
  EXPECT_THAT(Admit(two_, 1), IsOk());
  EXPECT_THAT(Admit(one_, 1), IsExhausted("queue: got request 4 of uid:1, want at most 2"));
}

TEST_F(AccountTest, PlacesLastUntilTheirLastCopyAndAlwaysLeaveHalf) {
  auto first = TakePlace(one_, Resource::kConnections);
  ASSERT_THAT(first, IsOk());
  ASSERT_OK(second, TakePlace(one_, Resource::kConnections));
  EXPECT_THAT(TakePlace(one_, Resource::kConnections),
              IsExhausted("max_connections: got connection 3 of uid:1, want at most 2"));
  const Place copy = *first;
  *first = nullptr;
  EXPECT_EQ(accounts_.held(Resource::kConnections), 2);
}

TEST_F(AccountTest, PermitGrowsAndKeepsTheReply) {
  auto permit = Admit(one_, 70);
  ASSERT_THAT(permit, IsOk());
  EXPECT_THAT(permit->Grow(30, "rows"), IsOk());
  const absl::Status refused = permit->Grow(1, "rows.cos");
  EXPECT_THAT(refused, IsExhausted("rows.cos: got 1 bytes to hold, want at most 0 for uid:1"));
  EXPECT_EQ(proto::PartsOf(refused).retry_delay_ms, 0) << "alone it is too large";
  EXPECT_EQ(permit->bytes(), 100);
  permit->KeepReply(5);
  EXPECT_EQ(bytes(), 5);
  EXPECT_EQ(requests(), 0);
  EXPECT_THAT(Admit(one_, 95), IsOk());
  *permit = Permit();
  EXPECT_EQ(bytes(), 0);
  EXPECT_EQ(requests(), 0);
}

TEST_F(AccountTest, PermitIsAdmittedOnce) {
  Permit permit;
  EXPECT_THAT(permit.Admit(*one_, 101, "reply"),
              IsExhausted("reply: got 101 bytes to hold, want at most 100 for uid:1"));
  EXPECT_EQ(accounts_.refusals(Resource::kRequestBytes).too_large, 1);
  EXPECT_FALSE(permit.admitted());
  EXPECT_EQ(requests(), 0);
  EXPECT_THAT(permit.Admit(*one_, 20, "request"), IsOk());
  EXPECT_THAT(permit.Admit(*one_, 30, "reply"), IsOk());
  EXPECT_EQ(requests(), 1);
  EXPECT_EQ(bytes(), 50);
}

TEST_F(AccountTest, LimitsOfAnOwnerHoldBesideThoseOfAll) {
  one_->SetLimits(2, 60);
  auto first = Admit(one_, 40);
  ASSERT_THAT(first, IsOk());
  const auto later = Admit(one_, 21);
  EXPECT_THAT(later, IsExhausted("request: got 21 bytes beside 40 of uid:1, want at most 60"));
  EXPECT_GT(proto::PartsOf(later.status()).retry_delay_ms, 0);
  EXPECT_EQ(proto::PartsOf(Admit(one_, 61).status()).retry_delay_ms, 0) << "waiting does not help";
  const auto second = Admit(one_, 20);
  EXPECT_THAT(second, IsOk());
  EXPECT_THAT(Admit(one_, 0), IsExhausted("queue: got request 3 of uid:1, want at most 2"));
  one_->SetLimits(0, 0);
  const auto never = Admit(one_, 1);
  EXPECT_THAT(never, IsExhausted("queue: got 1 request, want at most 0 for uid:1"));
  EXPECT_EQ(proto::PartsOf(never.status()).retry_delay_ms, 0);
}

}  // namespace
}  // namespace rope::server
