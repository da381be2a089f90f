// What a text cannot show of keys: the rest is tests/conformance/cases/configs/keys.txt.
#include "kernels/identity/key_identity.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

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
