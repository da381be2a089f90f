// The backend over the fake driver. tests/conformance runs the contract suite over it too.
#include "kernels/backend/cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/backend/cuda/cuda_batch.h"
#include "kernels/backend/cuda/cuda_driver.h"
#include "proto/error.h"
#include "tests/conformance/rotation.h"
#include "tests/support/fake_cuda_fixture.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using rope::testing::FakeCudaCounts;
using rope::testing::kIllegalAddress;
using rope::testing::kInvalidValue;
using rope::testing::kUnknown;
using rope::testing::Rotation;
using rope::testing::RotationSpec;
using rope::testing::WholeHead;
namespace fake_cuda = rope::testing::fake_cuda;

class CudaBackendTest : public rope::testing::FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    Create();
  }
  void TearDown() override {
    backend_.reset();
    FakeCudaTest::TearDown();
  }
  void Create() {
    auto backend = MakeCudaBackend();
    ASSERT_THAT(backend, IsOk());
    backend_ = *std::move(backend);
  }

  absl::Status Rotate(const Rotation& rotation) {
    const RotateJob job = rotation.job();
    return backend_->Rotate({&job, 1});
  }

  std::unique_ptr<Backend> backend_;
};

// Heads of 128 channels, in bf16.
RotationSpec Large(int64_t tokens) {
  return {.tokens = tokens,
          .heads = 20,
          .head_dim = 128,
          .dtype = DType::kBFloat16,
          .geometry = WholeHead(Pairing::kHalf, 128)};
}

// A decode step of three requests that differ in everything.
std::vector<Rotation> RaggedBatch() {
  std::vector<Rotation> rotations;
  rotations.emplace_back(RotationSpec{.tokens = 1,
                                      .heads = 40,
                                      .head_dim = 128,
                                      .dtype = DType::kBFloat16,
                                      .geometry = WholeHead(Pairing::kHalf, 128)});
  rotations.emplace_back(RotationSpec{.tokens = 7,
                                      .heads = 3,
                                      .head_dim = 96,
                                      .dtype = DType::kFloat16,
                                      .geometry = WholeHead(Pairing::kInterleaved, 96)});
  rotations.emplace_back(RotationSpec{.tokens = 33,
                                      .heads = 2,
                                      .head_dim = 80,
                                      .geometry = WholeHead(Pairing::kHalf, 80),
                                      .in_place = true});
  return rotations;
}

std::vector<RotateJob> JobsOf(const std::vector<Rotation>& rotations) {
  std::vector<RotateJob> jobs;
  for (const Rotation& rotation : rotations) jobs.push_back(rotation.job());
  return jobs;
}

TEST_F(CudaBackendTest, NamesItsDevice) {
  EXPECT_EQ(backend_->name(), "cuda:0");
  EXPECT_THAT(backend_->detail(), HasSubstr("Fake GPU"));
}

TEST_F(CudaBackendTest, RaggedBatchIsOneCopyInOneLaunchOneCopyOutAndOneSynchronisation) {
  const std::vector<Rotation> rotations = RaggedBatch();
  const FakeCudaCounts before = fake_cuda::Counts();
  ASSERT_THAT(backend_->Rotate(JobsOf(rotations)), IsOk());
  for (const Rotation& rotation : rotations) EXPECT_EQ(rotation.Check(), "");
  const FakeCudaCounts after = fake_cuda::Counts();
  EXPECT_EQ(after.launches - before.launches, 1);
  EXPECT_EQ(after.copies_in - before.copies_in, 1);
  EXPECT_EQ(after.copies_out - before.copies_out, 1);
  EXPECT_EQ(after.calls - before.calls, 5) << "others than kCallsOfABatch, which fail below";
}

