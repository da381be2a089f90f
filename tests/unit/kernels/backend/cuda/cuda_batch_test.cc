#include "kernels/backend/cuda/cuda_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <utility>
#include <vector>

#include "kernels/backend/cuda/cuda_job.h"
#include "kernels/backend/cuda/cuda_memory.h"
#include "kernels/backend/cuda/cuda_page_mirror.h"
#include "kernels/backend/cuda/cuda_plan.h"
#include "kernels/tables/page_builder.h"
#include "proto/error.h"
#include "tests/support/matchers.h"

namespace rope::kernels {
namespace {

// Jobs whose tensors are never read.
class CudaBatchTest : public ::testing::Test {
 protected:
  RotateJob Job(int64_t tokens, int64_t heads, int64_t head_dim = 128) {
    RotateJob job;
    job.input = reinterpret_cast<const void*>(uintptr_t{1} << 40);
    job.output = reinterpret_cast<void*>(uintptr_t{1} << 41);
    job.input_strides = job.output_strides = {heads * head_dim, head_dim};
    job.tokens = tokens;
    job.heads = heads;
    job.head_dim = head_dim;
    job.dtype = DType::kBFloat16;
    job.geometry = {.pairing = Pairing::kHalf, .pairs = 64, .offset = 0, .partner = 64};
    job.rows = absl::MakeConstSpan(rows_).subspan(0, static_cast<size_t>(tokens));
    return job;
  }

  std::vector<CudaChunk> Cut(const std::vector<RotateJob>& jobs, int workers) {
    cut_.push_back(jobs);
    absl::StatusOr<std::vector<CudaChunk>> chunks = CutCudaBatch(cut_.back(), workers, kTableBytes);
    EXPECT_TRUE(chunks.ok());
    return *std::move(chunks);
  }

  // Every vector is in one piece, every slot where no other is, every chunk within its limit.
  static void CheckTiles(const std::vector<CudaChunk>& chunks, const RotateJob& job) {
    int64_t vectors = 0;
    for (const CudaChunk& chunk : chunks) {
      EXPECT_LE(chunk.jobs_offset, kCudaLaneBytes);
      int64_t end = 0;
      for (const CudaPiece& piece : chunk.pieces) {
        vectors += piece.tokens * piece.job->heads;
        EXPECT_GE(piece.slot, end);
        EXPECT_EQ(piece.slot % 16, 0);
        end = piece.slot + piece.bytes();
        EXPECT_LE(end, chunk.floats_offset);
      }
    }
    EXPECT_EQ(vectors, job.tokens * job.heads);
  }

  // Position i of a sequence, in pages of the table.
  static constexpr int64_t kTableBytes = int64_t{128} << 20;
  std::vector<TablePage> pages_ = MakePages();
  std::vector<RowRef> rows_ = MakeRows();
  std::list<std::vector<RotateJob>> cut_;  // pieces point to them

