#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "kernels/describe.h"
#include "kernels/dtype/element.h"
#include "kernels/identity/key_identity.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A format, and the worth of its codes below the special ones: sign, exponent, fraction.
struct Format {
  const char* name;
  DType dtype;
  int digits;
  int bias;
  int sign;      // its bit
  int largest;   // the code of the largest finite number
  int infinity;  // the code after it; 0: the format has none
  bool saturates;

  double Worth(int code) const {
    const int fraction = code & ((1 << digits) - 1);
    const int exponent = (code & (sign - 1)) >> digits;
    const double magnitude = exponent == 0
                                 ? std::ldexp(fraction, 1 - bias - digits)
                                 : std::ldexp((1 << digits) + fraction, exponent - bias - digits);
    return code < sign ? magnitude : -magnitude;
  }
  double Widen(int code) const {
    const uint8_t bytes[] = {static_cast<uint8_t>(code), static_cast<uint8_t>(code >> 8)};
    return ReadElement(bytes, dtype);
  }
  int Narrow(double value) const {
    uint8_t bytes[2] = {};
    WriteElement(value, dtype, bytes);
    return bytes[0] | bytes[1] << 8;
  }
};

constexpr Format kFormats[] = {
    {"E4M3", DType::kFloat8E4M3, 3, 7, 0x80, 0x7e, 0, true},
    {"E5M2", DType::kFloat8E5M2, 2, 15, 0x80, 0x7b, 0x7c, true},
    {"Float16", DType::kFloat16, 10, 15, 0x8000, 0x7bff, 0x7c00, false},
    {"BFloat16", DType::kBFloat16, 7, 127, 0x8000, 0x7f7f, 0x7f80, false},
};

class FormatTest : public ::testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(All, FormatTest, ::testing::ValuesIn(kFormats),
                         [](const auto& format) { return std::string(format.param.name); });

TEST_P(FormatTest, EveryCodeHasItsWorthAndSurvivesTheRoundTrip) {
  const Format& format = GetParam();
  for (const int sign : {0, format.sign}) {
    for (int code = sign; code <= sign + format.largest; ++code) {
      EXPECT_EQ(format.Widen(code), format.Worth(code)) << code;
      EXPECT_EQ(format.Narrow(format.Worth(code)), code);
    }
  }
}

TEST_P(FormatTest, MidpointsGoToTheEvenCodeAndTheirNeighboursToTheNearest) {
  const Format& format = GetParam();
  const int last = format.saturates ? format.largest - 1 : format.largest;  // before infinity
  for (const int sign : {0, format.sign}) {
    for (int low = sign; low <= sign + last; ++low) {
      const double middle = (format.Worth(low) + format.Worth(low + 1)) / 2;
      EXPECT_EQ(format.Narrow(middle), low % 2 == 0 ? low : low + 1) << middle;
      EXPECT_EQ(format.Narrow(middle * (1 - 0x1p-50)), low) << middle;
      EXPECT_EQ(format.Narrow(middle * (1 + 0x1p-50)), low + 1) << middle;
    }
  }
}

TEST_P(FormatTest, WhatIsTooLargeSaturatesOrIsInfinite) {
  const Format& format = GetParam();
  const double largest = format.Worth(format.largest);
  const int want = format.saturates ? format.largest : format.infinity;
  for (const double value : {largest * 1.01, largest * 2, 1e300, kInfinity}) {
    EXPECT_EQ(format.Narrow(value), want);
    EXPECT_EQ(format.Narrow(-value), want | format.sign);
  }
}

TEST_P(FormatTest, OtherCodesAreInfinityAndNaNAndZeroKeepsItsSign) {
  const Format& format = GetParam();
  for (const int sign : {0, format.sign}) {
    for (int code = sign + format.largest + 1; code < sign + format.sign; ++code) {
      if (code - sign == format.infinity) {
        EXPECT_EQ(format.Widen(code), sign == 0 ? kInfinity : -kInfinity);
      } else {
        EXPECT_TRUE(std::isnan(format.Widen(code))) << code;
        EXPECT_TRUE(std::isnan(format.Widen(format.Narrow(format.Widen(code))))) << code;
      }
    }
  }
  EXPECT_TRUE(std::isnan(format.Widen(format.Narrow(-std::nan("0xfffff")))));
  EXPECT_EQ(format.Narrow(-0.0), format.sign);
  EXPECT_EQ(format.Narrow(-1e-300), format.sign);
}

TEST(ElementTest, EveryDTypeReadsWhatItWroteAtAnyAddressAndNothingBeside) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3,
                            DType::kFloat8E5M2}) {
    uint8_t bytes[8] = {7, 7, 7, 7, 7, 7, 7, 7};
    WriteElement(-1.75, dtype, bytes + 1);
    EXPECT_EQ(ReadElement(bytes + 1, dtype), -1.75) << Name(dtype);
    EXPECT_EQ(bytes[0], 7) << Name(dtype);
    EXPECT_EQ(bytes[1 + ElementBytes(dtype)], 7) << Name(dtype);
    EXPECT_NE(bytes[ElementBytes(dtype)], 7) << Name(dtype);
  }
}

