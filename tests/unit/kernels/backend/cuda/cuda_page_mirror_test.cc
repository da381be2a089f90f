#include "kernels/backend/cuda/cuda_page_mirror.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/fake_cudart_fixture.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using rope::testing::IsOk;
using rope::testing::StatusIs;
using ::testing::HasSubstr;
namespace fake_cuda = rope::testing::fake_cuda;

constexpr int64_t kPageBytes = 512;  // size of MakePage's pages, a multiple of the alignment

std::unique_ptr<TablePage> MakePage(float value, int64_t rows = 16) {
  return std::make_unique<TablePage>(rows, 4,
                                     std::vector<float>(static_cast<size_t>(rows * 8), value));
}

class CudaPageMirrorTest : public rope::testing::FakeCudaTest {
 protected:
  using Pages = std::vector<const TablePage*>;

  static CudaPageMirror::Lease Get(CudaPageMirror& mirror, const Pages& pages) {
    absl::StatusOr<CudaPageMirror::Lease> lease = mirror.Acquire(pages);
    EXPECT_THAT(lease, IsOk());
    return lease.ok() ? *std::move(lease) : CudaPageMirror::Lease();
  }
};

TEST_F(CudaPageMirrorTest, PagesArriveInOneCopyAndStay) {
  CudaPageMirror mirror(8 * kPageBytes);
  const auto a = MakePage(1), b = MakePage(2), c = MakePage(3);
  for (int round = 0; round < 3; ++round) {
    const CudaPageMirror::Lease lease = Get(mirror, {a.get(), b.get(), c.get()});
    EXPECT_EQ(lease.address(0)[0], 1);
    EXPECT_EQ(lease.address(1)[127], 2);
    EXPECT_EQ(lease.address(2)[5], 3);
  }
  EXPECT_EQ(mirror.statistics().uploads, 3);
  EXPECT_EQ(mirror.statistics().copies, 1);
  EXPECT_EQ(mirror.statistics().hits, 6);
  EXPECT_EQ(fake_cuda::Counts().copies_in, 1);
}

TEST_F(CudaPageMirrorTest, LeastRecentlyUsedPagesGoFirst) {
  CudaPageMirror mirror(3 * kPageBytes);
  const auto a = MakePage(1), b = MakePage(2), c = MakePage(3), d = MakePage(4);
  Get(mirror, {a.get()});
  Get(mirror, {b.get()});
  Get(mirror, {c.get()});
  Get(mirror, {a.get()});
  EXPECT_EQ(Get(mirror, {d.get()}).address(0)[0], 4);
  EXPECT_EQ(mirror.statistics().evictions, 1);
  Get(mirror, {a.get(), c.get()});
  EXPECT_EQ(mirror.statistics().uploads, 4);
  EXPECT_EQ(Get(mirror, {b.get()}).address(0)[0], 2);
  EXPECT_EQ(mirror.statistics().uploads, 5);
  EXPECT_EQ(mirror.statistics().bytes, 3 * kPageBytes);
}

TEST_F(CudaPageMirrorTest, PagesInUseStayAndOthersGoBesideTheBudget) {
  CudaPageMirror mirror(2 * kPageBytes);
  const auto a = MakePage(1), b = MakePage(2), c = MakePage(3);
  {
    const CudaPageMirror::Lease first = Get(mirror, {a.get(), b.get()});
    const CudaPageMirror::Lease second = Get(mirror, {c.get(), a.get()});
    EXPECT_EQ(first.address(0)[0], 1);
    EXPECT_EQ(first.address(1)[0], 2);
    EXPECT_EQ(second.address(0)[0], 3);
    EXPECT_EQ(second.address(1), first.address(0));
    EXPECT_EQ(mirror.statistics().bytes, 2 * kPageBytes);
    EXPECT_EQ(fake_cuda::Counts().device_bytes, 3 * kPageBytes);
  }
  EXPECT_EQ(fake_cuda::Counts().device_bytes, 2 * kPageBytes);
  EXPECT_EQ(Get(mirror, {c.get()}).address(0)[0], 3);  // now it fits
  EXPECT_EQ(fake_cuda::Counts().device_bytes, 2 * kPageBytes);
}

