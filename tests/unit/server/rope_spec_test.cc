#include "server/rope_spec.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::IsOk;
using ::rope::testing::StatusIs;
using ::testing::Eq;
using ::testing::HasSubstr;

// Every field that is served, with a value that is no default.
v1::RopeConfig FullConfig() {
  v1::RopeConfig config;
  config.set_rope_type("yarn");
  config.set_rope_theta(5e5);
  config.set_head_dim(64);
  config.set_rotary_dim(32);
  config.set_partial_rotary_factor(0.5);
  config.set_max_position_embeddings(1000);
  config.set_original_max_position_embeddings(100);
  config.set_factor(10);
  config.set_attention_factor(1.5);
  config.set_mscale(0.7);
  config.set_mscale_all_dim(0.8);
  config.set_beta_fast(33);
  config.set_beta_slow(2);
  config.set_truncate(false);
  config.set_low_freq_factor(1.25);
  config.set_high_freq_factor(4.5);
  for (const double value : {1.0, 2.0}) config.add_short_factor(value);
  for (const double value : {3.0, 4.0}) config.add_long_factor(value);
  for (const int64_t count : {4, 6, 6}) config.add_mrope_section(count);
  config.set_mrope_interleaved(true);
  return config;
}

TEST(RopeSpecTest, EveryServedFieldSurvivesReadingAndWriting) {
  const v1::RopeConfig config = FullConfig();
  const auto read = ReadRopeConfig(config);
  ASSERT_THAT(read, IsOk());
  const v1::RopeConfig written = WriteRopeConfig(*read);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(config, written))
      << written.DebugString();
}

TEST(RopeSpecTest, FullConfigLeavesOutPlannedFieldsOnly) {
  const v1::RopeConfig config = FullConfig();
  const auto* descriptor = v1::RopeConfig::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    if (field->options().GetExtension(v1::planned)) continue;
    const auto* reflection = config.GetReflection();
    EXPECT_TRUE(field->is_repeated() ? reflection->FieldSize(config, field) > 0
                                     : reflection->HasField(config, field))
        << field->name();
  }
}

TEST(RopeSpecTest, UnsetFieldsStayUnset) {
  const auto read = ReadRopeConfig(v1::RopeConfig());
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(*read, kernels::RopeConfig());
}

TEST(RopeSpecTest, UnknownTypeIsInvalid) {
  v1::RopeConfig config;
  config.set_rope_type("spiral");
  EXPECT_THAT(ReadRopeConfig(config),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("spiral")));
}

TEST(RopeSpecTest, MropeNeedsThreeCounts) {
  v1::RopeConfig config;
  config.set_mrope_interleaved(true);
  EXPECT_THAT(ReadRopeConfig(config),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("mrope_interleaved: got")));
  config.add_mrope_section(1);
  config.add_mrope_section(1);
  EXPECT_THAT(ReadRopeConfig(config), StatusIs(absl::StatusCode::kInvalidArgument,
                                               HasSubstr("mrope_section: got 2 counts")));
}

TEST(PairingTest, EachNameIsItself) {
  for (const auto pairing : {v1::PAIRING_UNSPECIFIED, v1::PAIRING_HALF, v1::PAIRING_INTERLEAVED}) {
    const auto read = ReadPairing(pairing);
    ASSERT_THAT(read, IsOk());
    EXPECT_EQ(WritePairing(*read), pairing);
  }
  EXPECT_THAT(*ReadPairing(v1::PAIRING_HALF), Eq(kernels::Pairing::kHalf));
}

TEST(PairingTest, UnknownNumberIsInvalid) {
  EXPECT_THAT(ReadPairing(static_cast<v1::Pairing>(9)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rope.pairing: got 9")));
}

}  // namespace
}  // namespace rope::server
