#include "server/models/rope_spec.h"

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

// Sets every field to a value other than its default, except mrope_axes, which excludes
// mrope_section.
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
  config.set_mrope_layout(v1::MROPE_LAYOUT_INTERLEAVED);
  config.set_rotary_offset(8);
  config.set_attn_factor(0.9);
  config.set_ramp(v1::YARN_RAMP_TURNS);
  config.set_longrope_branch(v1::LONGROPE_BRANCH_LONG);
  config.set_alpha(1000);
  config.set_mixed_b(0.625);
  config.mutable_xpos()->set_scale_base(256);
  config.mutable_xpos()->set_centre(7);
  config.mutable_inv_freq()->set_dtype(v1::DTYPE_FP64);
  config.mutable_inv_freq()->add_shape(2);
  for (const double value : {0.1, 0.01}) config.mutable_inv_freq()->add_numbers(value);
  config.set_seq_len_policy(v1::SEQ_LEN_POLICY_BATCH);
  config.set_reverse(true);
  return config;
}

void ExpectInvalid(const v1::RopeConfig& config, const std::string& text) {
  EXPECT_THAT(ReadRopeConfig(config),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
}

TEST(RopeSpecTest, EveryFieldSurvivesReadingAndWriting) {
  const v1::RopeConfig config = FullConfig();
  const auto read = ReadRopeConfig(config);
  ASSERT_THAT(read, IsOk());
  const v1::RopeConfig written = WriteRopeConfig(*read);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(config, written))
      << written.DebugString();
}

TEST(RopeSpecTest, FullConfigLeavesOutNoField) {
  const v1::RopeConfig config = FullConfig();
  const auto* descriptor = v1::RopeConfig::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    const auto* reflection = config.GetReflection();
    if (field->name() == "mrope_axes") continue;
    EXPECT_TRUE(field->is_repeated() ? reflection->FieldSize(config, field) > 0
                                     : reflection->HasField(config, field))
        << field->name();
  }
}

TEST(RopeSpecTest, AxesOfFrequenciesTakeThePlaceOfSections) {
  v1::RopeConfig config;
  config.set_rope_type("default");
  config.set_rope_theta(10000);
  for (const int axis : {2, 1, 0, 2}) config.add_mrope_axes(axis);
  const auto read = ReadRopeConfig(config);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->mrope->axes, (std::vector<int8_t>{2, 1, 0, 2}));
  EXPECT_EQ(WriteRopeConfig(*read).mrope_axes_size(), 4);
  config.add_mrope_axes(3);
  ExpectInvalid(config, "mrope_axes: got 3, want 0 (t), 1 (h) or 2 (w)");
  config.add_mrope_section(4);
  ExpectInvalid(config, "mrope_axes: got axes and mrope_section, want only one of them");
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

TEST(RopeSpecTest, MropeLayoutMeansWhatMropeInterleavedDid) {
  v1::RopeConfig config;
  for (const int64_t count : {2, 1, 1}) config.add_mrope_section(count);
  EXPECT_EQ(ReadRopeConfig(config)->mrope->layout, kernels::Mrope::Layout::kSections);
  config.set_mrope_interleaved(true);
  EXPECT_EQ(ReadRopeConfig(config)->mrope->layout, kernels::Mrope::Layout::kInterleaved);
  config.clear_mrope_interleaved();
  for (const auto& [layout, want] :
       {std::pair(v1::MROPE_LAYOUT_SECTIONS, kernels::Mrope::Layout::kSections),
        std::pair(v1::MROPE_LAYOUT_INTERLEAVED, kernels::Mrope::Layout::kInterleaved),
        std::pair(v1::MROPE_LAYOUT_HW_INTERLEAVED, kernels::Mrope::Layout::kHwInterleaved),
        std::pair(v1::MROPE_LAYOUT_AXIAL, kernels::Mrope::Layout::kAxial)}) {
    config.set_mrope_layout(layout);
    EXPECT_EQ(ReadRopeConfig(config)->mrope->layout, want);
  }
  config.set_mrope_interleaved(true);
  ExpectInvalid(config, "mrope_layout: got MROPE_LAYOUT_AXIAL, want a layout that");
  config.set_mrope_layout(static_cast<v1::MropeLayout>(9));
  ExpectInvalid(config, "mrope_layout: got 9");
  config.clear_mrope_section();
  config.clear_mrope_interleaved();
  config.set_mrope_layout(v1::MROPE_LAYOUT_AXIAL);
  ExpectInvalid(config, "mrope_layout: got a layout without mrope_section, want both");
}

