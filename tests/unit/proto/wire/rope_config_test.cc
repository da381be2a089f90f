#include "proto/wire/rope_config.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/filled_message.h"
#include "tests/support/status_matchers.h"

namespace rope::proto {
namespace {

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
    if (field->name().rfind("mrope", 0) == 0) continue;  // their rules are cases
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
}

TEST(RopeConfigTest, UnsetFieldsStayUnset) {
  ASSERT_OK(read, ReadRopeConfig(v1::RopeConfig()));
  EXPECT_EQ(*read, RopeConfig());
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
}

TEST(RopeConfigTest, EachPairingIsItself) {
  for (const auto pairing : {v1::PAIRING_UNSPECIFIED, v1::PAIRING_HALF, v1::PAIRING_INTERLEAVED}) {
    ASSERT_OK(read, ReadPairing(pairing));
    EXPECT_EQ(WritePairing(*read), pairing);
  }
  EXPECT_THAT(*ReadPairing(v1::PAIRING_HALF), Eq(Pairing::kHalf));
}

}  // namespace
}  // namespace rope::proto
