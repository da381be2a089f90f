#include "client/codec/messages.h"

#include <gtest/gtest.h>

#include "proto/wire/rope_config.h"
#include "tests/support/filled_message.h"
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

TEST(MessagesTest, UnsetFieldsStayUnset) {
  EXPECT_EQ(MessageOf(RopeSpec{}).ByteSizeLong(), 0u);
  EXPECT_EQ(ToMessage(DescribeRequest{})->rope().ByteSizeLong(), 0u);
}

TEST(MessagesTest, SpecNamesLayerAndPairing) {
  const v1::RopeSpec spec = MessageOf(RopeSpec{.config_json = "{}",
                                               .layer = 0,
                                               .layer_type = "full_attention",
                                               .first_layer = 2,
                                               .sub_config = "vision_config",
                                               .pairing = Pairing::kHalf,
                                               .compat = Compat::kLlamacpp,
                                               .precision = Precision::kHf});
  EXPECT_EQ(spec.precision(), v1::PRECISION_HF);
  EXPECT_EQ(spec.compat(), v1::COMPAT_LLAMACPP);
  EXPECT_EQ(spec.config_json(), "{}");
  EXPECT_TRUE(spec.has_layer());
  EXPECT_EQ(spec.layer_type(), "full_attention");
  EXPECT_EQ(spec.first_layer(), 2);
  EXPECT_EQ(spec.sub_config(), "vision_config");
  EXPECT_EQ(spec.pairing(), v1::PAIRING_HALF);
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

TEST(MessagesTest, ReplyOfALayerThatDoesNotRotateHasNoConfig) {
  v1::DescribeResponse response;
  response.set_layer_type("full_attention");
  response.set_seq_len(1);
  EXPECT_EQ(proto::WriteDescribeReply(*FromMessage(response)).DebugString(),
            response.DebugString());
}

TEST(MessagesTest, DescribeReplyHoldsEverything) {
  v1::DescribeResponse response;
  rope::testing::Fill(response);
  response.set_channel_order(v1::PAIRING_HALF);  // the other one than `pairing`
  response.mutable_config()->Clear();            // RopeConfigTest fills it
  response.mutable_config()->set_rope_type("yarn");
  response.mutable_config()->set_rope_theta(5);
  const DescribeReply reply = FromMessage(response).value();
  EXPECT_EQ(proto::WriteDescribeReply(reply).DebugString(), response.DebugString());
  EXPECT_EQ(reply.config.precision, Precision::kHf);
  EXPECT_EQ(reply.pairing, Pairing::kInterleaved);
  EXPECT_EQ(reply.readings.at(1).engine, response.readings(1).implementation());
  EXPECT_EQ(reply.readings.at(1).version, response.readings(1).version());
  EXPECT_EQ(reply.ramp->low_index, response.ramp().low_index());
  EXPECT_EQ(reply.rows.at(1).cos.at(1), response.rows(1).cos(1));
}

}  // namespace
}  // namespace rope::client
