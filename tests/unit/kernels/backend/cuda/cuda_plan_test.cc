#include "kernels/backend/cuda/cuda_plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/dtype/dtype.h"
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
  job.dtype = job.output_dtype = static_cast<uint32_t>(DType::kBFloat16);
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

TEST(CudaPlanTest, EveryDTypePairingAndLengthSharesOneLaunch) {
  std::vector<CudaJob> jobs;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
      CudaJob job = Job(static_cast<int64_t>(1 + 40 * jobs.size()), 3, 64);
      job.dtype = job.output_dtype = static_cast<uint32_t>(dtype);
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

TEST(CudaPlanTest, ElementsOffTheirOwnSizeAreForTheKernelThatReadsBytes) {
  CudaJob job = Job(3, 2);
  job.input = Address((1 << 20) + 2);
  EXPECT_EQ(KernelOf(job), CudaKernel::kScalar);
  job.input = Address((1 << 20) + 1);
  EXPECT_EQ(KernelOf(job), CudaKernel::kFused);
  job.input = Address(1 << 20);
  job.dtype = job.output_dtype = static_cast<uint32_t>(DType::kFloat32);
  job.output = Address((1 << 30) + 2);
  EXPECT_EQ(KernelOf(job), CudaKernel::kFused);
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

}  // namespace
}  // namespace rope::kernels
