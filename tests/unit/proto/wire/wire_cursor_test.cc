#include "proto/wire/wire_cursor.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace rope::proto {
namespace {

TEST(WireCursorTest, VarintThatStraddlesFragmentsIsOneValue) {
  const std::vector<std::string_view> fragments = {"\xff", "", "\xff\x01"};
  WireCursor cursor(fragments);
  ASSERT_OK(value, cursor.ReadVarint());
  EXPECT_EQ(*value, 0x7fffu);
  EXPECT_EQ(cursor.position(), cursor.size());
}

TEST(WireCursorTest, TruncatedVarintIsInvalidArgument) {
  const std::vector<std::string_view> fragments = {"\xff\xff"};
  WireCursor cursor(fragments);
  EXPECT_THAT(cursor.ReadVarint(), IsInvalid("want 1"));
}

TEST(WireCursorTest, VarintOfElevenBytesIsInvalidArgument) {
  const std::string bytes(11, '\xff');
  const std::vector<std::string_view> fragments = {bytes};
  WireCursor cursor(fragments);
  EXPECT_THAT(cursor.ReadVarint(), IsInvalid("10 bytes"));
}

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

TEST(WireCursorTest, ViewPastTheEndIsInvalidArgument) {
  const std::vector<std::string_view> fragments = {"abc"};
  WireCursor cursor(fragments);
  EXPECT_THAT(cursor.ReadView(4), IsInvalid("got 3"));
}

TEST(WireCursorTest, SkipFieldMovesPastOneValue) {
  const std::string bytes = "\xff\x01" + std::string(8, '8') + std::string(4, '4') + "\3len!";
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const std::vector<std::string_view> fragments = {std::string_view(bytes).substr(0, cut),
                                                     std::string_view(bytes).substr(cut)};
    WireCursor cursor(fragments);
    EXPECT_TRUE(cursor.SkipField(WireType::kVarint).ok());
    EXPECT_EQ(cursor.position(), 2);
    EXPECT_TRUE(cursor.SkipField(WireType::kFixed64).ok());
    EXPECT_EQ(cursor.position(), 10);
    EXPECT_TRUE(cursor.SkipField(WireType::kFixed32).ok());
    EXPECT_EQ(cursor.position(), 14);
    EXPECT_TRUE(cursor.SkipField(WireType::kLength).ok());
    EXPECT_EQ(cursor.position(), cursor.size() - 1);
  }
}

TEST(WireCursorTest, SkipFieldRefusesWhatIsCutOffAndGroups) {
  const auto skip = [](std::string_view bytes, uint32_t type) {
    return WireCursor({&bytes, 1}).SkipField(static_cast<WireType>(type));
  };
  EXPECT_THAT(skip("\xff", 0), IsInvalid("want 1"));
  EXPECT_THAT(skip("1234567", 1), IsInvalid("got 7 more bytes, want 8"));
  EXPECT_THAT(skip("123", 5), IsInvalid("got 3 more bytes, want 4"));
  EXPECT_THAT(skip("\x04"
                   "123",
                   2),
              IsInvalid("got 3 more bytes, want 4"));
  for (const uint32_t type : {3U, 4U, 6U, 7U}) {
    EXPECT_THAT(skip("12345678", type), IsInvalid("group"));
  }
}

}  // namespace
}  // namespace rope::proto
