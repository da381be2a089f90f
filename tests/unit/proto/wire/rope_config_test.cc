#include "proto/wire/rope_config.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/filled_message.h"
#include "tests/support/status_matchers.h"

namespace rope::proto {
namespace {

void ExpectInvalid(const v1::RopeConfig& config, const std::string& text) {
  EXPECT_THAT(ReadRopeConfig(config), IsInvalid(text));
}

// A value in every field but mrope_axes, which excludes mrope_section.
v1::RopeConfig FullConfig() {
  v1::RopeConfig config;
  rope::testing::Fill(config);
  config.set_rope_type("yarn");
  config.clear_mrope_axes();
  config.add_mrope_section(4);
  config.set_mrope_layout(v1::MROPE_LAYOUT_INTERLEAVED);
  v1::Array& inv_freq = *config.mutable_inv_freq();
  inv_freq.Clear();
  inv_freq.set_dtype(v1::DTYPE_FP64);
  inv_freq.add_shape(1);
  inv_freq.add_numbers(0.5);
  return config;
}

TEST(RopeConfigTest, EveryFieldSurvivesReadingAndWriting) {
  const v1::RopeConfig config = FullConfig();
  ASSERT_OK(read, ReadRopeConfig(config));
  EXPECT_EQ(WriteRopeConfig(*read).DebugString(), config.DebugString());
  for (int i = 0; i < config.GetDescriptor()->field_count(); ++i) {
    const auto* field = config.GetDescriptor()->field(i);
    if (field->name().rfind("mrope", 0) == 0) continue;  // their rules have tests below
    v1::RopeConfig without = config;
    without.GetReflection()->ClearField(&without, field);
    EXPECT_FALSE(*ReadRopeConfig(without) == *read) << field->name();
  }
}

TEST(RopeConfigTest, AxesOfFrequenciesTakeThePlaceOfSections) {
  v1::RopeConfig config;
  config.set_rope_type("default");
  config.set_rope_theta(10000);
  for (const int axis : {2, 1, 0, 2}) config.add_mrope_axes(axis);
  ASSERT_OK(read, ReadRopeConfig(config));
  EXPECT_EQ(read->mrope->axes, (std::vector<int8_t>{2, 1, 0, 2}));
  EXPECT_EQ(WriteRopeConfig(*read).DebugString(), config.DebugString());
  EXPECT_FALSE(*read == RopeConfig());
  config.add_mrope_axes(3);
  ExpectInvalid(config, "mrope_axes: got 3, want 0 (t), 1 (h) or 2 (w)");
  config.add_mrope_section(4);
  ExpectInvalid(config, "mrope_axes: got axes and mrope_section, want only one of them");
}

TEST(RopeConfigTest, UnsetFieldsStayUnset) {
  ASSERT_OK(read, ReadRopeConfig(v1::RopeConfig()));
  EXPECT_EQ(*read, RopeConfig());
}

TEST(RopeConfigTest, UnknownTypeIsInvalid) {
  v1::RopeConfig config;
  config.set_rope_type("spiral");
  ExpectInvalid(config, "rope_type: got \"spiral\", want one of default, linear");
}

TEST(RopeConfigTest, MropeNeedsThreeCounts) {
  v1::RopeConfig config;
  config.set_mrope_interleaved(true);
  ExpectInvalid(config, "mrope_interleaved: got");
  config.add_mrope_section(1);
  config.add_mrope_section(1);
  ExpectInvalid(config, "mrope_section: got 2 counts");
}

TEST(RopeConfigTest, MropeLayoutMeansWhatMropeInterleavedDid) {
  v1::RopeConfig config;
  for (const int64_t count : {2, 1, 1}) config.add_mrope_section(count);
  EXPECT_EQ(ReadRopeConfig(config)->mrope->layout, Mrope::Layout::kSections);
  config.set_mrope_interleaved(true);
  EXPECT_EQ(ReadRopeConfig(config)->mrope->layout, Mrope::Layout::kInterleaved);
  config.clear_mrope_interleaved();
  for (const auto& [layout, want] :
       {std::pair(v1::MROPE_LAYOUT_SECTIONS, Mrope::Layout::kSections),
        std::pair(v1::MROPE_LAYOUT_INTERLEAVED, Mrope::Layout::kInterleaved),
        std::pair(v1::MROPE_LAYOUT_HW_INTERLEAVED, Mrope::Layout::kHwInterleaved),
        std::pair(v1::MROPE_LAYOUT_AXIAL, Mrope::Layout::kAxial)}) {
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

TEST(RopeConfigTest, ExplicitFrequenciesAreNumbersOfTheirDType) {
  v1::RopeConfig config;
  v1::Array& array = *config.mutable_inv_freq();
  ExpectInvalid(config, "inv_freq: got no numbers");
  array.add_numbers(0.1);
  EXPECT_EQ(ReadRopeConfig(config)->inv_freq, std::vector<double>{0.1});
  array.set_dtype(v1::DTYPE_FP32);
  EXPECT_EQ(ReadRopeConfig(config)->inv_freq, std::vector<double>{0.1F});
  array.set_dtype(v1::DTYPE_BF16);
  ExpectInvalid(config, "inv_freq.dtype: got DTYPE_BF16, want DTYPE_FP64 or DTYPE_FP32");
  array.set_dtype(static_cast<v1::DType>(99));
  ExpectInvalid(config, "inv_freq.dtype: got number 99, want DTYPE_FP64 or DTYPE_FP32");
  array.set_dtype(v1::DTYPE_FP64);
  array.add_shape(2);
  ExpectInvalid(config, "inv_freq.shape: got [2], want one axis of its 1 numbers");
  array.set_shape(0, 1);
  array.add_strides(1);
  ExpectInvalid(config, "inv_freq: got strides, want packed numbers");
  array.set_raw("01234567");
  ExpectInvalid(config, "inv_freq: got raw bytes, want packed numbers");
}

TEST(RopeConfigTest, UnknownNumbersOfEnumsAreInvalid) {
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

TEST(RopeConfigTest, CompatAndPrecisionAreRead) {
  EXPECT_EQ(*ReadCompat(v1::COMPAT_UNSPECIFIED), Compat::kDefault);
  EXPECT_EQ(*ReadCompat(v1::COMPAT_HF), Compat::kHf);
  EXPECT_EQ(*ReadCompat(v1::COMPAT_VLLM), Compat::kVllm);
  EXPECT_EQ(*ReadCompat(v1::COMPAT_LLAMACPP), Compat::kLlamacpp);
  EXPECT_EQ(*ReadCompat(v1::COMPAT_DEEPSEEK), Compat::kDeepseek);
  EXPECT_EQ(*ReadPrecision(v1::PRECISION_UNSPECIFIED), Precision::kExact);
  EXPECT_EQ(*ReadPrecision(v1::PRECISION_EXACT), Precision::kExact);
  EXPECT_EQ(*ReadPrecision(v1::PRECISION_HF), Precision::kHf);
  EXPECT_THAT(ReadCompat(static_cast<v1::Compat>(5)), IsInvalid("rope.compat: got 5"));
  EXPECT_THAT(ReadPrecision(static_cast<v1::Precision>(3)), IsInvalid("rope.precision: got 3"));
}

TEST(RopeConfigTest, EachPairingIsItself) {
  for (const auto pairing : {v1::PAIRING_UNSPECIFIED, v1::PAIRING_HALF, v1::PAIRING_INTERLEAVED}) {
    ASSERT_OK(read, ReadPairing(pairing));
    EXPECT_EQ(WritePairing(*read), pairing);
  }
  EXPECT_THAT(*ReadPairing(v1::PAIRING_HALF), Eq(Pairing::kHalf));
}

TEST(RopeConfigTest, UnknownPairingIsInvalid) {
  EXPECT_THAT(ReadPairing(static_cast<v1::Pairing>(9)), IsInvalid("rope.pairing: got 9"));
}

}  // namespace
}  // namespace rope::proto
