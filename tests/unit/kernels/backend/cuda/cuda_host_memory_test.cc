#include "kernels/backend/cuda/cuda_host_memory.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/support/matchers.h"
#include "tests/unit/kernels/backend/cuda/cuda_backend_fixture.h"

namespace rope::kernels {
namespace {

using rope::testing::FakeCudaCounts;
using rope::testing::Rotation;
using rope::testing::RotationSpec;
namespace fake_cuda = rope::testing::fake_cuda;

class CudaHostMemoryTest : public CudaBackendFixture {
 protected:
  // Announces memory, or withdraws that, and waits until it has taken effect.
  void Add(char* data, int64_t bytes) {
    backend_->host_memory()->Add(data, bytes);
    backend_->host_memory()->Wait();
  }
  void Remove(char* data) {
    backend_->host_memory()->Remove(data, [] {});
    backend_->host_memory()->Wait();
  }
  // Rotates. Returns the bytes of the result that were copied straight to announced memory.
  int64_t BytesStraight(const Rotation& rotation) {
    const int64_t before = fake_cuda::Counts().bytes_to_registered;
    EXPECT_THAT(Rotate(rotation), IsOk());
    EXPECT_EQ(rotation.Check(), "");
    return fake_cuda::Counts().bytes_to_registered - before;
  }
};

TEST_F(CudaHostMemoryTest, ResultsGoStraightIntoAnnouncedMemory) {
  for (const int64_t tokens : {3, 2000}) {
    for (const auto layout :
         {RotationSpec::Layout::kTokenMajor, RotationSpec::Layout::kHeadMajor}) {
      RotationSpec spec = Large(tokens);
      spec.layout = layout;
      for (const bool in_place : {false, true}) {
        spec.in_place = in_place;
        const Rotation rotation(spec);
        const RotateJob job = rotation.job();
        Add(static_cast<char*>(job.output), job.bytes());
        const bool dense = job.output_strides.head == job.head_dim;
        EXPECT_EQ(BytesStraight(rotation), dense ? job.bytes() : 0);
        Remove(static_cast<char*>(job.output));
      }
    }
  }
}

TEST_F(CudaHostMemoryTest, ResultsOfAnotherDTypeGoStraightToo) {
  RotationSpec spec = Large(300);
  spec.output_dtype = DType::kFloat32;
  const Rotation rotation(spec);
  const RotateJob job = rotation.job();
  Add(static_cast<char*>(job.output), 2 * job.bytes());
  EXPECT_EQ(BytesStraight(rotation), 2 * job.bytes());
  Remove(static_cast<char*>(job.output));
}

TEST_F(CudaHostMemoryTest, ResultsOfAnotherOrderGoStraightToo) {
  RotationSpec spec = Large(30);
  const Rotation by_token(spec);
  spec.layout = RotationSpec::Layout::kHeadMajor;
  const Rotation by_head(spec);
  ASSERT_THAT(Rotate(by_head), IsOk());
  const RotateJob expected = by_head.job();
  RotateJob job = expected;
  job.output = by_token.job().output;
  job.output_strides = by_token.job().output_strides;
  Add(static_cast<char*>(job.output), job.bytes());
  ASSERT_THAT(backend_->Rotate({&job, 1}), IsOk());
  EXPECT_EQ(fake_cuda::Counts().bytes_to_registered, job.bytes());
  Remove(static_cast<char*>(job.output));
  const auto at = [](const RotateJob& of, int64_t token, int64_t head) {
    return static_cast<const uint16_t*>(of.output) + token * of.output_strides.token +
           head * of.output_strides.head;
  };
  for (int64_t token = 0; token < job.tokens; ++token) {
    for (int64_t head = 0; head < job.heads; ++head) {
      EXPECT_EQ(std::memcmp(at(job, token, head), at(expected, token, head), 256), 0) << token;
    }
  }
}

TEST_F(CudaHostMemoryTest, ResultsAreCopiedIntoMemoryThatIsNotOrNoLongerAnnounced) {
  const Rotation rotation(Large(3));
  const int64_t bytes = rotation.job().bytes();
  char* const output = static_cast<char*>(rotation.job().output);
  EXPECT_EQ(BytesStraight(rotation), 0);
  Add(output, bytes - 1);
  EXPECT_EQ(BytesStraight(rotation), 0) << "the last byte is elsewhere";
  Remove(output);
  Add(output + 1, bytes);
  EXPECT_EQ(BytesStraight(rotation), 0) << "the first byte is elsewhere";
  Remove(output + 1);
  Add(output, bytes);
  EXPECT_EQ(BytesStraight(rotation), bytes);
  Remove(output);
  EXPECT_EQ(BytesStraight(rotation), 0);
  EXPECT_EQ(fake_cuda::Calls("cudaHostUnregister"), 3);
  for (const char* function : {"cudaSetDevice", "cudaHostRegister"}) {
    fake_cuda::Fail(function, 1, cudaErrorMemoryAllocation);
    Add(output, bytes);
    EXPECT_EQ(BytesStraight(rotation), 0) << function;
    Remove(output);
  }
  EXPECT_EQ(fake_cuda::Calls("cudaHostUnregister"), 3);
}

TEST_F(CudaHostMemoryTest, AnnouncedMemoryMayOutliveTheBackend) {
  const std::shared_ptr<HostMemory> memory = backend_->host_memory();
  std::vector<char> bytes(4096);
  memory->Add(bytes.data(), 4096);
  memory->Wait();
  backend_.reset();
  memory->Remove(bytes.data(), [] {});
  memory->Wait();
  EXPECT_EQ(fake_cuda::Calls("cudaHostUnregister"), 1);
}

TEST_F(CudaHostMemoryTest, MemoryIsNotUnregisteredFromADeviceThatWasReset) {
  backend_.reset();
  auto backend = MakeCudaBackend({.threads = 1, .owns_device = true}).value();
  const std::shared_ptr<HostMemory> memory = backend->host_memory();
  std::vector<char> bytes(2 * 4096);
  memory->Add(bytes.data(), 4096);
  memory->Wait();
  backend.reset();
  const int64_t before = fake_cuda::Counts().calls;
  bool removed = false;
  memory->Add(bytes.data() + 4096, 4096);
  memory->Remove(bytes.data(), [&removed] { removed = true; });
  memory->Wait();
  EXPECT_TRUE(removed);
  EXPECT_EQ(fake_cuda::Counts().calls, before) << "a call makes a new context";
}

// The owner unmaps its memory in what Remove runs.
TEST_F(CudaHostMemoryTest, RemovedMemoryIsUnregisteredBeforeItsOwnerHears) {
  std::shared_ptr<HostMemory> memory = backend_->host_memory();
  backend_.reset();
  std::vector<char> bytes(3 * 4096);
  std::vector<int64_t> heard;  // calls of cudaHostUnregister by then
  for (int64_t i = 0; i < 3; ++i) memory->Add(bytes.data() + i * 4096, 4096);
  memory->Wait();
  for (int64_t i = 0; i < 3; ++i) {
    memory->Remove(bytes.data() + i * 4096,
                   [&heard] { heard.push_back(fake_cuda::Calls("cudaHostUnregister")); });
  }
  memory.reset();  // waits for all of them
  EXPECT_THAT(heard, ElementsAre(1, 2, 3));
}

TEST_F(CudaHostMemoryTest, PagesOfMemoryThatIsRemovedSoonAreNotLocked) {
  HostMemory& memory = *backend_->host_memory();
  std::vector<char> bytes(2 * 4096);
  absl::Notification go_on;
  memory.Add(bytes.data(), 4096);
  memory.Wait();
  memory.Remove(bytes.data(), [&go_on] { go_on.WaitForNotification(); });
  memory.Add(bytes.data() + 4096, 4096);
  bool removed = false;
  memory.Remove(bytes.data() + 4096, [&removed] { removed = true; });
  go_on.Notify();
  memory.Wait();
  EXPECT_TRUE(removed);
  EXPECT_EQ(fake_cuda::Calls("cudaHostRegister"), 1);
}

}  // namespace
}  // namespace rope::kernels
