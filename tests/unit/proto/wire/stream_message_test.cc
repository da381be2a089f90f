#include "proto/wire/stream_message.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "rope/v1/rotate.pb.h"
#include "tests/support/status_matchers.h"

namespace rope::proto {
namespace {

absl::Status Read(const std::string& bytes, StreamMessage& message) {
  const std::string_view fragments[] = {bytes};
  return ReadStreamMessage(fragments, message);
}

TEST(StreamPrefixTest, PrefixAndRequestAreWhatTheGeneratedSerializerWrites) {
  v1::RotateStreamRequest message;
  message.mutable_rotate()->set_request_id(std::string(300, 'x'));
  const std::string rotate = message.rotate().SerializeAsString();
  for (const uint64_t sequence :
       {uint64_t{1}, uint64_t{128}, std::numeric_limits<uint64_t>::max()}) {
    message.set_sequence(sequence);
    EXPECT_EQ(StreamPrefix(sequence, static_cast<int64_t>(rotate.size())) + rotate,
              message.SerializeAsString());
  }
}

TEST(ReadStreamMessageTest, RequestStaysWhereItWasReceivedInAnyFragments) {
  const std::string rotate = "an encoded request";
  const std::string bytes = StreamPrefix(7, static_cast<int64_t>(rotate.size())) + rotate;
  for (size_t size = 1; size <= bytes.size(); ++size) {
    std::vector<std::string_view> fragments;
    for (size_t i = 0; i < bytes.size(); i += size) {
      fragments.push_back(std::string_view(bytes).substr(i, size));
    }
    StreamMessage message;
    ASSERT_THAT(ReadStreamMessage(fragments, message), IsOk());
    EXPECT_EQ(message.sequence, 7U);
    EXPECT_FALSE(message.cancel);
    ASSERT_TRUE(message.rotate.has_value());
    std::string copy(static_cast<size_t>(message.rotate->bytes), '\0');
    message.rotate->CopyTo(copy.data());
    EXPECT_EQ(copy, rotate);
    EXPECT_GE(message.rotate->fragments.front().data(), bytes.data());
  }
}

TEST(ReadStreamMessageTest, ErrorNamesTheFieldAndKeepsTheNumber) {
  struct Case {
    std::string bytes;
    std::string error;
    uint64_t sequence;
  };
  const std::string sequence("\x08\x07", 2);
  const std::string rotate("\x7a\0", 2);
  const std::string cancel("\x12\0", 2);
  const Case cases[] = {
      {sequence + sequence, "sequence: got it more than once", 7},
      {sequence + rotate + rotate, "rotate: got it more than once", 7},
      {sequence + cancel + cancel, "cancel: got it more than once", 7},
      {sequence + cancel + rotate, "request: got cancel and rotate", 7},
      {sequence + rotate + cancel, "request: got cancel and rotate", 7},
      {sequence + std::string("\x12\x01x"), "cancel: got fields", 7},
      {sequence + std::string("\x10\x01"), "cancel: got another wire type", 7},
      {sequence + std::string("\x78\x01"), "rotate: got another wire type", 7},
      {std::string("\x0a\0", 2), "sequence: got another wire type", 0},
      {sequence + std::string("\x7a\x05"), "message: got ", 7},
      {std::string("\0", 1), "request: got field number 0", 0},
  };
  for (const Case& c : cases) {
    StreamMessage message;
    EXPECT_THAT(Read(c.bytes, message),
                StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(c.error)));
    EXPECT_EQ(message.sequence, c.sequence) << c.error;
  }
}

}  // namespace
}  // namespace rope::proto
