// The backend's object files, including nvcc's, over the fake runtime. tests/conformance runs the
// contract suite over the same objects.
#include "kernels/backend/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/backend/cuda/cuda_lanes.h"
#include "proto/error.h"
#include "tests/conformance/rotation.h"
#include "tests/support/fake_cudart_fixture.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using rope::testing::FakeCudaCounts;
using rope::testing::IsOk;
using rope::testing::Rotation;
using rope::testing::RotationSpec;
using rope::testing::StatusIs;
using rope::testing::WholeHead;
using ::testing::Each;
using ::testing::HasSubstr;
namespace fake_cuda = rope::testing::fake_cuda;

enum class Place { kHost, kPinned, kDevice, kOtherDevice };

// Moves a rotation's tensor to another kind of memory for one call.
class Moved {
 public:
  Moved(Place place, const void* original, int64_t bytes)
      : place_(place), original_(static_cast<char*>(const_cast<void*>(original))), bytes_(bytes) {
    void* memory = original_;
    if (place == Place::kPinned) cudaMallocHost(&memory, static_cast<size_t>(bytes));
    if (place == Place::kDevice || place == Place::kOtherDevice) {
      cudaMalloc(&memory, static_cast<size_t>(bytes));
    }
    data_ = static_cast<char*>(memory);
    if (place == Place::kOtherDevice) fake_cuda::MoveToDevice(data_, 1);
    if (place != Place::kHost) std::memcpy(data_, original_, static_cast<size_t>(bytes));
  }
  ~Moved() {
    if (place_ == Place::kHost) return;
    std::memcpy(original_, data_, static_cast<size_t>(bytes_));
    place_ == Place::kPinned ? cudaFreeHost(data_) : cudaFree(data_);
  }
  Moved(const Moved&) = delete;
  Moved& operator=(const Moved&) = delete;

  char* data() const { return data_; }

 private:
  const Place place_;
  char* const original_;
  const int64_t bytes_;
  char* data_;
};

class CudaBackendTest : public rope::testing::FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    Create(2);
  }
  void TearDown() override {
    backend_.reset();
    FakeCudaTest::TearDown();
  }
  void Create(int threads) {
    auto backend = MakeCudaBackend({.threads = threads});
    ASSERT_THAT(backend, IsOk());
    backend_ = *std::move(backend);
  }

  absl::Status Rotate(const Rotation& rotation) {
    const RotateJob job = rotation.job();
    return backend_->Rotate({&job, 1});
  }
  // Rotates from one kind of memory to another. Returns the errors in the result.
  std::string RotateBetween(const RotationSpec& spec, Place from, Place to) {
    const Rotation rotation(spec);
    RotateJob job = rotation.job();
    const int64_t bytes = ((job.tokens - 1) * job.input_strides.token +
                           (job.heads - 1) * job.input_strides.head + job.head_dim) *
                          ElementBytes(job.dtype);
    {
      const Moved input(from, job.input, bytes);
      const Moved output(spec.in_place ? Place::kHost : to, job.output, bytes);
      job.input = input.data();
      job.output = spec.in_place ? input.data() : output.data();
      const absl::Status status = backend_->Rotate({&job, 1});
      if (!status.ok()) return status.ToString();
    }
    return rotation.Check();
  }

  std::unique_ptr<Backend> backend_;
};

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

RotationSpec Large(int64_t tokens = 2000) {
  return {.tokens = tokens,
          .heads = 20,
          .head_dim = 128,
          .dtype = DType::kBFloat16,
          .geometry = WholeHead(Pairing::kHalf, 128)};
}

TEST_F(CudaBackendTest, NamesItsDevice) {
  EXPECT_EQ(backend_->name(), "cuda:0");
  EXPECT_THAT(backend_->detail(), HasSubstr("Fake GPU"));
}