TEST(ElementTest, OnlyEightBitTypesSaturateAndNotByNaN) {
  EXPECT_TRUE(Saturates(448.0001, DType::kFloat8E4M3));
  EXPECT_FALSE(Saturates(-448, DType::kFloat8E4M3));
  EXPECT_FALSE(Saturates(449, DType::kFloat8E5M2));
  EXPECT_TRUE(Saturates(-kInfinity, DType::kFloat8E5M2));
  EXPECT_FALSE(Saturates(std::nan(""), DType::kFloat8E5M2));
  EXPECT_FALSE(Saturates(kInfinity, DType::kFloat16));
}

TEST(ElementTest, WritingRoundsOnce) {
  uint8_t bytes[2] = {};
  // Just above a tie of binary16. Rounding to float first would give the tie, which rounds down.
  WriteElement(1 + 0x1p-11 + 0x1p-45, DType::kFloat16, bytes);
  EXPECT_EQ(ReadElement(bytes, DType::kFloat16), 1 + 0x1p-10);
}

TEST(CanonicalTextTest, ExactNumbersAndFieldsByName) {
  LayerRope rope;
  rope.layer.config.rope_theta = 0.1;
  rope.layer.config.rotary_dim = 64;
  rope.layer.config.inv_freq = {1, 0.5};
  rope.layer.layer_type = "full\nattention";
  rope.pairing = Pairing::kInterleaved;
  EXPECT_EQ(
      CanonicalText(rope),
      "rope.v1/config_id/3\nrope_type=0\nrope_theta=1.999999999999ap-4\nrotary_dim=64\n"
      "inv_freq=1p+0,1p-1,\nreverse=0\nprecision=0\npairing=1\nlayer_type=14:full\nattention\n"
      "rotates=1\n");
}

TEST(CanonicalTextTest, WhereTheConfigCameFromDoesNotCount) {
  LayerRope rope;
  rope.layer.names.model_type = "llama";
  rope.layer.names.architectures = {"LlamaForCausalLM"};
  rope.layer.remarks = {{RemarkKind::kUnknownKey, "a note"}};
  rope.warnings = {"another"};
  rope.layer.pairing = Pairing::kHalf;  // of the model type; the caller's is rope.pairing
  rope.stated.rope_theta = 5;           // before `compat`
  EXPECT_EQ(CanonicalText(rope), CanonicalText({}));
}

// What a text cannot show of keys: the rest is tests/conformance/cases/configs/keys.txt.
constexpr char kLlama[] = R"({"model_type": "llama", "head_dim": 64, "rope_theta": 500000})";

// As a caller gets it: the fingerprint stands for the text.
KeyIdentity IdentityOf(const KeyOptions& options) {
  const auto model = ModelConfig::Parse(kLlama);
  EXPECT_THAT(model, IsOk());
  auto key = IdentifyKey(*model, options);
  EXPECT_THAT(key, IsOk());
  key->identity.fingerprint = key->text;
  return key->identity;
}

TEST(KeyIdentityTest, AnEnginesFrequenciesAreFloat32) {
  const double exact = IdentityOf({}).rows[0].inv_freq[1];
  const double engine = IdentityOf({.engine = {.engine = "vllm"}}).rows[0].inv_freq[1];
  EXPECT_NE(exact, engine);
  EXPECT_EQ(engine, static_cast<float>(engine));
  EXPECT_NEAR(engine, exact, 1e-7);
}

TEST(CompareKeysTest, TheCallersPairingCountsInBothDirections) {
  const KeyIdentity half = IdentityOf({});
  const KeyIdentity interleaved = IdentityOf({.pairing = Pairing::kInterleaved});
  EXPECT_THAT(CompareKeys(half, interleaved).differences,
              ElementsAre("pairing: half | interleaved", "channel order: half | interleaved"));
  EXPECT_EQ(CompareKeys(half, interleaved).match, KeyMatch::kDifferent);
  EXPECT_EQ(CompareKeys(interleaved, half).match, KeyMatch::kDifferent);
  EXPECT_EQ(CompareKeys(half, half).match, KeyMatch::kSame);
}

// The identities show doubles; the text has every bit.
TEST(CompareKeysTest, ADifferenceBelowADoubleIsADifference) {
  const KeyIdentity a = IdentityOf({});
  KeyIdentity b = a;
  b.fingerprint += " ";
  EXPECT_EQ(CompareKeys(a, b).match, KeyMatch::kDifferent);
}

}  // namespace
}  // namespace rope::kernels
