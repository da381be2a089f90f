#include "kernels/backend/cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "kernels/backend/cuda/cuda_batch.h"
#include "kernels/backend/cuda/cuda_device.h"
#include "kernels/backend/cuda/cuda_driver.h"
#include "kernels/backend/rotate_job.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"
#include "proto/mutex.h"

namespace rope::kernels {
namespace {

// "20 of 143771 MiB are free"
std::string MemoryWords() {
  size_t free = 0;
  size_t total = 0;
  if (Cuda().cuMemGetInfo(&free, &total) != CudaError::kSuccess) return "free memory is unknown";
  return absl::StrFormat("%d of %d MiB are free", free >> 20, total >> 20);
}

// The lane: a stream and its memory on both sides.
struct Lane {
  CudaMemory device;
  CudaPinnedMemory pinned;
  CudaStream stream;
};

absl::StatusOr<Lane> MakeLane() {
  constexpr auto kBytes = static_cast<size_t>(kCudaLaneBytes);
  Lane lane;
  ROPE_ASSIGN_OR_RETURN(lane.device, AllocateCuda(kBytes));
  ROPE_ASSIGN_OR_RETURN(lane.pinned, AllocateCudaPinned(kBytes));
  ROPE_ASSIGN_OR_RETURN(lane.stream, CreateCudaStream());
  // Copies back take along the gaps between results, which nothing writes.
  ROPE_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuMemsetD8Async(lane.device.get(), 0, kBytes, lane.stream.get()), "cuMemsetD8Async"));
  ROPE_RETURN_IF_ERROR(CudaSynchronize(lane.stream));
  return lane;
}

// Copies the piece's vectors in host memory from one set of strides to another.
void CopyVectors(const CudaPiece& piece, DType dtype, const char* source, const Strides& from,
                 char* target, const Strides& to) {
  const int64_t bytes = ElementBytes(dtype);
  const auto vector = static_cast<size_t>(piece.job->head_dim * bytes);
  for (int64_t token = 0; token < piece.tokens; ++token) {
    for (int64_t head = 0; head < piece.job->heads; ++head) {
      std::memcpy(target + (token * to.token + head * to.head) * bytes,
                  source + (token * from.token + head * from.head) * bytes, vector);
    }
  }
}

// Copies the piece's input, rows and floats to the lane. Rows at `packed` are there.
void PackPiece(const CudaPiece& piece, int64_t packed, char* lane) {
  const RotateJob& job = *piece.job;
  CopyVectors(piece, job.dtype, piece.input_data(), job.input_strides, lane + piece.input,
              CudaLaneStrides(job));
  if (piece.rows >= 0 && piece.rows != packed) {
    const auto bytes = static_cast<size_t>(2 * job.geometry.pairs) * sizeof(float);
    char* place = lane + piece.rows;
    for (const RowRef& row : piece.row_refs()) {
      std::memcpy(place, row.page->Cos(row.index), bytes);
      place += bytes;
    }
  }
  if (piece.token_scales >= 0) {
    std::memcpy(lane + piece.token_scales, job.token_scales.data() + piece.token,
                static_cast<size_t>(piece.tokens) * sizeof(float));
  }
  if (piece.norm_weight >= 0) {
    std::memcpy(lane + piece.norm_weight, job.norm->weight,
                static_cast<size_t>(job.head_dim) * sizeof(float));
  }
}

// The piece as a job for the kernels, with the addresses of the device's side of the lane.
CudaJob CudaJobOfPiece(const CudaPiece& piece, char* lane) {
  const RotateJob& job = *piece.job;
  const Strides strides = CudaLaneStrides(job);
  const auto floats = [lane](int64_t place) {
    return place < 0 ? nullptr : reinterpret_cast<const float*>(lane + place);
  };
  CudaJob result = CudaJobOf(job);
  result.input = lane + piece.input;
  result.output = lane + piece.output;
  result.input_token = result.output_token = strides.token;
  result.input_head = result.output_head = strides.head;
  result.rows = floats(piece.rows);
  if (piece.one_row && piece.rows >= 0) {
    const RowRef& row = piece.row_refs().front();
    result.one_row = row.page->Cos(row.index);
  }
  result.token_scales = floats(piece.token_scales);
  result.norm_weight = floats(piece.norm_weight);
  result.tokens = static_cast<uint32_t>(piece.tokens);
  return result;
}

absl::Status NotBuilt(const char* what) {
  return proto::MakeError(Reason::kNotBuilt, "cuda", what, "a backend that has them");
}

// Whether the backend cannot run the part by this plan, because of its fp8 inputs.
bool LacksFloat8(const CudaPart& part, const CudaPlan& plan) {
  return std::any_of(part.pieces.begin(), part.pieces.end(), [&](const CudaPiece& piece) {
    const RotateJob& job = *piece.job;
    return IsFloat8(job.dtype) && (!plan.rectangle.has_value() || job.saturated != nullptr);
  });
}

