#include "server/housekeeper.h"

#include <gtest/gtest.h>

namespace rope::server {
namespace {

TEST(HousekeeperTest, WakeHurriesTheFirstLookWhateverTheOthersDo) {
  std::atomic<int> looks = 0;
  proto::Notification second;
  Housekeeper housekeeper({[&] {
                             if (++looks == 2) second.Notify();
                             return absl::Hours(1);
                           },
                           [] { return absl::Milliseconds(1); }});
  while (looks == 0) std::this_thread::yield();
  housekeeper.Wake();
  EXPECT_TRUE(second.WaitForNotificationWithTimeout(std::chrono::seconds(30)));
}

}  // namespace
}  // namespace rope::server