 private:
  static std::vector<TablePage> MakePages() {
    std::vector<TablePage> pages;
    for (int i = 0; i < 64; ++i) {
      pages.emplace_back(kPageRows, 64, std::vector<float>());
      pages.back().set_cached();
    }
    return pages;
  }
  std::vector<RowRef> MakeRows() const {
    std::vector<RowRef> rows;
    for (size_t i = 0; i < 1 << 18; ++i) {
      rows.push_back({&pages_[i / kPageRows % 64], static_cast<int64_t>(i % kPageRows)});
    }
    return rows;
  }
};

TEST_F(CudaBatchTest, JobsWithoutVectorsAreLeftOut) {
  EXPECT_THAT(Cut({Job(0, 5), Job(5, 0), Job(5, 1, 0)}, 2), IsEmpty());
}

TEST_F(CudaBatchTest, SmallBatchIsOneChunkAndQAndKShareTheirRows) {
  const std::vector<RotateJob> jobs = {Job(7, 32), Job(7, 8), Job(9, 1)};
  const std::vector<CudaChunk> chunks = Cut(jobs, 8);
  ASSERT_THAT(chunks, SizeIs(1));
  const std::vector<CudaPiece>& pieces = chunks[0].pieces;
  ASSERT_THAT(pieces, SizeIs(3));
  const int64_t slots = 2 * 128 * (7 * 32 + 7 * 8 + 9);
  EXPECT_EQ(pieces[0].rows, slots);
  EXPECT_EQ(pieces[1].rows, slots);
  EXPECT_EQ(pieces[2].rows, slots + 7 * 512);
  EXPECT_EQ(chunks[0].floats_offset, slots + 16 * 512);
  EXPECT_EQ(chunks[0].floats_end, chunks[0].floats_offset);
}

TEST_F(CudaBatchTest, LargeBatchIsCutByTokensForEveryWorker) {
  const RotateJob job = Job(4096, 40);
  for (const int workers : {1, 2, 16}) {
    const std::vector<CudaChunk> chunks = Cut({job}, workers);
    EXPECT_GE(chunks.size(), 20u);
    CheckTiles(chunks, job);
  }
}

TEST_F(CudaBatchTest, ATokenLargerThanAChunkIsAChunk) {
  const RotateJob job = Job(16, 4000);  // 1 MB each
  const std::vector<CudaChunk> chunks = Cut({job}, 16);
  EXPECT_THAT(chunks, SizeIs(16));
  CheckTiles(chunks, job);
}

TEST_F(CudaBatchTest, ATokenLargerThanALaneIsRefused) {
  const std::vector<RotateJob> jobs = {Job(3, 20000)};
  const absl::Status status = CutCudaBatch(jobs, 2, kTableBytes).status();
  EXPECT_EQ(proto::PartsOf(status).reason, proto::Reason::kNotBuilt) << status;
}

TEST_F(CudaBatchTest, DeviceTensorsOfASequenceTakeOneChunkAndNothingOfALane) {
  std::vector<RotateJob> jobs = {Job(131072, 32), Job(131072, 8)};
  for (RotateJob& job : jobs) job.input_memory = job.output_memory = MemoryKind::kDevice;
  const std::vector<CudaChunk> chunks = Cut(jobs, 4);
  ASSERT_THAT(chunks, SizeIs(1));
  EXPECT_THAT(chunks[0].pieces, SizeIs(2));
  EXPECT_EQ(chunks[0].floats_end, 0);
}

TEST_F(CudaBatchTest, PiecesOfDeviceTensorsAreNoLargerThanKernelsCount) {
  RotateJob job = Job(1 << 18, 64, 256);
  job.input_memory = job.output_memory = MemoryKind::kDevice;
  int64_t elements = 0;
  for (const CudaChunk& chunk : Cut({job}, 4)) {
    for (const CudaPiece& piece : chunk.pieces) {
      EXPECT_LE(piece.elements(), kCudaItemsMax);
      elements += piece.elements();
    }
  }
  EXPECT_EQ(elements, int64_t{1} << 32);
}

TEST_F(CudaBatchTest, OnlyTensorsInHostMemoryHaveSlots) {
  RotateJob in = Job(2, 2), out = Job(3, 2);
  in.input_memory = MemoryKind::kDevice;
  out.output_memory = MemoryKind::kDevice;
  const std::vector<CudaChunk> chunks = Cut({in, out}, 1);
  ASSERT_THAT(chunks, SizeIs(1));
  const CudaPiece& result = chunks[0].pieces[0];
  const CudaPiece& input = chunks[0].pieces[1];
  EXPECT_EQ(result.slot, -1);
  EXPECT_EQ(result.output_slot, 0);
  EXPECT_EQ(chunks[0].upload_begin, 2 * 2 * 256);
  EXPECT_EQ(input.slot, 2 * 2 * 256);
  EXPECT_EQ(input.output_slot, -1);
}

TEST_F(CudaBatchTest, PagesOfAChunkKeepToTheirLimit) {
  RotateJob job = Job(1 << 18, 1);
  job.input_memory = job.output_memory = MemoryKind::kDevice;
  constexpr int64_t kBytes = int64_t{16} << 20;
  const std::vector<RotateJob> jobs = {job};
  const std::vector<CudaChunk> chunks = CutCudaBatch(jobs, 4, kBytes).value();
  EXPECT_GE(chunks.size(), 8u);
  for (const CudaChunk& chunk : chunks) {
    ASSERT_THAT(chunk.pieces, SizeIs(1));
    EXPECT_LE((chunk.pieces[0].tokens + 2 * kPageRows) * 512, kBytes);
  }
}

TEST_F(CudaBatchTest, RunsOfTheTableAreTokensInPagesAndOthersTravelTogether) {
  RotateJob job = Job(200, 1);
  std::vector<RowRef> rows(rows_.begin() + 60, rows_.begin() + 260);
  EXPECT_THAT(CutCudaTokens(job), SizeIs(1));
  const TablePage own(3, 64, {});
  for (int64_t i = 0; i < 3; ++i) rows[static_cast<size_t>(100 + i)] = {&own, i};
  rows[120] = rows[0];
  job.rows = rows;
  const std::vector<CudaTokens> parts = CutCudaTokens(job);
  ASSERT_THAT(parts, SizeIs(3));
  EXPECT_TRUE(parts[0].in_pages);
  EXPECT_EQ(parts[0].tokens, 100);
  EXPECT_FALSE(parts[1].in_pages);
  EXPECT_EQ(parts[1].tokens, 21);
  EXPECT_TRUE(parts[2].in_pages);
  EXPECT_EQ(parts[2].token, 121);
  EXPECT_EQ(parts[2].tokens, 79);
  const TablePage whole(kPageRows, 64, std::vector<float>());
  for (int64_t i = 0; i < kPageRows; ++i) rows[static_cast<size_t>(i)] = {&whole, i};
  EXPECT_FALSE(CutCudaTokens(job).front().in_pages) << "a page of this request, as long as others";
  std::copy_n(rows_.begin(), kPageRows, rows.begin());
  job.geometry.pairs = kCudaPageBytesMax / (kPageRows * 8);
  EXPECT_TRUE(CutCudaTokens(job).front().in_pages);
  ++job.geometry.pairs;
  EXPECT_FALSE(CutCudaTokens(job).front().in_pages) << "pages are too large";
}

TEST_F(CudaBatchTest, OutputOfAnotherDTypeHasItsOwnPlaceInTheSlot) {
  RotateJob job = Job(7, 32);
  job.output_dtype = DType::kFloat32;
  const std::vector<RotateJob> jobs = {job, Job(1, 1)};
  const std::vector<CudaChunk> chunks = Cut(jobs, 2);
  ASSERT_THAT(chunks, SizeIs(1));
  const CudaPiece& piece = chunks[0].pieces[0];
  EXPECT_EQ(piece.bytes(), 2 * 128 * 7 * 32);
  EXPECT_EQ(piece.output_bytes(), 2 * piece.bytes());
  EXPECT_EQ(piece.output_slot, 0);
  EXPECT_EQ(chunks[0].upload_begin, 2 * piece.bytes()) << "results are not copied to the device";
  EXPECT_EQ(piece.slot, 2 * piece.bytes());
  EXPECT_EQ(chunks[0].pieces[1].slot, 3 * piece.bytes());
  EXPECT_EQ(chunks[0].pieces[1].output_slot, 3 * piece.bytes());
}

TEST_F(CudaBatchTest, ScalesAndWeightsTravelBetweenRowsAndJobs) {
  const std::vector<float> floats(128);
  RotateJob job = Job(7, 32);
  job.norm = RmsNorm{.weight = floats.data(), .eps = 1e-6f};
  job.token_scales = absl::MakeConstSpan(floats).subspan(0, 7);
  const std::vector<RotateJob> jobs = {job};
  const std::vector<CudaChunk> chunks = Cut(jobs, 2);
  ASSERT_THAT(chunks, SizeIs(1));
  EXPECT_EQ(chunks[0].pieces[0].floats(), 7 + 128);
  EXPECT_EQ(chunks[0].floats_offset, chunks[0].pieces[0].rows + 7 * 512);
  EXPECT_EQ(chunks[0].floats_end, chunks[0].floats_offset + (7 + 128) * 4);
  EXPECT_GE(chunks[0].jobs_offset, chunks[0].floats_end);
}

TEST_F(CudaBatchTest, LargeConvertedBatchStaysWithinItsLanes) {
  const std::vector<float> floats(4096);
  RotateJob job = Job(4096, 40);
  job.output_dtype = DType::kFloat32;
  job.norm = RmsNorm{.weight = floats.data(), .eps = 1e-6f};
  job.token_scales = floats;
  int64_t vectors = 0;
  const std::vector<RotateJob> jobs = {job};
  for (const CudaChunk& chunk : Cut(jobs, 2)) {
    EXPECT_LE(chunk.jobs_offset + 8 * static_cast<int64_t>(sizeof(CudaJob)), kCudaLaneBytes);
    for (const CudaPiece& piece : chunk.pieces) vectors += piece.tokens * piece.job->heads;
  }
  EXPECT_EQ(vectors, 4096 * 40);
}

}  // namespace
}  // namespace rope::kernels