TEST_F(CudaPageMirrorTest, PageLargerThanTheBudgetAndTheStagingIsServedAndNotKept) {
  CudaPageMirror mirror(kPageBytes);
  const auto large = MakePage(7, (3 << 20) / 32 + 5);
  const int64_t floats = large->bytes() / 4;
  EXPECT_EQ(Get(mirror, {large.get()}).address(0)[floats - 1], 7);
  EXPECT_EQ(fake_cuda::Counts().device_bytes, kPageBytes);
  EXPECT_EQ(mirror.statistics().pages, 0);
}

TEST_F(CudaPageMirrorTest, RoomIsMadeInOnePieceForALargerPage) {
  CudaPageMirror mirror(4 * kPageBytes);
  const auto a = MakePage(1), b = MakePage(2), c = MakePage(3), d = MakePage(4);
  const auto large = MakePage(5, 48);
  Get(mirror, {a.get(), b.get(), c.get(), d.get()});
  EXPECT_EQ(Get(mirror, {large.get()}).address(0)[0], 5);
  EXPECT_EQ(mirror.statistics().evictions, 3);
  EXPECT_EQ(mirror.statistics().bytes, 4 * kPageBytes);
}

// Pages are identified by id, not by address.
TEST_F(CudaPageMirrorTest, NewPageAtAnOldAddressIsUploaded) {
  CudaPageMirror mirror(4 * kPageBytes);
  const auto page = MakePage(1);
  Get(mirror, {page.get()});
  *page = TablePage(16, 4, std::vector<float>(128, 9.0f));
  EXPECT_EQ(Get(mirror, {page.get()}).address(0)[0], 9);
}

TEST_F(CudaPageMirrorTest, FailedUploadIsInternalAndTheNextWorks) {
  for (const char* function : {"cudaMalloc", "cudaMallocHost", "cudaStreamCreateWithFlags",
                               "cudaMemcpyAsync", "cudaStreamSynchronize"}) {
    CudaPageMirror mirror(4 * kPageBytes);
    const auto a = MakePage(1), b = MakePage(2);
    fake_cuda::Fail(function, 1, cudaErrorMemoryAllocation);
    EXPECT_THAT(mirror.Acquire({a.get(), b.get()}).status(),
                StatusIs(absl::StatusCode::kInternal, HasSubstr(function)));
    EXPECT_EQ(mirror.statistics().pages, 0) << function;
    const CudaPageMirror::Lease lease = Get(mirror, {a.get(), b.get()});
    EXPECT_EQ(lease.address(1)[0], 2) << function;
    EXPECT_EQ(mirror.statistics().bytes, 2 * kPageBytes) << function;
  }
}

TEST_F(CudaPageMirrorTest, PagesOutsideTheBlockAreCopiedOneByOne) {
  CudaPageMirror mirror(kPageBytes);
  std::vector<std::unique_ptr<TablePage>> pages;
  for (int i = 0; i < 4; ++i) pages.push_back(MakePage(static_cast<float>(i)));
  const auto lease =
      mirror.Acquire({pages[0].get(), pages[1].get(), pages[2].get(), pages[3].get()});
  ASSERT_THAT(lease, IsOk());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(lease->address(i)[3], static_cast<float>(i));
  EXPECT_EQ(mirror.statistics().copies, 4)
      << "their allocations may touch, a copy must not span two";
}

TEST_F(CudaPageMirrorTest, ManyThreadsSeeTheirPagesUnderAnyBudget) {
  CudaPageMirror mirror(5 * kPageBytes);
  std::vector<std::unique_ptr<TablePage>> pages;
  for (int i = 0; i < 12; ++i) pages.push_back(MakePage(static_cast<float>(i)));
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t round = 0; round < 200; ++round) {
        const size_t first = (t * 5 + round * 7) % 12;
        const size_t second = (first + 1 + round % 3) % 12;
        auto lease = mirror.Acquire({pages[first].get(), pages[second].get()});
        if (!lease.ok() || lease->address(0)[3] != static_cast<float>(first) ||
            lease->address(1)[3] != static_cast<float>(second)) {
          ++wrong[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
  EXPECT_LE(mirror.statistics().bytes, 5 * kPageBytes);
}

}  // namespace
}  // namespace rope::kernels
