// What holds for every rotation, whatever the numbers: norms, relative positions, the two pairings.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/frequencies.h"
#include "kernels/table_cache.h"
#include "tests/conformance/implementations.h"
#include "tests/support/status_matchers.h"

namespace rope::testing {
namespace {

using kernels::Pairing;

constexpr int64_t kDim = 128;
constexpr int64_t kHalf = kDim / 2;

std::vector<float> RandomHead(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> head(kDim);
  for (float& value : head) value = normal(random);
  return head;
}

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

class PropertyTest : public ::testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    kernels::RopeConfig config;
    config.rope_type = kernels::RopeType::kYarn;
    config.rope_theta = 150000;
    config.head_dim = kDim;
    config.factor = 32;
    config.original_max_position_embeddings = 4096;
    auto resolved = kernels::Resolve(config);
    ASSERT_THAT(resolved, IsOk());
    resolved_ = *resolved;
    frequencies_ = resolved_->ForSeqLen(1, kernels::Multiplier::kAttentionFactor);
  }

  std::vector<float> Rotate(const std::vector<float>& head, int64_t position, Pairing pairing) {
    kernels::TokenRows rows;
    EXPECT_THAT(tables_.AppendRows(*frequencies_, {&position, 1}, rows), IsOk());
    std::vector<float> output(head.size());
    kernels::RotateJob job;
    job.input = head.data();
    job.output = output.data();
    job.input_strides = job.output_strides = {kDim, kDim};
    job.tokens = job.heads = 1;
    job.head_dim = kDim;
    job.geometry = {pairing, kHalf, 0, kHalf};
    job.rows = rows.rows;
    EXPECT_THAT(backend_->Rotate({&job, 1}), IsOk());
    return output;
  }

  std::unique_ptr<kernels::Backend> backend_ = GetParam().make({.threads = 1});
  kernels::TableCache tables_{int64_t{1} << 22};
  std::shared_ptr<const kernels::ResolvedRope> resolved_;
  std::shared_ptr<const kernels::Frequencies> frequencies_;
};

TEST_P(PropertyTest, NormsScaleByTheAttentionFactor) {
  for (const int64_t position : {0, 1, 4095, 1000003, 1 << 30}) {
    const std::vector<float> head = RandomHead(static_cast<uint32_t>(position));
    const std::vector<float> turned = Rotate(head, position, Pairing::kHalf);
    const double ratio = std::sqrt(Dot(turned, turned) / Dot(head, head));
    EXPECT_NEAR(ratio, resolved_->attention_factor(), 1e-7) << position;
  }
}

TEST_P(PropertyTest, ProductsDependOnTheDifferenceOfPositionsAlone) {
  const std::vector<float> q = RandomHead(1);
  const std::vector<float> k = RandomHead(2);
  const double scale = std::sqrt(Dot(q, q) * Dot(k, k));
  for (const int64_t distance : {0, 1, 77, 4096}) {
    const double near = Dot(Rotate(q, distance, Pairing::kHalf), Rotate(k, 0, Pairing::kHalf));
    for (const int64_t shift : {1, 1000, 123456, 900000000}) {
      const double far =
          Dot(Rotate(q, distance + shift, Pairing::kHalf), Rotate(k, shift, Pairing::kHalf));
      EXPECT_NEAR(far, near, 1e-6 * scale) << distance << " + " << shift;
    }
    // The product is not merely constant.
    EXPECT_GT(std::fabs(near - Dot(q, k)), 1e-3) << distance;
  }
}

TEST_P(PropertyTest, InterleavedIsHalfWithItsChannelsPermuted) {
  const std::vector<float> half = RandomHead(3);
  std::vector<float> interleaved(kDim);
  for (size_t i = 0; i < kHalf; ++i) {
    interleaved[2 * i] = half[i];
    interleaved[2 * i + 1] = half[i + kHalf];
  }
  const std::vector<float> turned_half = Rotate(half, 4321, Pairing::kHalf);
  const std::vector<float> turned = Rotate(interleaved, 4321, Pairing::kInterleaved);
  for (size_t i = 0; i < kHalf; ++i) {
    EXPECT_EQ(turned[2 * i], turned_half[i]) << i;
    EXPECT_EQ(turned[2 * i + 1], turned_half[i + kHalf]) << i;
  }
}

TEST_P(PropertyTest, PositionZeroOnlyScales) {
  const std::vector<float> head = RandomHead(4);
  const std::vector<float> turned = Rotate(head, 0, Pairing::kInterleaved);
  const auto m = static_cast<float>(resolved_->attention_factor());
  for (size_t i = 0; i < kDim; ++i) EXPECT_FLOAT_EQ(turned[i], m * head[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(All, PropertyTest, ::testing::ValuesIn(Implementations()),
                         ImplementationName);

}  // namespace
}  // namespace rope::testing
