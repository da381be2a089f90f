// The backend over the fake driver. tests/conformance runs the contract suite over it too.
#include "kernels/backend/cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include <cstring>
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

// Moves a rotation's tensor to another kind of memory for one call.
class Moved {
 public:
  Moved(MemoryKind kind, const void* original, int64_t bytes)
      : kind_(kind), original_(static_cast<char*>(const_cast<void*>(original))), bytes_(bytes) {
    void* memory = original_;
    if (kind == MemoryKind::kDevice) Cuda().cuMemAlloc(&memory, static_cast<size_t>(bytes));
    data_ = static_cast<char*>(memory);
    if (kind != MemoryKind::kHost) std::memcpy(data_, original_, static_cast<size_t>(bytes));
  }
  ~Moved() {
    if (kind_ == MemoryKind::kHost) return;
    std::memcpy(original_, data_, static_cast<size_t>(bytes_));
    Cuda().cuMemFree(data_);
  }
  Moved(const Moved&) = delete;
  Moved& operator=(const Moved&) = delete;

  char* data() const { return data_; }

 private:
  const MemoryKind kind_;
  char* const original_;
  const int64_t bytes_;
  char* data_;
};

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

  // Rotates from one kind of memory to another. Returns the errors in the result.
  std::string RotateBetween(const RotationSpec& spec, MemoryKind from, MemoryKind to) {
    const Rotation rotation(spec);
    RotateJob job = rotation.job();
    const int64_t bytes = ((job.tokens - 1) * job.input_strides.token +
                           (job.heads - 1) * job.input_strides.head + job.head_dim) *
                          ElementBytes(job.dtype);
    {
      const Moved input(from, job.input, bytes);
      const Moved output(spec.in_place ? MemoryKind::kHost : to, job.output, bytes);
      job.input = input.data();
      job.output = spec.in_place ? input.data() : output.data();
      job.input_memory = from;
      job.output_memory = spec.in_place ? from : to;
      const absl::Status status = backend_->Rotate({&job, 1});
      if (!status.ok()) return status.ToString();
    }
    return rotation.Check();
  }

  std::unique_ptr<Backend> backend_;
};

// Heads of 128 channels, in bf16.
RotationSpec Large(int64_t tokens = 2000) {
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

TEST_F(CudaBackendTest, TensorsInHostAndDeviceMemoryInEveryLayout) {
  constexpr MemoryKind kKinds[] = {MemoryKind::kHost, MemoryKind::kDevice};
  for (const auto layout : {RotationSpec::Layout::kTokenMajor, RotationSpec::Layout::kHeadMajor,
                            RotationSpec::Layout::kPadded}) {
    for (const int64_t tokens : {3, 200}) {
      for (const MemoryKind from : kKinds) {
        RotationSpec spec = Large(tokens);
        spec.layout = layout;
        spec.in_place = true;
        EXPECT_EQ(RotateBetween(spec, from, from), "") << static_cast<int>(from);
        spec.in_place = false;
        for (const MemoryKind to : kKinds) {
          EXPECT_EQ(RotateBetween(spec, from, to), "")
              << static_cast<int>(from) << " to " << static_cast<int>(to);
        }
      }
    }
  }
}

// Vectors more than 4 GiB apart, in place. Only the touched pages of the memory exist.
TEST_F(CudaBackendTest, DistancesPast32Bits) {
  constexpr int64_t kToken = (int64_t{1} << 31) + 8;  // elements of 2 bytes
  constexpr int64_t kHeadDim = 16;
  void* memory = nullptr;
  ASSERT_EQ(Cuda().cuMemAlloc(&memory, 2 * (kToken + 2 * kHeadDim)), CudaError::kSuccess);
  auto* const data = static_cast<uint16_t*>(memory);
  std::memset(data + kToken, 0, 4 * kHeadDim);
  data[kToken + kHeadDim] = 0x3f80;  // 1, the second token's second head
  const TablePage page(1, kHeadDim / 2, std::vector<float>(kHeadDim, 0.5F));
  const std::vector<RowRef> rows(2, RowRef{&page, 0});
  RotateJob job;
  job.input = job.output = memory;
  job.input_memory = job.output_memory = MemoryKind::kDevice;
  job.input_strides = job.output_strides = {kToken, kHeadDim};
  job.tokens = job.heads = 2;
  job.head_dim = kHeadDim;
  job.dtype = DType::kBFloat16;
  job.geometry = WholeHead(Pairing::kHalf, kHeadDim);
  job.rows = rows;
  EXPECT_THAT(backend_->Rotate({&job, 1}), IsOk());
  EXPECT_EQ(data[kToken + kHeadDim], 0x3f00);                 // 1 * 0.5
  EXPECT_EQ(data[kToken + kHeadDim + kHeadDim / 2], 0x3f00);  // 1 * 0.5
  EXPECT_EQ(data[kToken], 0);
  Cuda().cuMemFree(memory);
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

// The fake driver aborts if a stream still has a copy of freed memory.
TEST_F(CudaBackendTest, AfterAnErrorNothingTouchesTheCallersMemory) {
  fake_cuda::Fail("cuMemcpyAsync", 2, CudaError::kOutOfMemory);  // the copy back
  EXPECT_THAT(RotateBetween(Large(100), MemoryKind::kDevice, MemoryKind::kHost),
              HasSubstr("cuda: cuMemcpyAsync"));
  EXPECT_EQ(RotateBetween(Large(100), MemoryKind::kDevice, MemoryKind::kDevice), "");
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
