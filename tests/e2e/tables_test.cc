// Both classic forms of the table through a real server: the sinusoidal table that is added, and
// the complex table that multiplies.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <random>
#include <vector>

#include "rope/client.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using client::Client;
using client::DescribeRequest;
using client::Operation;
using client::Pairing;
using client::RotateRequest;

std::vector<float> RandomValues(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-3, 3);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(random);
  return values;
}

// theta 10000 over all channels of a tensor without heads, from position 0.
RotateRequest Classic(const std::vector<float>& values, int64_t tokens, Pairing pairing) {
  const auto channels = static_cast<int64_t>(values.size()) / tokens;
  RotateRequest request;
  request.rope.config = client::RopeConfig{.rope_theta = 10000};
  request.rope.pairing = pairing;
  request.positions.start = 0;
  request.tensors = {{.layout = "SD", .shape = {tokens, channels}, .data = values.data()}};
  return request;
}

class TablesTest : public ::testing::Test {
 protected:
  std::vector<float> Rotate(const RotateRequest& request) {
    const auto reply = client_.Rotate(request);
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    if (!reply.ok()) return {};
    const auto* const begin = static_cast<const float*>(reply->tensors[0].data);
    return {begin, begin + reply->tensors[0].bytes / 4};
  }

  TestServer server_;
  Client client_ = *Client::Connect(server_.address());
};

// PE(p, 2i) = sin(p / 10000^(2i/D)), PE(p, 2i + 1) = cos; or all sines, then all cosines.
TEST_F(TablesTest, SinusoidalTableIsAddedToAHeadlessTensor) {
  constexpr int64_t kTokens = 4096, kChannels = 1024;
  const std::vector<float> values = RandomValues(kTokens * kChannels, 1);
  for (const Pairing pairing : {Pairing::kInterleaved, Pairing::kHalf}) {
    RotateRequest request = Classic(values, kTokens, pairing);
    request.operation = Operation::kAddSinusoidal;
    const std::vector<float> got = Rotate(request);
    ASSERT_EQ(got.size(), values.size());
    long double worst = 0;  // of error over tolerance
    for (int64_t i = 0; i < kChannels / 2; ++i) {
      const long double inv_freq = std::pow(10000.0L, -2 * static_cast<long double>(i) / kChannels);
      const bool half = pairing == Pairing::kHalf;
      const auto first = static_cast<size_t>(half ? i : 2 * i);
      const size_t second = first + static_cast<size_t>(half ? kChannels / 2 : 1);
      for (int64_t p = 0; p < kTokens; ++p) {
        const auto row = static_cast<size_t>(p * kChannels);
        const long double angle = static_cast<long double>(p) * inv_freq;
        for (const auto& [channel, entry] :
             {std::pair(row + first, std::sin(angle)), std::pair(row + second, std::cos(angle))}) {
          const long double tolerance = 1.5e-7L * (std::abs(values[channel]) + 1);
          worst = std::max(worst, std::abs(got[channel] - (values[channel] + entry)) / tolerance);
        }
      }
    }
    EXPECT_LE(worst, 1);
  }
}

TEST_F(TablesTest, DescribeGivesWhatIsAdded) {
  const std::vector<float> zeros(5 * 64);
  for (const Pairing pairing : {Pairing::kInterleaved, Pairing::kHalf}) {
    RotateRequest request = Classic(zeros, 5, pairing);
    request.operation = Operation::kAddSinusoidal;
    const std::vector<float> got = Rotate(request);
    ASSERT_OK(reply, client_.Describe({.rope = request.rope,
                                       .positions = {0, 1, 2, 3, 4},
                                       .head_dim = 64,
                                       .sinusoidal = true}));
    for (size_t p = 0; p < 5; ++p) {
      ASSERT_EQ(reply->rows[p].sinusoid.size(), 64);
      for (size_t channel = 0; channel < 64; ++channel) {
        EXPECT_NEAR(got[64 * p + channel], reply->rows[p].sinusoid[channel], 6e-8) << channel;
      }
    }
  }
}

// (a + ib)(cos + i sin), with the rows of Describe as complex numbers, is the rotation.
TEST_F(TablesTest, ComplexMultiplicationWithTheTableIsTheRotation) {
  constexpr size_t kTokens = 65, kChannels = 80;
  const std::vector<float> values = RandomValues(kTokens * kChannels, 2);
  for (const Pairing pairing : {Pairing::kInterleaved, Pairing::kHalf}) {
    const RotateRequest request = Classic(values, kTokens, pairing);
    const std::vector<float> got = Rotate(request);
    ASSERT_EQ(got.size(), values.size());
    DescribeRequest describe{.rope = request.rope, .head_dim = kChannels};
    for (size_t p = 0; p < kTokens; ++p) describe.positions.push_back(static_cast<int64_t>(p));
    ASSERT_OK(reply, client_.Describe(describe));
    for (size_t p = 0; p < kTokens; ++p) {
      for (size_t i = 0; i < kChannels / 2; ++i) {
        const bool half = pairing == Pairing::kHalf;
        const size_t first = p * kChannels + (half ? i : 2 * i);
        const size_t second = first + (half ? kChannels / 2 : 1);
        using Complex = std::complex<long double>;
        const Complex turned = Complex(values[first], values[second]) *
                               Complex(reply->rows[p].cos[i], reply->rows[p].sin[i]);
        const double tolerance = 1.5e-7 * (std::abs(values[first]) + std::abs(values[second]));
        EXPECT_NEAR(got[first], static_cast<double>(turned.real()), tolerance);
        EXPECT_NEAR(got[second], static_cast<double>(turned.imag()), tolerance);
      }
    }
  }
}

}  // namespace
}  // namespace rope::testing