TEST_F(CudaBackendTest, QAndKOfARequestAreOneLaunchOfTheKernelForRectangles) {
  fake_cuda::BreakKernel("RotateVector");
  const Rotation q(Large(33)), k(Large(33));  // with equal rows
  RotateJob jobs[] = {q.job(), k.job()};
  jobs[1].rows = jobs[0].rows;
  const int64_t launches = fake_cuda::Counts().launches;
  ASSERT_THAT(backend_->Rotate(jobs), IsOk());
  EXPECT_EQ(q.Check() + k.Check(), "");
  EXPECT_EQ(fake_cuda::Counts().launches - launches, 1);
}

TEST_F(CudaBackendTest, Float8IsForRectanglesOfWhichNobodyCountsWhatSaturates) {
  RotationSpec spec = Large(5);
  spec.dtype = DType::kFloat8E4M3;
  const Rotation rotation(spec);
  RotateJob job = rotation.job();
  EXPECT_EQ(proto::PartsOf(backend_->Rotate({&job, 1})).reason, proto::Reason::kNotBuilt);
  job.saturated = nullptr;
  const Rotation other(Large(1));
  const RotateJob uneven[] = {job, other.job()};
  EXPECT_EQ(proto::PartsOf(backend_->Rotate(uneven)).reason, proto::Reason::kNotBuilt);
  ASSERT_THAT(backend_->Rotate({&job, 1}), IsOk());
  EXPECT_EQ(rotation.Check(), "");
}

TEST_F(CudaBackendTest, OddHeadSizesTakeASecondLaunch) {
  std::vector<Rotation> rotations = RaggedBatch();
  for (const int64_t head_dim : {250, 6}) {
    rotations.emplace_back(RotationSpec{
        .tokens = 5, .head_dim = head_dim, .geometry = WholeHead(Pairing::kHalf, head_dim)});
  }
  const int64_t launches = fake_cuda::Counts().launches;
  ASSERT_THAT(backend_->Rotate(JobsOf(rotations)), IsOk());
  for (const Rotation& rotation : rotations) EXPECT_EQ(rotation.Check(), "");
  EXPECT_EQ(fake_cuda::Counts().launches - launches, 2);
}

TEST_F(CudaBackendTest, BatchLargerThanTheLaneRunsInParts) {
  const FakeCudaCounts before = fake_cuda::Counts();
  EXPECT_EQ(before.device_bytes, kCudaLaneBytes);
  EXPECT_EQ(before.pinned_bytes, kCudaLaneBytes);
  RotationSpec spec = Large(4000);
  spec.dtype = DType::kFloat32;  // 39 MiB
  const Rotation rotation(spec);
  ASSERT_THAT(Rotate(rotation), IsOk());
  EXPECT_EQ(rotation.Check(), "");
  const FakeCudaCounts after = fake_cuda::Counts();
  EXPECT_EQ(after.launches - before.launches, 2);
}

TEST_F(CudaBackendTest, BatchOfManyJobsTakesTheirListAlong) {
  std::vector<Rotation> rotations;
  for (uint32_t seed = 0; seed < 17; ++seed) {
    RotationSpec spec = Large(1);
    spec.seed = seed;
    rotations.emplace_back(spec);
  }
  const FakeCudaCounts before = fake_cuda::Counts();
  ASSERT_THAT(backend_->Rotate(JobsOf(rotations)), IsOk());
  for (const Rotation& rotation : rotations) EXPECT_EQ(rotation.Check(), "");
  EXPECT_EQ(fake_cuda::Counts().launches - before.launches, 1);
}

