// The source of the kernels, run on the CPU: the order of blocks. The contract suite and the golden
// files run over the same source (tests/conformance/implementations.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/backend/cuda/cuda_plan.h"
#include "tests/support/fake_cuda_kernel.h"

namespace rope::kernels {
namespace {

// q of four heads and k of one, in float32. Outputs are poisoned.
class TilesTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 4 * 64 + 20;
  static constexpr int64_t kHeadDim = 128;
  static constexpr float kPoison = -7;

  // The tokens of each tensor that the first `blocks` blocks of the plan have written: their
  // number, or -1 if they are not the first ones.
  std::vector<int64_t> TokensAfter(const CudaPlan& plan, uint32_t blocks) {
    std::fill(output_.begin(), output_.end(), kPoison);
    const CudaLaunch& launch = plan.launches.at(0);
    rope::testing::RunCudaKernelOnCpu(launch.kernel, blocks, launch.threads, plan.jobs.data(),
                                      launch.jobs);
    std::vector<int64_t> tokens;
    for (const CudaJob& job : jobs_) {
      const auto* const first = static_cast<const float*>(job.output);
      const auto* const end = first + int64_t{job.tokens} * job.output_token;
      const auto* const written = std::find(first, end, kPoison);
      const bool whole = std::count(written, end, kPoison) == end - written;
      tokens.push_back(whole ? (written - first) / job.output_token : -1);
    }
    return tokens;
  }

  CudaJob Job(uint32_t heads, size_t first) {
    CudaJob job;
    job.input = input_.data() + first;
    job.output = output_.data() + first;
    job.rows = rows_.data();
    job.input_token = job.output_token = heads * kHeadDim;
    job.input_head = job.output_head = kHeadDim;
    job.tokens = kTokens;
    job.heads = heads;
    job.head_dim = kHeadDim;
    job.pairs = job.partner = kHeadDim / 2;
    return job;
  }

  static std::vector<float> Numbers(size_t count) {
    std::vector<float> numbers(count + 4);
    for (size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(i % 1009) / 512;
    return numbers;
  }

  std::vector<float> input_ = Numbers(kTokens * 5 * kHeadDim);
  std::vector<float> output_ = std::vector<float>(input_.size());
  std::vector<float> rows_ = Numbers(kTokens * kHeadDim);
  std::vector<CudaJob> jobs_ = {Job(4, 0), Job(1, kTokens * 4 * kHeadDim)};
};

TEST_F(TilesTest, QAndKTakeTurnsSoThatARowIsReadForBothAtOnce) {
  const CudaPlan plan = PlanCuda(jobs_, {.items_few = 0, .tile_tokens = 64});
  const uint32_t tile = plan.jobs.at(0).group_blocks;
  EXPECT_EQ(plan.jobs.at(1).tile_first, plan.jobs.at(0).tile_blocks);
  // A tile has 18 blocks of 4 tokens of q, and 9 blocks of 8 tokens of k.
  EXPECT_EQ(TokensAfter(plan, plan.jobs.at(0).tile_blocks), (std::vector<int64_t>{72, 0}));
  EXPECT_EQ(TokensAfter(plan, tile), (std::vector<int64_t>{72, 72}));
  EXPECT_EQ(TokensAfter(plan, 2 * tile), (std::vector<int64_t>{144, 144}));
  EXPECT_EQ(TokensAfter(plan, 4 * tile), (std::vector<int64_t>{kTokens, kTokens}));
  EXPECT_EQ(plan.launches.at(0).blocks, 4 * tile);
}

TEST_F(TilesTest, TurnsChangeNoResult) {
  EXPECT_EQ(TokensAfter(PlanCuda(jobs_), 1U << 16), (std::vector<int64_t>{kTokens, kTokens}));
  const std::vector<float> one_after_the_other = output_;
  for (const int64_t tile_tokens : {1, 7, 64, 100, 138}) {
    const CudaPlan plan = PlanCuda(jobs_, {.items_few = 0, .tile_tokens = tile_tokens});
    EXPECT_EQ(TokensAfter(plan, plan.launches.at(0).blocks),
              (std::vector<int64_t>{kTokens, kTokens}));
    EXPECT_EQ(output_, one_after_the_other) << tile_tokens;
  }
}

TEST_F(TilesTest, JobsOfOtherRowsAndOfFewTokensComeOneAfterTheOther) {
  for (const int64_t tile_tokens : {64, 139}) {
    if (tile_tokens == 64) jobs_[1].rows += 4;
    const CudaPlan plan = PlanCuda(jobs_, {.items_few = 0, .tile_tokens = tile_tokens});
    EXPECT_EQ(TokensAfter(plan, plan.jobs.at(1).first_block), (std::vector<int64_t>{kTokens, 0}));
    jobs_[1].rows = jobs_[0].rows;
  }
}

}  // namespace
}  // namespace rope::kernels
