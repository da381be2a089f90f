#include "kernels/backend/cuda/cuda_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/backend/cuda/cuda_job.h"
#include "kernels/backend/cuda/cuda_lanes.h"

namespace rope::kernels {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

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

  // Every vector is in one piece, every slot where no other is, every chunk within its limit.
  static void CheckTiles(const std::vector<CudaChunk>& chunks, const RotateJob& job) {
    int64_t vectors = 0;
    for (const CudaChunk& chunk : chunks) {
      EXPECT_LE(chunk.bytes, kCudaLaneBytes);
      int64_t end = 0;
      for (const CudaPiece& piece : chunk.pieces) {
        vectors += piece.tokens * piece.heads;
        EXPECT_GE(piece.slot, end);
        EXPECT_EQ(piece.slot % 16, 0);
        end = piece.slot + piece.bytes();
        EXPECT_LE(end, chunk.bytes);
      }
    }
    EXPECT_EQ(vectors, job.tokens * job.heads);
  }

  std::vector<RowRef> rows_ = std::vector<RowRef>(1 << 18);
};

TEST_F(CudaBatchTest, JobsWithoutVectorsAreLeftOut) {
  const RotateJob a = Job(0, 5), b = Job(5, 0), c = Job(5, 1, 0);
  EXPECT_THAT(CutCudaBatch({{&a}, {&b}, {&c}}, 2), IsEmpty());
}

TEST_F(CudaBatchTest, SmallBatchIsOneChunkAndQAndKShareTheirRows) {
  const RotateJob q = Job(7, 32), k = Job(7, 8), other = Job(9, 1);
  const std::vector<CudaChunk> chunks = CutCudaBatch({{&q}, {&k}, {&other}}, 8);
  ASSERT_THAT(chunks, SizeIs(1));
  EXPECT_THAT(chunks[0].pieces, SizeIs(3));
  EXPECT_EQ(chunks[0].rows, 7 + 9);
  EXPECT_EQ(chunks[0].rows_offset, 2 * 128 * (7 * 32 + 7 * 8 + 9));
  EXPECT_EQ(chunks[0].jobs_offset, chunks[0].rows_offset + 16 * 8);
  EXPECT_EQ(chunks[0].direct_offset, chunks[0].jobs_offset + 3 * sizeof(CudaJob));
}

TEST_F(CudaBatchTest, LargeBatchIsCutByTokensForEveryWorker) {
  const RotateJob job = Job(4096, 40);
  for (const int workers : {1, 2, 16}) {
    const std::vector<CudaChunk> chunks = CutCudaBatch({{&job}}, workers);
    EXPECT_GE(chunks.size(), 20u);
    CheckTiles(chunks, job);
  }
}

TEST_F(CudaBatchTest, TokensLargerThanALaneAreCutByHeads) {
  const RotateJob job = Job(3, 20000);
  const std::vector<CudaChunk> chunks = CutCudaBatch({{&job}}, 2);
  EXPECT_GE(chunks.size(), 8u);
  CheckTiles(chunks, job);
}

TEST_F(CudaBatchTest, VectorLargerThanALaneIsAChunkOfItsOwn) {
  const RotateJob job = Job(2, 2, kCudaLaneBytes);
  const std::vector<CudaChunk> chunks = CutCudaBatch({{&job}}, 2);
  ASSERT_THAT(chunks, SizeIs(4));
  for (const CudaChunk& chunk : chunks) EXPECT_GT(chunk.bytes, 2 * kCudaLaneBytes);
}

TEST_F(CudaBatchTest, DeviceTensorsTakeNoSlotAndOneChunk) {
  const RotateJob job = Job(131072, 40);
  const std::vector<CudaChunk> chunks =
      CutCudaBatch({{&job, CudaMemory::kDevice, CudaMemory::kDevice}}, 4);
  ASSERT_THAT(chunks, SizeIs(1));
  EXPECT_FALSE(chunks[0].pieces[0].HasSlot());
  EXPECT_EQ(chunks[0].rows_offset, 0);
}

