#include "kernels/backend/cuda/cuda_page_mirror.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tests/support/fake_cudart_fixture.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

namespace fake_cuda = rope::testing::fake_cuda;

constexpr int64_t kPageBytes = 512;  // size of MakePage's pages

std::unique_ptr<TablePage> MakePage(float value) {
  return std::make_unique<TablePage>(16, 4, std::vector<float>(128, value));
}

class CudaPageMirrorTest : public rope::testing::FakeCudaTest {
 protected:
  using Pages = std::vector<const TablePage*>;

  // Memory for a mirror and some lanes.
  void Reserve(int64_t bytes, int lanes = 1) {
    device_.emplace(*CudaBuffer::Create(CudaBuffer::Kind::kDevice, bytes));
    pinned_.emplace(*CudaBuffer::Create(CudaBuffer::Kind::kPinned, lanes * kCudaLaneBytes));
    lanes_ = CudaLanes::Create(lanes, pinned_->data(), nullptr).value();
    mirror_.emplace(device_->data(), bytes);
  }
  void TearDown() override {
    mirror_.reset();
    lanes_.reset();
    pinned_.reset();
    device_.reset();
    FakeCudaTest::TearDown();
  }

  absl::StatusOr<std::optional<CudaPageMirror::Lease>> TryGet(const Pages& pages,
                                                              bool wait = false) {
    CudaLane* const lane = lanes_->Acquire();
    auto lease = mirror_->Acquire(pages, *lane, wait);
    lanes_->Release(lane);
    return lease;
  }
  CudaPageMirror::Lease Get(const Pages& pages) { return *TryGet(pages).value(); }
  static int64_t Uploads() { return fake_cuda::Counts().bytes_in / kPageBytes; }

  std::optional<CudaBuffer> device_;
  std::optional<CudaBuffer> pinned_;
  std::unique_ptr<CudaLanes> lanes_;
  std::optional<CudaPageMirror> mirror_;
};

TEST_F(CudaPageMirrorTest, PagesArriveInOneCopySideBySideAndStay) {
  Reserve(8 * kPageBytes);
  const auto a = MakePage(1), b = MakePage(2), c = MakePage(3);
  for (int round = 0; round < 3; ++round) {
    const CudaPageMirror::Lease lease = Get({a.get(), b.get(), c.get()});
    EXPECT_EQ(lease.address(0)[0], 1);
    EXPECT_EQ(lease.address(1)[127], 2);
    EXPECT_EQ(lease.address(2)[5], 3);
    EXPECT_EQ(lease.address(1), lease.address(0) + 128);
    EXPECT_EQ(lease.address(2), lease.address(1) + 128);
  }
  EXPECT_EQ(Uploads(), 3);
  EXPECT_EQ(fake_cuda::Counts().copies_in, 1);
}

TEST_F(CudaPageMirrorTest, TheOldestPagesMakeRoom) {
  Reserve(3 * kPageBytes);
  const auto a = MakePage(1), b = MakePage(2), c = MakePage(3), d = MakePage(4);
  Get({a.get()});
  Get({b.get()});
  Get({c.get()});
  EXPECT_EQ(Get({d.get()}).address(0)[0], 4);
  Get({b.get(), c.get()});
  EXPECT_EQ(Uploads(), 4);
  EXPECT_EQ(Get({a.get()}).address(0)[0], 1);
  EXPECT_EQ(Uploads(), 5);
}

TEST_F(CudaPageMirrorTest, PagesInUseStayAndAreSteppedOver) {
  Reserve(4 * kPageBytes);
  const auto a = MakePage(1), b = MakePage(2), c = MakePage(3), d = MakePage(4), e = MakePage(5);
  Get({a.get()});
  const CudaPageMirror::Lease held = Get({b.get()});
  Get({c.get(), d.get()});
  EXPECT_EQ(Get({e.get()}).address(0)[0], 5);  // in a's place
  EXPECT_EQ(Get({a.get()}).address(0)[0], 1);  // in c's
  EXPECT_EQ(held.address(0)[0], 2);
  EXPECT_EQ(Get({b.get()}).address(0), held.address(0));
}

TEST_F(CudaPageMirrorTest, WithoutRoomThereIsNoLeaseAndNothingChanges) {
  Reserve(2 * kPageBytes);
  const auto a = MakePage(1), b = MakePage(2), c = MakePage(3);
  {
    const CudaPageMirror::Lease held = Get({a.get()});
    ASSERT_OK(none, TryGet({b.get(), c.get(), a.get()}));
    EXPECT_FALSE(none->has_value());
    EXPECT_EQ(held.address(0)[0], 1);
    EXPECT_EQ(Uploads(), 1);
  }
  const CudaPageMirror::Lease lease = Get({b.get(), c.get()});
  EXPECT_EQ(lease.address(1)[0], 3);
}

