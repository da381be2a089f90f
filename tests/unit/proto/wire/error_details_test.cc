#include "proto/wire/error_details.h"

#include <gtest/gtest.h>

namespace rope::proto {
namespace {

TEST(ErrorDetailsTest, MessageOfTheUsualFormGivesItsParts) {
  const v1::Error error = MakeError(3, "rope.config.factor: got 0, want a number > 0, not 0");
  EXPECT_EQ(error.field(), "rope.config.factor");
  EXPECT_EQ(error.got(), "0");
  EXPECT_EQ(error.want(), "a number > 0, not 0");
}

TEST(ErrorDetailsTest, OtherMessagesLeaveThePartsEmpty) {
  for (const char* message : {"draining", "", ", want : got ", ": got , want"}) {
    EXPECT_EQ(MakeError(14, message).message(), message);
    EXPECT_EQ(MakeError(14, message).got(), "") << message;
  }
}

TEST(ErrorDetailsTest, DetailsSurviveTheTrailer) {
  v1::Error error = MakeError(8, "queue: got 10 bytes, want at most 5");
  error.set_retry_delay_ms(20);
  const auto decoded = DecodeStatusDetails(EncodeStatusDetails(error));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->SerializeAsString(), error.SerializeAsString());
}

TEST(ErrorDetailsTest, GarbageHasNoError) {
  EXPECT_FALSE(DecodeStatusDetails("\xff\xff").has_value());
  EXPECT_FALSE(DecodeStatusDetails("").has_value());
}

}  // namespace
}  // namespace rope::proto