TEST_F(CudaBatchTest, LargePinnedTensorsGoDirectlyAndSmallOnesWithTheRest) {
  const RotateJob small = Job(1, 8), large = Job(20, 32);
  const std::vector<CudaChunk> chunks =
      CutCudaBatch({{&large, CudaMemory::kPinned, CudaMemory::kPinned},
                    {&small, CudaMemory::kPinned, CudaMemory::kPinned},
                    {&small, CudaMemory::kElsewhere, CudaMemory::kHost}},
                   1);
  ASSERT_THAT(chunks, SizeIs(1));
  const std::vector<CudaPiece>& pieces = chunks[0].pieces;
  EXPECT_EQ(pieces[0].input, CudaRoute::kDirect);
  EXPECT_GE(pieces[0].slot, chunks[0].direct_offset);
  EXPECT_EQ(pieces[1].input, CudaRoute::kStaged);
  EXPECT_EQ(pieces[1].slot, 0);
  EXPECT_EQ(pieces[2].input, CudaRoute::kDirect);
  EXPECT_EQ(pieces[2].output, CudaRoute::kStaged);
  EXPECT_LT(pieces[2].slot, chunks[0].rows_offset);
}

TEST_F(CudaBatchTest, OutputOfAnotherDTypeHasItsOwnPlaceInTheSlot) {
  RotateJob job = Job(7, 32);
  job.output_dtype = DType::kFloat32;
  const RotateJob next = Job(1, 1);
  const std::vector<CudaChunk> chunks = CutCudaBatch({{&job}, {&next}}, 2);
  ASSERT_THAT(chunks, SizeIs(1));
  const CudaPiece& piece = chunks[0].pieces[0];
  EXPECT_EQ(piece.bytes(), 2 * 128 * 7 * 32);
  EXPECT_EQ(piece.output_bytes(), 2 * piece.bytes());
  EXPECT_EQ(piece.slot, 0);
  EXPECT_EQ(piece.output_slot, piece.bytes());
  EXPECT_EQ(chunks[0].pieces[1].slot, 3 * piece.bytes());
  EXPECT_EQ(chunks[0].pieces[1].output_slot, 3 * piece.bytes());
}

TEST_F(CudaBatchTest, ScalesAndWeightsTravelBetweenRowsAndJobs) {
  const std::vector<float> floats(128);
  RotateJob job = Job(7, 32);
  job.norm = RmsNorm{.weight = floats.data(), .eps = 1e-6f};
  job.token_scales = absl::MakeConstSpan(floats).subspan(0, 7);
  const std::vector<CudaChunk> chunks = CutCudaBatch({{&job}}, 2);
  ASSERT_THAT(chunks, SizeIs(1));
  EXPECT_EQ(chunks[0].pieces[0].floats(), 7 + 128);
  EXPECT_EQ(chunks[0].floats_offset, chunks[0].rows_offset + 7 * 8);
  EXPECT_GE(chunks[0].jobs_offset, chunks[0].floats_offset + (7 + 128) * 4);
}

TEST_F(CudaBatchTest, LargeConvertedBatchStaysWithinItsLanes) {
  const std::vector<float> floats(4096);
  RotateJob job = Job(4096, 40);
  job.output_dtype = DType::kFloat32;
  job.norm = RmsNorm{.weight = floats.data(), .eps = 1e-6f};
  job.token_scales = floats;
  int64_t vectors = 0;
  for (const CudaChunk& chunk : CutCudaBatch({{&job}}, 2)) {
    EXPECT_LE(chunk.bytes, kCudaLaneBytes);
    for (const CudaPiece& piece : chunk.pieces) vectors += piece.tokens * piece.heads;
  }
  EXPECT_EQ(vectors, 4096 * 40);
}

}  // namespace
}  // namespace rope::kernels