TEST_F(CudaBackendTest, ManyThreadsRotateAtOnce) {
  std::vector<std::string> wrong(6);
  std::vector<std::thread> threads;
  for (size_t caller = 0; caller < wrong.size(); ++caller) {
    threads.emplace_back([this, caller, &wrong] {
      for (uint32_t round = 0; round < 4 && wrong[caller].empty(); ++round) {
        RotationSpec spec = Large(caller % 2 == 0 ? 5 : 300);
        spec.seed = static_cast<uint32_t>(caller) * 10 + round;
        const Rotation rotation(spec);
        const absl::Status status = Rotate(rotation);
        wrong[caller] = status.ok() ? rotation.Check() : status.ToString();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, Each(""));
}

// The calls of a batch; FailingCallsTest fails each of them.
constexpr const char* kCallsOfABatch[] = {"cuCtxSetCurrent", "cuMemcpyAsync", "cuLaunchKernel",
                                          "cuStreamSynchronize"};

struct Class {
  CudaError error;
  proto::Reason reason;
  bool sticky;
};

class FailingCallsTest : public CudaBackendTest, public ::testing::WithParamInterface<Class> {};

INSTANTIATE_TEST_SUITE_P(
    Classes, FailingCallsTest,
    ::testing::Values(Class{CudaError::kOutOfMemory, proto::Reason::kBudgetFull, false},
                      Class{kInvalidValue, proto::Reason::kInternal, false},
                      Class{kUnknown, proto::Reason::kInternal, false},
                      Class{kIllegalAddress, proto::Reason::kDeviceFault, true},
                      Class{kUnknown, proto::Reason::kDeviceFault, true}));

// Fails each call of a batch at its first and second occurrence. The status has the error's class
// and names the call, or the batch ended before that call. After an error that does not last, the
// next batch is right; after one that lasts, every batch fails in its class.
TEST_P(FailingCallsTest, HaveTheirClassAtEachCall) {
  const Class& wanted = GetParam();
  for (const char* function : kCallsOfABatch) {
    for (const int nth : {1, 2}) {
      for (const int64_t tokens : {1, 400}) {
        Create();
        const Rotation failing(Large(tokens));
        fake_cuda::Fail(function, nth, wanted.error, wanted.sticky);
        const absl::Status status = Rotate(failing);
        if (nth == 1) {
          EXPECT_FALSE(status.ok()) << function;
        }
        if (status.ok()) {
          EXPECT_EQ(failing.Check(), "");
        } else {
          EXPECT_EQ(proto::PartsOf(status).reason, wanted.reason) << status;
          EXPECT_THAT(status.message(), HasSubstr("cuda: cu"));
          if (!wanted.sticky) {
            EXPECT_THAT(status.message(), HasSubstr(function));
          }
        }
        fake_cuda::Fail(function, 1 << 30, CudaError::kSuccess);  // no failure after this
        const Rotation next(Large(tokens));
        const absl::Status after = Rotate(next);
        if (wanted.sticky && !status.ok()) {
          EXPECT_EQ(proto::PartsOf(after).reason, wanted.reason) << after;
        } else {
          ASSERT_THAT(after, IsOk()) << function << " " << nth;
          EXPECT_EQ(next.Check(), "") << function << " " << nth;
        }
        backend_.reset();
        fake_cuda::Reset();
      }
    }
  }
}

// --- the start ---

class CudaStartTest : public rope::testing::FakeCudaTest {
 protected:
  static absl::Status Start() { return MakeCudaBackend().status(); }
};

TEST_F(CudaStartTest, TooLittleMemoryIsUnavailableWithWhatThereIsAndWhatIsWanted) {
  fake_cuda::SetMemory(9 << 20, int64_t{1} << 40);
  EXPECT_THAT(Start(),
              IsUnavailable("9 of 1024 MiB are free, want 80 MiB of device memory and as much "
                            "pinned memory (cuda: cuMemAlloc: out of memory)"));
  EXPECT_EQ(fake_cuda::Counts().device_bytes, 0);
}

TEST_F(CudaStartTest, EachKernelThatGivesWrongResultsIsNamed) {
  std::vector<std::string> kernels = {"RotateVector", "RotateScalar", "RotateFused"};
  for (uint32_t kernel = 0; kernel < kCudaRectangleKernels; ++kernel) {
    if (!CudaRectangleName(kernel).empty()) kernels.push_back(CudaRectangleName(kernel));
  }
  EXPECT_THAT(kernels, SizeIs(3 + 22));
  for (const std::string& kernel : kernels) {
    fake_cuda::BreakKernel(kernel);
    EXPECT_THAT(Start(), IsUnavailable("cuda: result 0 of " + kernel));
  }
}

}  // namespace
}  // namespace rope::kernels
