#include "kernels/backend/cuda/cuda_host_memory.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
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
  void SetUp() override {
    CudaBackendFixture::SetUp();
    Create(2, {.zero_copy_bytes = 0});  // small batches are copied too
  }

  // Announces memory, or withdraws that, and waits until it has taken effect.
  void Add(char* data, int64_t bytes) {
    backend_->host_memory()->Add(data, bytes);
    backend_->host_memory()->Wait();
  }
  void Remove(char* data) {
    backend_->host_memory()->Remove(data, [] {});
    backend_->host_memory()->Wait();
  }
  // Rotates into announced memory.
  void ExpectCopiedBack(const RotationSpec& spec) {
    const Rotation rotation(spec);
    Add(static_cast<char*>(rotation.job().output), rotation.job().bytes());
    const int64_t copies = fake_cuda::Counts().copies_out;
    ASSERT_THAT(Rotate(rotation), IsOk());
    EXPECT_EQ(rotation.Check(), "");
    EXPECT_EQ(fake_cuda::Counts().copies_out, copies + 1);
    Remove(static_cast<char*>(rotation.job().output));
  }
};

// The memory of the output of a rotation: what of it is announced decides whether it is copied.
TEST_F(CudaHostMemoryTest, ResultsGoStraightIntoAnnouncedMemory) {
  for (const int64_t tokens : {3, 2000}) {
    for (const bool in_place : {false, true}) {
      RotationSpec spec = Large(tokens);
      spec.in_place = in_place;
      const Rotation rotation(spec);
      const int64_t bytes = rotation.job().bytes();
      char* const output = static_cast<char*>(rotation.job().output);
      const FakeCudaCounts before = fake_cuda::Counts();
      Add(output, bytes);
      ASSERT_THAT(Rotate(rotation), IsOk());
      EXPECT_EQ(rotation.Check(), "");
      EXPECT_EQ(fake_cuda::Counts().copies_out, before.copies_out);
      Remove(output);
    }
  }
}

TEST_F(CudaHostMemoryTest, ResultsAreCopiedIntoMemoryThatIsNotOrNoLongerAnnounced) {
  const Rotation rotation(Large(3));
  const int64_t bytes = rotation.job().bytes();
  char* const output = static_cast<char*>(rotation.job().output);
  const auto is_copied = [&] {
    const int64_t copies = fake_cuda::Counts().copies_out;
    EXPECT_THAT(Rotate(rotation), IsOk());
    EXPECT_EQ(rotation.Check(), "");
    return fake_cuda::Counts().copies_out == copies + 1;
  };
  EXPECT_TRUE(is_copied());
  Add(output, bytes - 1);
  EXPECT_TRUE(is_copied()) << "the last byte is elsewhere";
  Remove(output);
  Add(output + 1, bytes);
  EXPECT_TRUE(is_copied()) << "the first byte is elsewhere";
  Remove(output + 1);
  Add(output, bytes);
  EXPECT_FALSE(is_copied());
  Remove(output);
  EXPECT_TRUE(is_copied());
  EXPECT_EQ(fake_cuda::Calls("cudaHostUnregister"), 3);
  for (const char* function : {"cudaSetDevice", "cudaHostRegister"}) {
    fake_cuda::Fail(function, 1, cudaErrorMemoryAllocation);
    Add(output, bytes);
    EXPECT_TRUE(is_copied()) << function;
    Remove(output);
  }
  EXPECT_EQ(fake_cuda::Calls("cudaHostUnregister"), 3);
}

TEST_F(CudaHostMemoryTest, TensorsWithoutVectorsAreCopiedFromAnnouncedMemoryToo) {
  RotationSpec spec = Large(3);
  spec.misalignment = 2;
  ExpectCopiedBack(spec);
}

TEST_F(CudaHostMemoryTest, PairsWithoutVectorsAreCopiedFromAnnouncedMemoryToo) {
  RotationSpec spec = Large(3);
  spec.head_dim = 96;
  spec.geometry = {.pairing = Pairing::kHalf, .pairs = 12, .offset = 0, .partner = 12};
  ExpectCopiedBack(spec);
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
