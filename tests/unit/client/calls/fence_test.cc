#include "client/calls/fence.h"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/transport/channel.h"
#include "client/transport/waiter.h"
#include "rope/client.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A server that gives region 7 the ids 8, 9 and so on, and records its requests.
class FenceTest : public ::testing::Test {
 protected:
  FenceTest() {
    server_.OnRegisterRegion(
        [this](const v1::RegisterRegionRequest& request, v1::RegisterRegionResponse& response) {
          Note(absl::StrCat("register ", request.region_id()));
          response.set_region_id(request.region_id() + 1);
          return registered_;
        });
    server_.OnUnregisterRegion([this](const v1::UnregisterRegionRequest& request) {
      Note(absl::StrCat(request.wait() ? "wait for " : "unregister ", request.region_id()));
      const bool known = request.wait() || !forgotten_;
      return known ? waited_ : grpc::Status(grpc::StatusCode::NOT_FOUND, "region_id: got");
    });
  }

  Status Fence(milliseconds timeout = seconds(60)) {
    return AwaitFence(stub_, ids_, RegionIds::Clock::now() + BoundedTimeout(timeout));
  }
  std::vector<std::string> Asked() {
    const std::lock_guard<std::mutex> lock(mu_);
    return std::exchange(asked_, {});
  }

  grpc::Status registered_;  // how each method ends
  grpc::Status waited_;
  bool forgotten_ = false;  // true: ids without `wait` are unregistered already
  RegionIds ids_{7};

 private:
  void Note(std::string what) {
    const std::lock_guard<std::mutex> lock(mu_);
    asked_.push_back(std::move(what));
  }

  std::mutex mu_;
  std::vector<std::string> asked_;  // guarded by mu_
  FakeServer server_;
  const Stub stub_{MakeChannel(server_.target(), {}), {}};
};

TEST_F(FenceTest, NextIdIsTakenBeforeTheOneBeforeIsWaitedFor) {
  ASSERT_TRUE(Fence().ok());
  EXPECT_THAT(Asked(), ElementsAre("register 7", "wait for 7"));
  EXPECT_EQ(*ids_.Acquire(), 8u);
  ASSERT_TRUE(Fence(milliseconds::max()).ok());
  EXPECT_THAT(Asked(), ElementsAre("register 8", "wait for 8"));
  EXPECT_THAT(ids_.replaced(), IsEmpty());
}

TEST_F(FenceTest, CallsThatNameTheIdAreWaitedForBeforeItGoes) {
  RegionIds::Lease call = ids_.Acquire();
  EXPECT_THAT(Fence(milliseconds(1000)),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("fence: ")));
  EXPECT_THAT(Asked(), ElementsAre("register 7"));
  EXPECT_EQ(*ids_.Acquire(), 8u) << "calls go on";
  call.reset();
  ASSERT_TRUE(Fence().ok());
  EXPECT_THAT(Asked(), ElementsAre("register 8", "unregister 7", "wait for 8"));
  EXPECT_EQ(*ids_.Acquire(), 9u);
}

TEST_F(FenceTest, FenceThatWasGivenUpIsGoneOnWith) {
  waited_ = {grpc::StatusCode::DEADLINE_EXCEEDED, "still at work"};
  EXPECT_EQ(Fence().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Fence().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Asked(), ElementsAre("register 7", "wait for 7", "register 8", "unregister 7"));
  waited_ = grpc::Status::OK;
  forgotten_ = true;  // the server has unregistered the first id
  ASSERT_TRUE(Fence().ok());
  EXPECT_THAT(Asked(), ElementsAre("register 9", "unregister 7", "unregister 8", "wait for 9"));
  EXPECT_THAT(ids_.replaced(), IsEmpty());
}

TEST_F(FenceTest, ServerThatHasLostTheRegionSaysSo) {
  registered_ = {grpc::StatusCode::NOT_FOUND, "region_id: got 7, want a region"};
  EXPECT_EQ(Fence().code(), StatusCode::kNotFound);
  EXPECT_EQ(*ids_.Acquire(), 7u);
  registered_ = grpc::Status::OK;
  waited_ = {grpc::StatusCode::NOT_FOUND, "region_id: got 7, want a region"};
  EXPECT_EQ(Fence().code(), StatusCode::kNotFound) << "only ids of fences before may be gone";
}

TEST_F(FenceTest, OtherFenceUnderWayIsWaitedFor) {
  {
    const auto turn = ids_.TakeTurn(RegionIds::Clock::now());
    EXPECT_EQ(Fence(milliseconds(1)).code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(Asked(), IsEmpty());
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([this] { EXPECT_TRUE(Fence().ok()); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(*ids_.Acquire(), 11u);
}

}  // namespace
}  // namespace rope::client