TEST_F(CudaBackendTest, RaggedBatchIsOneCopyInOneLaunchAndOneCopyOut) {
  const std::vector<Rotation> cold = RaggedBatch();
  const std::vector<RotateJob> jobs = JobsOf(cold);
  ASSERT_THAT(backend_->Rotate(jobs), IsOk());
  for (const Rotation& rotation : cold) EXPECT_EQ(rotation.Check(), "");
  const FakeCudaCounts before = fake_cuda::Counts();
  EXPECT_EQ(before.launches, 1);
  EXPECT_EQ(before.copies_in, 1 + 1);  // the batch and its new pages
  EXPECT_EQ(before.copies_out, 1);
  ASSERT_THAT(backend_->Rotate(jobs), IsOk());
  const FakeCudaCounts after = fake_cuda::Counts();
  EXPECT_EQ(after.launches - before.launches, 1);
  EXPECT_EQ(after.copies_in - before.copies_in, 1);
  EXPECT_EQ(after.copies_out - before.copies_out, 1);
  EXPECT_EQ(after.streams, before.streams);
}

TEST_F(CudaBackendTest, NeighboursOfOneShapeKeepTheirOwnRows) {
  std::vector<Rotation> rotations;
  for (const uint32_t seed : {1, 2}) {
    RotationSpec spec = Large(4);
    spec.seed = seed;
    rotations.emplace_back(spec);
  }
  ASSERT_THAT(backend_->Rotate(JobsOf(rotations)), IsOk());
  for (const Rotation& rotation : rotations) EXPECT_EQ(rotation.Check(), "");
}

TEST_F(CudaBackendTest, OddHeadSizesTakeASecondLaunch) {
  std::vector<Rotation> rotations = RaggedBatch();
  for (const int64_t head_dim : {250, 6}) {
    rotations.emplace_back(RotationSpec{
        .tokens = 5, .head_dim = head_dim, .geometry = WholeHead(Pairing::kHalf, head_dim)});
  }
  ASSERT_THAT(backend_->Rotate(JobsOf(rotations)), IsOk());
  for (const Rotation& rotation : rotations) EXPECT_EQ(rotation.Check(), "");
  EXPECT_EQ(fake_cuda::Counts().launches, 2);
}

TEST_F(CudaBackendTest, LargeBatchFlowsOverSeveralLanes) {
  const Rotation rotation(Large());
  ASSERT_THAT(Rotate(rotation), IsOk());
  EXPECT_EQ(rotation.Check(), "");
  const FakeCudaCounts counts = fake_cuda::Counts();
  EXPECT_GT(counts.streams, 2);
  EXPECT_GT(counts.launches, 4);
  EXPECT_LE(counts.pinned_bytes_most, 6 * kCudaLaneBytes + (1 << 20));
  EXPECT_LE(counts.device_bytes_most, 6 * kCudaLaneBytes + kCudaMirrorBytes);
}

TEST_F(CudaBackendTest, VectorLargerThanALaneIsRotated) {
  const Rotation rotation({.tokens = 1,
                           .heads = 2,
                           .head_dim = 1 << 19,
                           .geometry = WholeHead(Pairing::kInterleaved, 1 << 19)});
  ASSERT_THAT(Rotate(rotation), IsOk());
  EXPECT_EQ(rotation.Check(), "");
  EXPECT_LE(fake_cuda::Counts().pinned_bytes, 6 * kCudaLaneBytes + (1 << 20));
}

TEST_F(CudaBackendTest, TensorsInEveryKindOfMemoryInEveryLayout) {
  constexpr Place kPlaces[] = {Place::kHost, Place::kPinned, Place::kDevice, Place::kOtherDevice};
  for (const auto layout : {RotationSpec::Layout::kTokenMajor, RotationSpec::Layout::kHeadMajor,
                            RotationSpec::Layout::kPadded}) {
    for (const int64_t tokens : {3, 200}) {  // staged with the rest, and copied directly
      for (const Place from : kPlaces) {
        RotationSpec spec = Large(tokens);
        spec.layout = layout;
        spec.in_place = true;
        EXPECT_EQ(RotateBetween(spec, from, from), "") << static_cast<int>(from);
        spec.in_place = false;
        for (const Place to : kPlaces) {
          EXPECT_EQ(RotateBetween(spec, from, to), "")
              << static_cast<int>(from) << " to " << static_cast<int>(to);
        }
      }
    }
  }
}

