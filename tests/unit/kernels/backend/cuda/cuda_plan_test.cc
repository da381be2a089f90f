#include "kernels/backend/cuda/cuda_plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/dtype/dtype.h"
#include "kernels/dtype/pairing.h"
#include "tests/support/matchers.h"

namespace rope::kernels {
namespace {

// Never read: the planner looks at addresses alone.
void* Address(uintptr_t address) {
  return reinterpret_cast<void*>(address);
}

// A whole head of bf16, not in place, of a shape that the vector kernel takes.
CudaJob Job(int64_t tokens, int64_t heads, uint32_t head_dim = 128) {
  CudaJob job;
  job.input = Address(1 << 20);
  job.output = Address(1 << 30);
  job.input_token = job.output_token = heads * head_dim;
  job.input_head = job.output_head = head_dim;
  job.tokens = static_cast<uint32_t>(tokens);
  job.heads = static_cast<uint32_t>(heads);
  job.head_dim = head_dim;
  job.pairs = job.partner = head_dim / 2;
  job.dtype = static_cast<uint32_t>(DType::kBFloat16);
  return job;
}

// Plans of lists.
CudaPlan PlanLists(const std::vector<CudaJob>& jobs) {
  return PlanCuda(jobs, {.rectangles = false});
}

CudaKernel KernelOf(const CudaJob& job) {
  const CudaPlan plan = PlanLists({job});
  EXPECT_THAT(plan.launches, SizeIs(1));
  return plan.launches.at(0).kernel;
}

TEST(CudaPlanTest, NoWorkIsNoLaunch) {
  CudaJob nothing_turns = Job(3, 2);
  nothing_turns.pairs = nothing_turns.partner = 0;
  nothing_turns.output = const_cast<void*>(nothing_turns.input);
  const CudaPlan plan = PlanCuda({Job(0, 5), Job(5, 0), nothing_turns});
  EXPECT_THAT(plan.jobs, SizeIs(0));
  EXPECT_THAT(plan.launches, SizeIs(0));
  EXPECT_FALSE(plan.rectangle.has_value());
}

TEST(CudaPlanTest, EveryDTypePairingAndLengthSharesOneLaunch) {
  std::vector<CudaJob> jobs;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
      CudaJob job = Job(static_cast<int64_t>(1 + 40 * jobs.size()), 3, 64);
      job.dtype = static_cast<uint32_t>(dtype);
      job.pairing = static_cast<uint32_t>(pairing);
      jobs.push_back(job);
    }
  }
  const CudaPlan plan = PlanLists(jobs);
  ASSERT_THAT(plan.launches, SizeIs(1));
  EXPECT_THAT(plan.jobs, SizeIs(jobs.size()));
  uint32_t blocks = 0;
  for (const CudaJob& job : plan.jobs) {
    EXPECT_EQ(job.first_block, blocks);
    EXPECT_EQ(job.items, job.tokens * job.head_groups * job.chunks);
    const uint32_t per_block = plan.launches[0].threads;
    blocks += (job.items + per_block - 1) / per_block;
  }
  EXPECT_EQ(plan.launches[0].blocks, blocks);
}

TEST(CudaPlanTest, OddJobsShareASecondLaunch) {
  const CudaPlan plan = PlanLists({Job(1, 1, 250), Job(1, 1, 128), Job(2, 2, 6), Job(3, 1, 64)});
  ASSERT_THAT(plan.launches, SizeIs(2));
  EXPECT_EQ(plan.launches[0].kernel, CudaKernel::kVector);
  EXPECT_EQ(plan.launches[0].jobs, 2u);
  EXPECT_EQ(plan.launches[1].kernel, CudaKernel::kScalar);
  EXPECT_EQ(plan.launches[1].first_job, 2u);
  EXPECT_EQ(plan.launches[1].jobs, 2u);
  EXPECT_EQ(plan.jobs[2].head_dim, 250u);
  EXPECT_EQ(plan.jobs[2].first_block, 0u);
}

