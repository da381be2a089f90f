#include "client/cli/local_describe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

TEST(LocalDescribeTest, PresetIsDescribedWithItsPairing) {
  ASSERT_OK(replies, DescribeHere({.rope = {.model = "llama-3.1-8b"}, .positions = {0, 7}}));
  ASSERT_THAT(*replies, SizeIs(1));
  const DescribeReply& reply = replies->front();
  EXPECT_EQ(reply.config.rope_type, RopeType::kLlama3);
  EXPECT_EQ(reply.config.rope_theta, 500000);
  EXPECT_EQ(reply.pairing, Pairing::kHalf);
  EXPECT_THAT(reply.inv_freq, SizeIs(64));
  EXPECT_THAT(reply.scaling, Contains(FrequencyScaling::kBlended));
  EXPECT_EQ(reply.seq_len, 8);
  ASSERT_THAT(reply.rows, SizeIs(2));
  EXPECT_DOUBLE_EQ(reply.rows[1].cos[0], std::cos(7.0));
}

TEST(LocalDescribeTest, UnknownPresetNamesTheNearest) {
  EXPECT_EQ(
      UnknownPreset("mistral-7b").message(),
      "--model: got \"mistral-7b\", want a preset of this program; --target asks a server for "
      "others; did you mean mistral-7b-v0.1 or mistral-7b-v0.3?");
  EXPECT_THAT(UnknownPreset("Kimi-K3").message(), EndsWith("for others"));
  EXPECT_THAT(UnknownPreset("nothing like it at all").message(), EndsWith("for others"));
}

}  // namespace
}  // namespace rope::client
