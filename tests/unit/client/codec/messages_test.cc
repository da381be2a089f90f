#include "client/codec/messages.h"

#include <gtest/gtest.h>

#include "proto/wire/rope_config.h"
#include "tests/support/matchers.h"

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
  const Status status = FromMessage(response).status();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), StartsWith("reply: config.rope_type: got \"spiral\", want one of"));
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
  response.set_config_id("0123");
  response.set_pairing(v1::PAIRING_INTERLEAVED);
  response.set_layer_type("full_attention");
  response.set_rotates(true);
  response.set_seq_len(7);
  response.set_depends_on_seq_len(true);
  response.set_attention_factor(1.5);
  response.add_inv_freq(0.25);
  response.add_wavelengths(25);
  response.add_warnings("careful");
  v1::Reading& reading = *response.add_readings();
  reading.set_implementation("vllm");
  reading.set_version("0.22.0 to 0.29.0");
  reading.set_difference("ignores it");
  reading.set_attention_factor(2);
  reading.set_inv_freq_max_relative(0.5);
  response.mutable_ramp()->set_low_index(1);
  response.mutable_ramp()->set_high_wavelength(8192);
  response.add_scaling(v1::FREQUENCY_SCALING_BLENDED);
  response.set_float32_angle_error(0.125);
  response.set_float32_angle_position(131071);
  v1::Row& row = *response.add_rows();
  row.set_position(9);
  row.add_cos(0.6);
  row.add_sin(0.8);

  row.add_sinusoid(0.8);
  response.set_precision(v1::PRECISION_HF);
  response.mutable_config()->set_rope_type("yarn");
  response.mutable_config()->set_rope_theta(5);

  const DescribeReply reply = FromMessage(response).value();
  EXPECT_EQ(proto::WriteDescribeReply(reply).DebugString(), response.DebugString());
  EXPECT_EQ(reply.config_id, "0123");
  EXPECT_EQ(reply.config.rope_type, RopeType::kYarn);
  EXPECT_EQ(reply.config.precision, Precision::kHf);
  EXPECT_EQ(reply.pairing, Pairing::kInterleaved);
  EXPECT_EQ(reply.layer_type, "full_attention");
  EXPECT_TRUE(reply.rotates);
  EXPECT_EQ(reply.seq_len, 7);
  EXPECT_TRUE(reply.depends_on_seq_len);
  EXPECT_EQ(reply.attention_factor, 1.5);
  EXPECT_THAT(reply.inv_freq, ElementsAre(0.25));
  EXPECT_THAT(reply.wavelengths, ElementsAre(25));
  EXPECT_THAT(reply.warnings, ElementsAre("careful"));
  ASSERT_EQ(reply.readings.size(), 1u);
  EXPECT_EQ(reply.readings[0].engine, "vllm");
  EXPECT_EQ(reply.readings[0].version, "0.22.0 to 0.29.0");
  EXPECT_EQ(reply.readings[0].difference, "ignores it");
  EXPECT_EQ(reply.readings[0].attention_factor, 2);
  EXPECT_EQ(reply.readings[0].inv_freq_max_relative, 0.5);
  ASSERT_TRUE(reply.ramp.has_value());
  EXPECT_EQ(reply.ramp->low_index, 1);
  EXPECT_EQ(reply.ramp->high_wavelength, 8192);
  EXPECT_THAT(reply.scaling, ElementsAre(FrequencyScaling::kBlended));
  EXPECT_EQ(reply.float32_angle_error, 0.125);
  EXPECT_EQ(reply.float32_angle_position, 131071);
  ASSERT_EQ(reply.rows.size(), 1u);
  EXPECT_EQ(reply.rows[0].position, 9);
  EXPECT_THAT(reply.rows[0].cos, ElementsAre(0.6));
  EXPECT_THAT(reply.rows[0].sin, ElementsAre(0.8));
}

TEST(MessagesTest, ModelsAndServerInfoHoldEverything) {
  v1::ListModelsResponse models;
  v1::Model& model = *models.add_models();
  model.set_name("a");
  model.set_rope_theta(500000);
  model.set_pairing(v1::PAIRING_HALF);
  model.add_layer_types("x");
  const std::vector<Model> listed = FromMessage(models);
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].name, "a");
  EXPECT_EQ(listed[0].rope_theta, 500000);
  EXPECT_EQ(listed[0].pairing, Pairing::kHalf);
  EXPECT_THAT(listed[0].layer_types, ElementsAre("x"));

  v1::GetServerInfoResponse info;
  info.set_instance_id("i");
  info.add_devices()->set_name("cpu");
  info.add_limits()->set_value(3);
  info.mutable_table_cache()->set_pages(5);
  const ServerInfo plain = FromMessage(info);
  EXPECT_EQ(plain.instance_id, "i");
  ASSERT_EQ(plain.devices.size(), 1u);
  EXPECT_EQ(plain.devices[0].name, "cpu");
  ASSERT_EQ(plain.limits.size(), 1u);
  EXPECT_EQ(plain.limits[0].value, 3);
  EXPECT_EQ(plain.table_cache.pages, 5);
}

}  // namespace
}  // namespace rope::client