TEST(CudaPlanTest, AnythingThatIsNoMultipleOfAVectorIsScalar) {
  EXPECT_EQ(KernelOf(Job(3, 2)), CudaKernel::kVector);
  const auto changed = [](const auto& change) {
    CudaJob job = Job(3, 2);
    change(job);
    return KernelOf(job);
  };
  EXPECT_EQ(changed([](CudaJob& job) { job.input = Address((1 << 20) + 8); }), CudaKernel::kScalar);
  EXPECT_EQ(changed([](CudaJob& job) { job.output = Address((1 << 30) + 2); }),
            CudaKernel::kScalar);
  EXPECT_EQ(changed([](CudaJob& job) { job.input_token += 4; }), CudaKernel::kScalar);
  EXPECT_EQ(changed([](CudaJob& job) { job.output_token += 1; }), CudaKernel::kScalar);
  EXPECT_EQ(changed([](CudaJob& job) { job.input_head += 4; }), CudaKernel::kScalar);
  EXPECT_EQ(changed([](CudaJob& job) { job.output_head += 4; }), CudaKernel::kScalar);
  EXPECT_EQ(changed([](CudaJob& job) { job.pairs = job.partner = 20; }), CudaKernel::kScalar);
  EXPECT_EQ(changed([](CudaJob& job) { job.pairs = 16, job.partner = 20; }), CudaKernel::kScalar);
  EXPECT_EQ(changed([](CudaJob& job) { job.pairs = job.partner = 16, job.offset = 4; }),
            CudaKernel::kScalar);
  // What is not read does not count.
  EXPECT_EQ(changed([](CudaJob& job) { job.tokens = 1, job.input_token = 3; }),
            CudaKernel::kVector);
  EXPECT_EQ(changed([](CudaJob& job) { job.pairs = 0, job.partner = 3; }), CudaKernel::kVector);
}

TEST(CudaPlanTest, AnythingBesideTheRotationIsAThirdLaunch) {
  static constexpr float kOnes[1] = {1};  // an address; not read
  const auto changed = [](const auto& change) {
    CudaJob job = Job(3, 2);
    change(job);
    return KernelOf(job);
  };
  EXPECT_EQ(changed([](CudaJob& job) { job.norm = 1; }), CudaKernel::kFused);
  EXPECT_EQ(changed([](CudaJob& job) { job.scale = 2; }), CudaKernel::kFused);
  EXPECT_EQ(changed([](CudaJob& job) { job.token_scales = kOnes; }), CudaKernel::kFused);
  EXPECT_EQ(changed([](CudaJob& job) { job.output_scale = 2; }), CudaKernel::kFused);
  EXPECT_EQ(
      changed([](CudaJob& job) { job.output_dtype = static_cast<uint32_t>(DType::kFloat16); }),
      CudaKernel::kFused);
  EXPECT_EQ(
      changed([](CudaJob& job) { job.output_dtype = static_cast<uint32_t>(DType::kBFloat16); }),
      CudaKernel::kVector);
  CudaJob scaled = Job(1, 1);
  scaled.scale = 2;
  EXPECT_THAT(PlanLists({scaled, Job(1, 1, 250), Job(1, 1)}).launches, SizeIs(3));
}

// A norm reads a head before any of it changes: in place, threads must not share one.
TEST(CudaPlanTest, ANormLeavesTheWholeHeadToOneThread) {
  CudaJob job = Job(3, 2);
  job.output = const_cast<void*>(job.input);
  job.scale = 2;
  EXPECT_EQ(PlanLists({job}).jobs.at(0).chunks, 64u);
  job.pairs = job.partner = 16;
  EXPECT_EQ(PlanLists({job}).jobs.at(0).chunks, 16u + 96u);  // the others are scaled too
  job.norm = 1;
  EXPECT_EQ(PlanLists({job}).jobs.at(0).chunks, 1u);
}