// Four small pages, with the gaps of large ones between them, and then a page that fits no gap.
TEST_F(CudaPageMirrorTest, PagesThatLeaveOnlySmallGapsMakeRoom) {
  Reserve(8 * kPageBytes);
  const TablePage large(32, 4, std::vector<float>(256, 7)),
      larger(48, 4, std::vector<float>(384, 8));
  std::vector<std::unique_ptr<TablePage>> small;
  Pages pages;
  for (int i = 0; i < 3; ++i) {
    small.push_back(MakePage(static_cast<float>(i)));
    pages.push_back(small.back().get());
    Get({small.back().get()});
    const TablePage gap(32, 4, std::vector<float>(256, 9));
    if (i < 2) Get({&gap});
  }
  pages.push_back(&larger);
  const CudaPageMirror::Lease lease = *TryGet(pages, /*wait=*/true).value();
  EXPECT_EQ(lease.address(0)[0], 0);
  EXPECT_EQ(lease.address(2)[127], 2);
  EXPECT_EQ(lease.address(3)[383], 8);
}

TEST_F(CudaPageMirrorTest, ABatchWaitsForRoom) {
  Reserve(2 * kPageBytes);
  const auto a = MakePage(1), b = MakePage(2), c = MakePage(3);
  std::optional<CudaPageMirror::Lease> held = Get({a.get(), b.get()});
  std::thread waiter([&] { EXPECT_EQ((*TryGet({c.get()}, true).value()).address(0)[0], 3); });
  held.reset();
  waiter.join();
}

TEST_F(CudaPageMirrorTest, APageNamedTwiceIsUploadedOnceAndReleasedTwice) {
  Reserve(2 * kPageBytes);
  const auto a = MakePage(1), b = MakePage(2), c = MakePage(3);
  {
    const CudaPageMirror::Lease lease = Get({a.get(), b.get(), a.get(), b.get()});
    EXPECT_EQ(lease.address(2), lease.address(0));
    EXPECT_EQ(lease.address(3)[0], 2);
    EXPECT_EQ(Uploads(), 2);
    EXPECT_FALSE(TryGet({c.get(), c.get()})->has_value());
  }
  EXPECT_EQ(Get({c.get(), c.get()}).address(1)[0], 3);
}

TEST_F(CudaPageMirrorTest, MorePagesThanALaneHoldsComeInSeveralCopies) {
  constexpr int64_t kPages = 3 * kCudaLaneBytes / kCudaPageBytesMax;
  Reserve(kPages * kCudaPageBytesMax);
  std::vector<std::unique_ptr<TablePage>> pages;
  Pages all;
  for (int64_t i = 0; i < kPages; ++i) {
    pages.push_back(std::make_unique<TablePage>(
        64, 1024, std::vector<float>(kCudaPageBytesMax / 4, static_cast<float>(i))));
    all.push_back(pages.back().get());
  }
  const CudaPageMirror::Lease lease = Get(all);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(lease.address(i)[0], static_cast<float>(i));
    EXPECT_EQ(lease.address(i)[kCudaPageBytesMax / 4 - 1], static_cast<float>(i));
  }
  EXPECT_EQ(fake_cuda::Counts().copies_in, 3);
}

// Pages are identified by id, not by address.
TEST_F(CudaPageMirrorTest, NewPageAtAnOldAddressIsUploaded) {
  Reserve(4 * kPageBytes);
  const auto page = MakePage(1);
  Get({page.get()});
  *page = TablePage(16, 4, std::vector<float>(128, 9.0f));
  EXPECT_EQ(Get({page.get()}).address(0)[0], 9);
}

TEST_F(CudaPageMirrorTest, FailedUploadIsAnErrorAndTheNextWorks) {
  Reserve(4 * kPageBytes);
  for (const char* function : {"cudaMemcpyAsync", "cudaStreamSynchronize"}) {
    const auto a = MakePage(1), b = MakePage(2);
    fake_cuda::Fail(function, 1, cudaErrorIllegalAddress);
    EXPECT_THAT(TryGet({a.get(), b.get()}).status(), IsInternal(function));
    const int64_t uploads = Uploads();
    EXPECT_EQ(Get({a.get(), b.get()}).address(1)[0], 2) << function;
    EXPECT_EQ(Uploads(), uploads + 2) << function;
  }
}

TEST_F(CudaPageMirrorTest, ManyThreadsSeeTheirPagesInLittleRoom) {
  Reserve(5 * kPageBytes, 4);
  std::vector<std::unique_ptr<TablePage>> pages;
  for (int i = 0; i < 12; ++i) pages.push_back(MakePage(static_cast<float>(i)));
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t round = 0; round < 200; ++round) {
        const size_t first = (t * 5 + round * 7) % 12;
        const size_t second = (first + 1 + round % 3) % 12;
        const auto lease = TryGet({pages[first].get(), pages[second].get()}, true);
        if (!lease.ok() || (*lease)->address(0)[3] != static_cast<float>(first) ||
            (*lease)->address(1)[3] != static_cast<float>(second)) {
          ++wrong[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

}  // namespace
}  // namespace rope::kernels
