#include "kernels/backend/cuda/cuda_batch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/backend/cuda/cuda_job.h"
#include "proto/error.h"
#include "tests/support/matchers.h"

namespace rope::kernels {
namespace {

// Jobs whose tensors and rows are never read.
class CudaBatchTest : public ::testing::Test {
 protected:
  RotateJob Job(int64_t tokens, int64_t heads, int64_t head_dim = 128) const {
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

  // The parts, after a check that each keeps to the lane, with its CudaJobs, and that the pieces
  // have all vectors.
  static std::vector<CudaPart> Cut(const std::vector<RotateJob>& jobs) {
    int64_t vectors = 0;
    for (const RotateJob& job : jobs) vectors += job.tokens * job.heads;
    const std::vector<CudaPart> parts = CutCudaBatch(jobs).value();
    for (const CudaPart& part : parts) {
      const auto count = static_cast<int64_t>(part.pieces.size());
      EXPECT_LE(part.jobs() + count * static_cast<int64_t>(sizeof(CudaJob)), kCudaUploadBytes);
      EXPECT_LE(part.results_end, kCudaLaneBytes);
      for (const CudaPiece& piece : part.pieces) {
        for (const int64_t place : {piece.input, piece.rows, piece.output}) {
          EXPECT_TRUE(place == -1 || place % 16 == 0) << place;
        }
        vectors -= piece.tokens * piece.job->heads;
      }
    }
    EXPECT_EQ(vectors, 0);
    return parts;
  }

  static std::vector<RowRef> Rows() {
    std::vector<RowRef> rows(1 << 14);
    for (size_t i = 0; i < rows.size(); ++i) rows[i].index = static_cast<int64_t>(i);
    return rows;
  }

  std::vector<RowRef> rows_ = Rows();
};

TEST_F(CudaBatchTest, ALargerBatchIsCutByTokens) {
  const std::vector<RotateJob> jobs = {Job(5, 1), Job(16384, 40)};
  EXPECT_THAT(Cut(jobs), SizeIs(5));
}

TEST_F(CudaBatchTest, ATokenLargerThanTheLaneIsRefusedBeforeAnythingRuns) {
  const absl::Status status = CutCudaBatch(std::vector{Job(3, 2), Job(3, 200000)}).status();
  EXPECT_EQ(proto::PartsOf(status).reason, proto::Reason::kNotBuilt) << status;
}

TEST_F(CudaBatchTest, ALargeConvertedBatchStaysWithinTheLane) {
  const std::vector<float> floats(16384);
  RotateJob job = Job(16384, 40);
  job.output_dtype = DType::kFloat32;
  job.norm = RmsNorm{.weight = floats.data(), .eps = 1e-6f};
  job.token_scales = floats;
  EXPECT_GT(Cut({job}).size(), 1U);
}

}  // namespace
}  // namespace rope::kernels
