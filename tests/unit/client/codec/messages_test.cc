#include "client/codec/messages.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

v1::RopeSpec MessageOf(const RopeSpec& spec) {
  v1::RopeSpec message;
  EXPECT_TRUE(SetRope(spec, "rope", message).ok());
  return message;
}

TEST(MessagesTest, TwoSourcesAreRefusedByName) {
  v1::RopeSpec message;
  EXPECT_EQ(
      SetRope({.model = "m", .config = RopeConfig{}}, "reposition.from_rope", message).message(),
      "reposition.from_rope: got model and config, want exactly one of model, config_id, "
      "config, config_json");
  const DescribeRequest request = {.rope = {.config_id = "1", .config_json = "{}"}};
  EXPECT_EQ(ToMessage(request).status().code(), StatusCode::kInvalidArgument);
}

TEST(MessagesTest, PrecisionOfTheConfigIsSentUnlessTheSpecHasAnother) {
  RopeSpec spec = {.config = RopeConfig{.head_dim = 64, .precision = Precision::kHf}};
  EXPECT_EQ(MessageOf(spec).config().head_dim(), 64);
  EXPECT_EQ(MessageOf(spec).precision(), v1::PRECISION_HF);
  spec.precision = Precision::kExact;
  EXPECT_EQ(MessageOf(spec).precision(), v1::PRECISION_EXACT);
  EXPECT_EQ(MessageOf({.config = RopeConfig{}}).precision(), v1::PRECISION_UNSPECIFIED);
}

TEST(MessagesTest, ReplyWithAConfigOfAnUnknownTypeIsInternal) {
  v1::DescribeResponse response;
  response.mutable_config()->set_rope_type("spiral");
  EXPECT_THAT(FromMessage(response),
              StatusIs(StatusCode::kInternal,
                       StartsWith("reply: config.rope_type: got \"spiral\", want one of")));
}

}  // namespace
}  // namespace rope::client