TEST_F(CudaBackendTest, DeviceTensorsAreRotatedWhereTheyLieInOneLaunch) {
  EXPECT_EQ(RotateBetween(Large(), Place::kDevice, Place::kDevice), "");
  EXPECT_EQ(fake_cuda::Counts().launches, 1);
  EXPECT_EQ(fake_cuda::Counts().copies_out, 0);
}

TEST_F(CudaBackendTest, PinnedTensorsAreCopiedWithoutAStop) {
  RotationSpec spec = Large(100);  // one chunk: copy in, direct copy in, direct copy out
  EXPECT_EQ(RotateBetween(spec, Place::kPinned, Place::kPinned), "");
  EXPECT_EQ(fake_cuda::Calls("cudaMemcpy2DAsync"), 0);
  EXPECT_EQ(fake_cuda::Counts().copies_out, 1);
  spec.layout = RotationSpec::Layout::kPadded;
  EXPECT_EQ(RotateBetween(spec, Place::kPinned, Place::kPinned), "");
  EXPECT_EQ(fake_cuda::Calls("cudaMemcpy2DAsync"),
            2 * 100);  // one copy per token
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

// Fails each CUDA call at each occurrence. The batch is INTERNAL and names the call, unless it
// ended before that call; the next batch succeeds.
TEST_F(CudaBackendTest, AnyFailingCallIsInternalAndTheNextBatchWorks) {
  for (const char* function : {"cudaSetDevice", "cudaPointerGetAttributes", "cudaMalloc",
                               "cudaMallocHost", "cudaStreamCreateWithFlags", "cudaMemcpyAsync",
                               "cudaLaunchKernel", "cudaStreamSynchronize"}) {
    for (const int nth : {1, 2, 3, 7}) {
      for (const int64_t tokens : {1, 1000}) {
        Create(2);
        const Rotation failing(Large(tokens));
        fake_cuda::Fail(function, nth, cudaErrorMemoryAllocation);
        const absl::Status status = Rotate(failing);
        if (tokens > 1 && (nth == 1 || std::string(function) == "cudaMemcpyAsync")) {
          EXPECT_FALSE(status.ok()) << function << " " << nth;
        }
        if (!status.ok()) {
          EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                                       HasSubstr("cuda: " + std::string(function))));
          EXPECT_EQ(proto::PartsOf(status).reason, proto::Reason::kDeviceFault);
        } else {
          EXPECT_EQ(failing.Check(), "");
        }
        fake_cuda::Fail(function, 1 << 30, cudaSuccess);  // no failure after this
        const Rotation next(Large(tokens));
        ASSERT_THAT(Rotate(next), IsOk()) << function << " " << nth;
        EXPECT_EQ(next.Check(), "") << function << " " << nth;
      }
    }
  }
}

// The fake runtime aborts if a stream still has a copy of freed memory.
TEST_F(CudaBackendTest, AfterAnErrorNothingTouchesTheCallersMemory) {
  fake_cuda::Fail("cudaLaunchKernel", 1, cudaErrorMemoryAllocation);
  EXPECT_THAT(RotateBetween(Large(100), Place::kPinned, Place::kPinned),
              HasSubstr("cuda: cudaLaunchKernel"));
  EXPECT_EQ(RotateBetween(Large(100), Place::kPinned, Place::kPinned), "");
}

TEST_F(CudaBackendTest, LostDeviceAnswersInternalEachTime) {
  for (const char* function : {"cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize"}) {
    Create(2);
    fake_cuda::Fail(function, 2, cudaErrorIllegalAddress, /*sticky=*/true);
    for (int batch = 0; batch < 3; ++batch) {
      EXPECT_THAT(Rotate(Rotation(Large())),
                  StatusIs(absl::StatusCode::kInternal,
                           HasSubstr("an illegal memory access was encountered")));
    }
    backend_.reset();
    fake_cuda::Reset();
  }
}

}  // namespace
}  // namespace rope::kernels