TEST(CudaPlanTest, ElementsOffTheirOwnSizeAreForTheKernelThatReadsBytes) {
  CudaJob job = Job(3, 2);
  job.input = Address((1 << 20) + 2);
  EXPECT_EQ(KernelOf(job), CudaKernel::kScalar);
  job.input = Address((1 << 20) + 1);
  EXPECT_EQ(KernelOf(job), CudaKernel::kFused);
  job.input = Address(1 << 20);
  job.dtype = static_cast<uint32_t>(DType::kFloat32);
  job.output = Address((1 << 30) + 2);
  EXPECT_EQ(KernelOf(job), CudaKernel::kFused);
}

TEST(CudaPlanTest, InPlaceLeavesOutWhatIsNotTurned) {
  CudaJob job = Job(3, 2, 256);
  job.pairs = job.partner = 32;
  EXPECT_EQ(PlanLists({job}).jobs.at(0).chunks, 4u + 12u);  // 24 vectors, two to an item
  job.output = const_cast<void*>(job.input);
  EXPECT_EQ(PlanLists({job}).jobs.at(0).chunks, 4u);
}

TEST(CudaPlanTest, FewTokensSpreadOverHeadsAndManyWalkOverThem) {
  const CudaPlan one = PlanLists({Job(1, 40)});
  EXPECT_EQ(one.launches.at(0).threads, kCudaThreadsFew);
  EXPECT_EQ(one.launches.at(0).blocks, 5u);  // 40 heads x 8 pieces
  EXPECT_EQ(one.jobs.at(0).head_groups, 40u);

  const CudaPlan many = PlanLists({Job(131072, 32), Job(131072, 8), Job(131072, 1)});
  EXPECT_EQ(many.launches.at(0).threads, kCudaThreads);
  EXPECT_EQ(many.jobs.at(0).head_groups, 32 / kCudaHeadsPerThread);
  EXPECT_EQ(many.jobs.at(1).head_groups, 1u);
  EXPECT_EQ(many.jobs.at(2).head_groups, 1u);
}

TEST(CudaPlanDeathTest, MoreItemsThanKernelsCountAreABug) {
  EXPECT_EQ(PlanLists({Job(1 << 27, 2)}).jobs.size(), 1u);
  EXPECT_DEATH(PlanLists({Job(1 << 28, 8)}), "");
}

// --- rectangles ---

bool IsRectangle(const std::vector<CudaJob>& jobs) {
  const CudaPlan plan = PlanCuda(jobs);
  EXPECT_TRUE(!plan.rectangle.has_value() || (plan.jobs.empty() && plan.launches.empty()));
  return plan.rectangle.has_value();
}

TEST(CudaPlanTest, QAndKOfARequestAreARectangle) {
  const CudaRectangleLaunch launch = *PlanCuda({Job(100000, 32), Job(100000, 8)}).rectangle;
  EXPECT_EQ(CudaRectangleName(launch.kernel), "RectangleTurnBFloat16Half");
  EXPECT_EQ(launch.threads.x, 8u) << "64 pairs";
  EXPECT_EQ(launch.threads.y, 8u) << "heads, so that none of q's or k's blocks has more";
  EXPECT_EQ(launch.threads.z, 2u) << "tokens, up to 128 threads";
  EXPECT_EQ(launch.blocks.x, 4u + 1u);
  EXPECT_EQ(launch.work.jobs[1].first_block, 4u);
  EXPECT_EQ(launch.work.jobs[2].first_block, kCudaNoBlock);
  EXPECT_EQ(launch.blocks.y, 50000u);
  EXPECT_EQ(launch.blocks.z, 1u);
  EXPECT_FALSE(IsRectangle({Job(7, 32), Job(8, 8)})) << "other tokens";
  EXPECT_TRUE(IsRectangle(std::vector<CudaJob>(4, Job(7, 32))));
  EXPECT_FALSE(IsRectangle(std::vector<CudaJob>(5, Job(7, 32)))) << "more than four tensors";
}

