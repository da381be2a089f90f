#include <gtest/gtest.h>

#include <string>

#include "client/transport/channel.h"
#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

struct Case {
  std::string written;
  std::string target;
  bool is_of_several = false;
};

TEST(TargetTest, IsReadAsPeopleWriteIt) {
  const Case cases[] = {
      {"host", "host:50051"},
      {"host:1", "host:1"},
      {"[::1]", "[::1]:50051"},
      {"[::1]:1", "[::1]:1"},
      {"http://host:1/", "host:1"},
      {"http://host", "host:50051"},
      {"https://host/", "host:50051"},
      {"unix:/a/b", "unix:/a/b"},
      {"unix:/a,b", "unix:/a,b"},
      {"dns:///host:1", "dns:///host:1", true},
      {"10.0.0.1:1,10.0.0.2", "ipv4:10.0.0.1:1,10.0.0.2:50051", true},
      {"10.0.0.1:1, 10.0.0.2:2", "ipv4:10.0.0.1:1,10.0.0.2:2", true},
      {"[::1],[::2]:1", "ipv6:[::1]:50051,[::2]:1", true},
      {"ipv4:10.0.0.1:1,10.0.0.2:2", "ipv4:10.0.0.1:1,10.0.0.2:2", true},
  };
  for (const Case& one : cases) {
    ASSERT_OK(target, ReadTarget(one.written));
    EXPECT_EQ(*target, one.target);
    EXPECT_EQ(IsOfSeveral(*target), one.is_of_several) << one.written;
  }
}

TEST(TargetTest, OthersAreRefusedByName) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "target: got nothing, want HOST:PORT or unix:PATH"},
      {"http://", "target: got nothing, want HOST:PORT or unix:PATH"},
      {"https://", "target: got nothing, want HOST:PORT or unix:PATH"},
      {"10.0.0.1,host", "target: got host:50051, want IPv4 or IPv6 addresses"},
      {"10.0.0.1:1,[::1]:2", "target: got [::1]:2, want IPv4"},
      {"[::1]:1,10.0.0.1:2", "target: got 10.0.0.1:2, want IPv4"},
      {"10.0.0.1:1,", "target: got :50051, want IPv4"},
      {"10.0.0.1:70000,10.0.0.2:1", "target: got 10.0.0.1:70000, want IPv4"},
      {"10.0.0.1:x,10.0.0.2:1", "target: got 10.0.0.1:x, want IPv4"},
      {"10.0.0.1:1,unix:/a", "target: got unix:/a, want IPv4"},
  };
  for (const auto& [written, error] : cases) {
    EXPECT_THAT(ReadTarget(written),
                StatusIs(StatusCode::kInvalidArgument, ::testing::StartsWith(error)));
  }
}

}  // namespace
}  // namespace rope::client