TEST(RopeSpecTest, ExplicitFrequenciesAreNumbersOfTheirDType) {
  v1::RopeConfig config;
  v1::Array& array = *config.mutable_inv_freq();
  ExpectInvalid(config, "inv_freq: got no numbers");
  array.add_numbers(0.1);
  EXPECT_EQ(ReadRopeConfig(config)->inv_freq, std::vector<double>{0.1});
  array.set_dtype(v1::DTYPE_FP32);
  EXPECT_EQ(ReadRopeConfig(config)->inv_freq, std::vector<double>{0.1F});
  array.set_dtype(v1::DTYPE_BF16);
  ExpectInvalid(config, "inv_freq.dtype: got DTYPE_BF16, want DTYPE_FP64 or DTYPE_FP32");
  array.set_dtype(v1::DTYPE_FP64);
  array.add_shape(2);
  ExpectInvalid(config, "inv_freq.shape: got [2], want one axis of its 1 numbers");
  array.set_shape(0, 1);
  array.add_strides(1);
  ExpectInvalid(config, "inv_freq: got strides, want packed numbers");
  array.set_raw("01234567");
  ExpectInvalid(config, "inv_freq: got raw bytes, want packed numbers");
}

TEST(RopeSpecTest, UnknownNumbersOfEnumsAreInvalid) {
  v1::RopeConfig config;
  config.set_ramp(static_cast<v1::YarnRamp>(7));
  ExpectInvalid(config, "ramp: got 7");
  config.clear_ramp();
  config.set_longrope_branch(static_cast<v1::LongropeBranch>(3));
  ExpectInvalid(config, "longrope_branch: got 3");
  config.clear_longrope_branch();
  config.set_seq_len_policy(static_cast<v1::SeqLenPolicy>(-1));
  ExpectInvalid(config, "seq_len_policy: got -1");
}

// A width in the message is the same in the config that is read from it.
TEST(WidthTest, IsTheMostThatAFieldSays) {
  v1::RopeConfig config;
  const auto expect_width = [&config](int64_t width) {
    EXPECT_EQ(WidthOf(config), width);
    const auto read = ReadRopeConfig(config);
    ASSERT_THAT(read, IsOk());
    EXPECT_EQ(WidthOf(*read), width);
  };
  expect_width(0);
  config.mutable_inv_freq()->add_numbers(1);
  expect_width(1);
  for (int i = 0; i < 2; ++i) config.add_short_factor(1);
  expect_width(2);
  for (int i = 0; i < 3; ++i) config.add_long_factor(1);
  expect_width(3);
  for (int i = 0; i < 4; ++i) config.add_mrope_axes(0);
  expect_width(4);
  config.set_rotary_dim(8);
  expect_width(8);
  config.set_head_dim(65536);
  expect_width(65536);
}

TEST(SwitchesTest, CompatAndPrecisionAreRead) {
  EXPECT_EQ(*ReadCompat(v1::COMPAT_UNSPECIFIED), kernels::Compat::kDefault);
  EXPECT_EQ(*ReadCompat(v1::COMPAT_HF), kernels::Compat::kHuggingFace);
  EXPECT_EQ(*ReadCompat(v1::COMPAT_VLLM), kernels::Compat::kVllm);
  EXPECT_EQ(*ReadCompat(v1::COMPAT_LLAMACPP), kernels::Compat::kLlamaCpp);
  EXPECT_EQ(*ReadCompat(v1::COMPAT_DEEPSEEK), kernels::Compat::kDeepSeek);
  EXPECT_EQ(*ReadPrecision(v1::PRECISION_UNSPECIFIED), kernels::Precision::kExact);
  EXPECT_EQ(*ReadPrecision(v1::PRECISION_EXACT), kernels::Precision::kExact);
  EXPECT_EQ(*ReadPrecision(v1::PRECISION_HF), kernels::Precision::kHuggingFace);
  EXPECT_THAT(ReadCompat(static_cast<v1::Compat>(5)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rope.compat: got 5")));
  EXPECT_THAT(ReadPrecision(static_cast<v1::Precision>(3)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rope.precision: got 3")));
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