TEST(CudaPlanTest, FewTokensSpreadOverSmallBlocks) {
  const CudaRectangleLaunch launch = *PlanCuda({Job(1, 32), Job(1, 8)}).rectangle;
  EXPECT_EQ(launch.threads.x * launch.threads.y * launch.threads.z, kCudaThreadsFew);
  EXPECT_EQ(launch.blocks.x, 5u);
}

// More blocks of tokens than CUDA has in one dimension of a grid.
TEST(CudaPlanTest, AGridHasEveryToken) {
  for (const int64_t tokens : {65535 * 2 + 1, 1 << 24, (1 << 29) + 3}) {
    const CudaRectangleLaunch launch = *PlanCuda({Job(tokens, 8)}).rectangle;
    EXPECT_LE(launch.blocks.y, 65535u);
    EXPECT_LE(launch.blocks.z, 65535u);
    EXPECT_GE(int64_t{launch.blocks.y} * launch.blocks.z * launch.threads.z, tokens);
  }
}

TEST(CudaPlanTest, WhatARectangleCannotHave) {
  alignas(16) static constexpr float kNumbers[8] = {};
  const auto changed = [](const auto& change) {
    CudaJob job = Job(3, 2);
    change(job);
    return IsRectangle({job});
  };
  const auto other = [](const auto& change) {
    std::vector<CudaJob> jobs = {Job(3, 2), Job(3, 2)};
    change(jobs[1]);
    return IsRectangle(jobs);
  };
  // What the vector kernel cannot, and what another kernel has.
  EXPECT_FALSE(changed([](CudaJob& job) { job.input = Address((1 << 20) + 8); }));
  EXPECT_FALSE(changed([](CudaJob& job) { job.pairs = job.partner = 20; }));
  EXPECT_FALSE(
      changed([](CudaJob& job) { job.arithmetic = static_cast<uint32_t>(PairArithmetic::kAdd); }));
  EXPECT_FALSE(changed([](CudaJob& job) { job.output_scale = 2; }));
  EXPECT_FALSE(
      changed([](CudaJob& job) { job.output_dtype = static_cast<uint32_t>(DType::kFloat16); }));
  EXPECT_FALSE(changed([](CudaJob& job) {
    job.arithmetic = static_cast<uint32_t>(PairArithmetic::kTurnStepwise);
    job.scale = 2;
  }));
  // The rows, and the weights, are read 16 bytes at a time.
  EXPECT_FALSE(changed([](CudaJob& job) { job.rows = kNumbers + 1; }));
  EXPECT_FALSE(changed([](CudaJob& job) { job.norm = 1, job.norm_weight = kNumbers + 1; }));
  // A head with a norm is a part of a warp.
  EXPECT_TRUE(changed([](CudaJob& job) { job.norm = 1; }));
  CudaJob six_threads = Job(3, 2, 96);
  EXPECT_TRUE(IsRectangle({six_threads}));
  six_threads.norm = 1;
  EXPECT_FALSE(IsRectangle({six_threads}));
  // Both tensors have one set of rows, one window and one kernel.
  EXPECT_TRUE(other([](CudaJob& job) { job.heads = 5; }));
  EXPECT_FALSE(other([](CudaJob& job) { job.rows = kNumbers; }));
  EXPECT_FALSE(other([](CudaJob& job) { job.scale = 2; }));
  EXPECT_FALSE(other([](CudaJob& job) { job.conjugate = 1; }));
  EXPECT_FALSE(other([](CudaJob& job) { job.dtype = static_cast<uint32_t>(DType::kFloat16); }));
}

TEST(CudaPlanTest, Float8IsReadEightBytesAtATimeAndOnlyTurned) {
  CudaJob job = Job(3, 2);
  job.dtype = static_cast<uint32_t>(DType::kFloat8E4M3);
  job.input = Address((1 << 20) + 8);
  EXPECT_TRUE(IsRectangle({job}));
  job.scale = 2;
  EXPECT_FALSE(IsRectangle({job}));
}

}  // namespace
}  // namespace rope::kernels