class CudaBackend : public Backend {
 public:
  CudaBackend(CudaDevice device, Lane lane, const CudaShapes& shapes)
      : device_(std::move(device)), shapes_(shapes), lane_(std::move(lane)) {}
  ~CudaBackend() override { static_cast<void>(device_.MakeCurrent()); }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  std::string_view name() const override { return "cuda:0"; }
  std::string detail() const override { return device_.detail(); }

  absl::Status Rotate(absl::Span<const RotateJob> jobs) override {
    for (const RotateJob& job : jobs) {
      CheckJob(job);
      if (job.move.has_value()) return NotBuilt("a move by a table");
      if (job.layers > 1) return NotBuilt("several layers");
    }
    ROPE_ASSIGN_OR_RETURN(const std::vector<CudaPart> parts, CutCudaBatch(jobs));
    proto::MutexLock lock(&mu_);
    std::vector<CudaPlan> plans;
    for (const CudaPart& part : parts) {
      std::vector<CudaJob> planned;
      for (const CudaPiece& piece : part.pieces) {
        planned.push_back(CudaJobOfPiece(piece, lane_.device.get()));
      }
      plans.push_back(PlanCuda(planned, shapes_));
      if (LacksFloat8(part, plans.back())) return NotBuilt("an fp8 input");
    }
    ROPE_RETURN_IF_ERROR(device_.MakeCurrent());
    for (size_t i = 0; i < parts.size(); ++i) ROPE_RETURN_IF_ERROR(RunPart(parts[i], plans[i]));
    return absl::OkStatus();
  }

 private:
  absl::Status RunPart(const CudaPart& part, const CudaPlan& plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    int64_t packed = -1;  // the rows of the piece before, which the next may share
    for (const CudaPiece& piece : part.pieces) {
      PackPiece(piece, packed, lane_.pinned.get());
      packed = piece.rows;
    }
    absl::Status status = Enqueue(part, plan);
    if (status.ok()) status = CudaSynchronize(lane_.stream);
    if (!status.ok()) {
      static_cast<void>(CudaSynchronize(lane_.stream));  // what was enqueued has ended
      return status;
    }
    for (const CudaPiece& piece : part.pieces) {
      CopyVectors(piece, piece.job->stored(), lane_.pinned.get() + piece.output,
                  CudaLaneStrides(*piece.job), piece.output_data(), piece.job->output_strides);
    }
    return absl::OkStatus();
  }

  // Enqueues a copy to the device, the launches, and a copy back.
  absl::Status Enqueue(const CudaPart& part, const CudaPlan& plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    char* const device = lane_.device.get();
    char* const pinned = lane_.pinned.get();
    int64_t upload_end = part.upload_end;
    if (!plan.jobs.empty()) {
      const size_t bytes = plan.jobs.size() * sizeof(CudaJob);
      std::memcpy(pinned + part.jobs(), plan.jobs.data(), bytes);
      upload_end = part.jobs() + static_cast<int64_t>(bytes);
    }
    ROPE_RETURN_IF_ERROR(CudaCopy(device, pinned, static_cast<size_t>(upload_end), lane_.stream));
    const auto* const jobs = reinterpret_cast<const CudaJob*>(device + part.jobs());
    ROPE_RETURN_IF_ERROR(
        CudaStatus(device_.Launch(plan, jobs, lane_.stream.get()), "cuLaunchKernel"));
    return CudaCopy(pinned + kCudaUploadBytes, device + kCudaUploadBytes,
                    static_cast<size_t>(part.results_end - kCudaUploadBytes), lane_.stream);
  }

  const CudaDevice device_;
  const CudaShapes shapes_;
  proto::Mutex mu_;  // held while a batch runs: the lane serves one at a time
  const Lane lane_ ABSL_GUARDED_BY(mu_);
};

// Takes all memory, and runs every kernel.
absl::StatusOr<std::unique_ptr<Backend>> Start(const CudaShapes& shapes) {
  ROPE_ASSIGN_OR_RETURN(CudaDevice device, CudaDevice::Open());
  ROPE_RETURN_IF_ERROR(device.MakeCurrent());
  absl::StatusOr<Lane> lane = MakeLane();
  if (!lane.ok()) {
    return NoCudaDevice(
        absl::StrFormat("%s, want %d MiB of device memory and as much pinned memory (%s)",
                        MemoryWords(), kCudaLaneBytes >> 20, std::string(lane.status().message())));
  }
  auto backend = std::make_unique<CudaBackend>(std::move(device), *std::move(lane), shapes);
  ROPE_RETURN_IF_ERROR(
      CheckCudaKernels([&](absl::Span<const RotateJob> jobs) { return backend->Rotate(jobs); },
                       /*has_lists=*/true, shapes.rectangles));
  return backend;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const CudaShapes& shapes) {
  if (*kCudaPtx == '\0') {
    return MakeError(Reason::kNotBuilt, "backend", "cuda",
                     "a build with CUDA's kernels; this one was built without kernels");
  }
  auto backend = Start(shapes);
  if (backend.ok() || absl::IsUnavailable(backend.status())) return backend;
  return NoCudaDevice(std::string(backend.status().message()));
}

}  // namespace rope::kernels
