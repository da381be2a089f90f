#include "proto/wire/wire_cursor.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace rope::proto {
namespace {

TEST(WireCursorTest, TagHasThirtyTwoBitsInAtMostFiveBytes) {
  const std::vector<std::string_view> fragments = {"\x8a\x80\x80", "\x80\x70",
                                                   "\x8a\x80\x80\x80\x80"};
  WireCursor cursor(fragments);
  ASSERT_OK(tag, cursor.ReadTag());
  EXPECT_EQ(*tag, 10u);  // bits that do not fit are dropped
  EXPECT_THAT(cursor.ReadTag(), IsInvalid("a tag of more than 5"));
}

TEST(WireCursorTest, LengthIsBelowTwoGibibytesInAtMostFiveBytes) {
  const auto read = [](std::string_view bytes) { return WireCursor({&bytes, 1}).ReadLength(); };
  ASSERT_OK(largest, read("\xef\xff\xff\xff\x07"));
  EXPECT_EQ(*largest, (int64_t{1} << 31) - 17);
  EXPECT_THAT(read("\xf0\xff\xff\xff\x07"), IsInvalid("got a length of 2147483632"));
  EXPECT_THAT(read("\x81\x80\x80\x80\x80"), IsInvalid("a length of more than 5"));
}

TEST(WireCursorTest, ViewKeepsBytesWhereTheyAre) {
  const std::vector<std::string_view> fragments = {"abc", "def", "ghi"};
  WireCursor cursor(fragments);
  std::string head;
  ASSERT_TRUE(cursor.ReadBytes(2, head).ok());
  EXPECT_EQ(head, "ab");
  ASSERT_OK(view, cursor.ReadView(5));
  EXPECT_EQ(view->bytes, 5);
  EXPECT_THAT(view->fragments, ::testing::ElementsAre("c", "def", "g"));
  EXPECT_EQ(view->fragments[1].data(), fragments[1].data());
  std::string copy(5, ' ');
  view->CopyTo(copy.data());
  EXPECT_EQ(copy, "cdefg");
}

}  // namespace
}  // namespace rope::proto
