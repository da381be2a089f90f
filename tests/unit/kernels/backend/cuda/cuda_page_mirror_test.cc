#include "kernels/backend/cuda/cuda_page_mirror.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/fake_cudart_fixture.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

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
  EXPECT_EQ(mirror_->statistics().uploads, 3);
  EXPECT_EQ(mirror_->statistics().hits, 6);
  EXPECT_EQ(fake_cuda::Counts().copies_in, 1);
}

TEST_F(CudaPageMirrorTest, TheOldestPagesMakeRoom) {
  Reserve(3 * kPageBytes);
  const auto a = MakePage(1), b = MakePage(2), c = MakePage(3), d = MakePage(4);
  Get({a.get()});
  Get({b.get()});
  Get({c.get()});
  EXPECT_EQ(Get({d.get()}).address(0)[0], 4);
  EXPECT_EQ(mirror_->statistics().evictions, 1);
  Get({b.get(), c.get()});
  EXPECT_EQ(mirror_->statistics().uploads, 4);
  EXPECT_EQ(Get({a.get()}).address(0)[0], 1);
  EXPECT_EQ(mirror_->statistics().uploads, 5);
  EXPECT_EQ(mirror_->statistics().pages, 3);
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
    const auto none = TryGet({b.get(), c.get(), a.get()});
    ASSERT_TRUE(none.ok());
    EXPECT_FALSE(none->has_value());
    EXPECT_EQ(held.address(0)[0], 1);
    EXPECT_EQ(mirror_->statistics().pages, 1);
  }
  const CudaPageMirror::Lease lease = Get({b.get(), c.get()});
  EXPECT_EQ(lease.address(1)[0], 3);
}

TEST_F(CudaPageMirrorTest, ABatchWaitsForRoom) {
  Reserve(2 * kPageBytes);
  const auto a = MakePage(1), b = MakePage(2), c = MakePage(3);
  std::optional<CudaPageMirror::Lease> held = Get({a.get(), b.get()});
  std::thread waiter([&] { EXPECT_EQ((*TryGet({c.get()}, true).value()).address(0)[0], 3); });
  held.reset();
  waiter.join();
}

TEST_F(CudaPageMirrorTest, PagesLargerThanALaneComeInParts) {
  const int64_t rows = (kCudaLaneBytes + (kCudaLaneBytes >> 1)) / 32 + 5;
  Reserve(2 * kCudaLaneBytes + kCudaLaneBytes);
  const auto small = MakePage(1, 3);
  std::vector<float> values(static_cast<size_t>(rows * 8));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const TablePage large(rows, 4, values);
  const CudaPageMirror::Lease lease = Get({small.get(), &large});
  EXPECT_EQ(lease.address(0)[23], 1);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(lease.address(1)[i], values[i]);
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
    const int64_t pages = mirror_->statistics().pages;
    fake_cuda::Fail(function, 1, cudaErrorIllegalAddress);
    EXPECT_THAT(TryGet({a.get(), b.get()}).status(),
                StatusIs(absl::StatusCode::kInternal, HasSubstr(function)));
    EXPECT_EQ(mirror_->statistics().pages, pages) << function;
    EXPECT_EQ(Get({a.get(), b.get()}).address(1)[0], 2) << function;
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
