#include "proto/wire_cursor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace rope::proto {
namespace {

using rope::testing::StatusIs;
using ::testing::HasSubstr;

TEST(WireCursorTest, VarintThatStraddlesFragmentsIsOneValue) {
  const std::vector<std::string_view> fragments = {"\xff", "", "\xff\x01"};
  WireCursor cursor(fragments);
  const auto value = cursor.ReadVarint();
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(*value, 0x7fffu);
  EXPECT_EQ(cursor.position(), cursor.size());
}

TEST(WireCursorTest, TruncatedVarintIsInvalidArgument) {
  const std::vector<std::string_view> fragments = {"\xff\xff"};
  WireCursor cursor(fragments);
  EXPECT_THAT(cursor.ReadVarint(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want 1")));
}

TEST(WireCursorTest, VarintOfElevenBytesIsInvalidArgument) {
  const std::string bytes(11, '\xff');
  const std::vector<std::string_view> fragments = {bytes};
  WireCursor cursor(fragments);
  EXPECT_THAT(cursor.ReadVarint(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("10 bytes")));
}

TEST(WireCursorTest, ViewKeepsBytesWhereTheyAre) {
  const std::vector<std::string_view> fragments = {"abc", "def", "ghi"};
  WireCursor cursor(fragments);
  std::string head;
  ASSERT_TRUE(cursor.ReadBytes(2, head).ok());
  EXPECT_EQ(head, "ab");
  const auto view = cursor.ReadView(5);
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(view->bytes, 5);
  EXPECT_THAT(view->fragments, ::testing::ElementsAre("c", "def", "g"));
  EXPECT_EQ(view->fragments[1].data(), fragments[1].data());
  std::string copy(5, ' ');
  view->CopyTo(copy.data());
  EXPECT_EQ(copy, "cdefg");
}

TEST(WireCursorTest, ViewPastTheEndIsInvalidArgument) {
  const std::vector<std::string_view> fragments = {"abc"};
  WireCursor cursor(fragments);
  EXPECT_THAT(cursor.ReadView(4), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got 3")));
}

}  // namespace
}  // namespace rope::proto
