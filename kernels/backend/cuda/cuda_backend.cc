#include "kernels/backend/cuda/cuda_backend.h"

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "kernels/backend/cuda/cuda_batch.h"
#include "kernels/backend/cuda/cuda_launch.h"
#include "kernels/backend/cuda/cuda_runtime.h"
#include "kernels/backend/rotate_job.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"
#include "proto/mutex.h"

namespace rope::kernels {
namespace {

constexpr int kDevice = 0;

// The lane: a stream and its memory on both sides.
struct Lane {
  CudaBuffer device;
  CudaBuffer pinned;
  CudaStream stream;
};

absl::StatusOr<Lane> MakeLane() {
  ROPE_ASSIGN_OR_RETURN(CudaBuffer device,
                        CudaBuffer::Create(CudaBuffer::Kind::kDevice, kCudaLaneBytes));
  // Copies back take along the gaps between results, which nothing writes.
  ROPE_RETURN_IF_ERROR(
      CudaStatus(cudaMemset(device.data(), 0, static_cast<size_t>(kCudaLaneBytes)), "cudaMemset"));
  ROPE_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  ROPE_ASSIGN_OR_RETURN(CudaBuffer pinned,
                        CudaBuffer::Create(CudaBuffer::Kind::kPinned, kCudaLaneBytes));
  ROPE_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Create());
  return Lane{std::move(device), std::move(pinned), std::move(stream)};
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

// Copies the piece's input, rows and floats to the lane.
void PackPiece(const CudaPiece& piece, char* lane) {
  const RotateJob& job = *piece.job;
  if (piece.input >= 0) {
    CopyVectors(piece, job.dtype, piece.input_data(), job.input_strides, lane + piece.input,
                CudaLaneStrides(job));
  }
  if (piece.rows >= 0) {
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
CudaJob CudaJobOf(const CudaPiece& piece, char* lane) {
  const RotateJob& job = *piece.job;
  const auto floats = [lane](int64_t place) {
    return place < 0 ? nullptr : reinterpret_cast<const float*>(lane + place);
  };
  CudaJob result = CudaSettings(job);
  result.input = piece.input < 0 ? piece.input_data() : lane + piece.input;
  result.output = piece.output < 0 ? piece.output_data() : lane + piece.output;
  result.rows = floats(piece.rows);
  result.token_scales = floats(piece.token_scales);
  result.norm_weight = floats(piece.norm_weight);
  const Strides from = piece.input < 0 ? job.input_strides : CudaLaneStrides(job);
  const Strides to = piece.output < 0 ? job.output_strides : CudaLaneStrides(job);
  result.input_token = from.token;
  result.input_head = from.head;
  result.output_token = to.token;
  result.output_head = to.head;
  result.tokens = static_cast<uint32_t>(piece.tokens);
  result.heads = static_cast<uint32_t>(job.heads);
  return result;
}

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(const CudaShapes& shapes) : shapes_(shapes) {}

  std::string_view name() const override { return "cuda:0"; }
  std::string detail() const override { return detail_; }

  // Takes all memory, and runs every kernel.
  absl::Status Start() {
    ROPE_ASSIGN_OR_RETURN(detail_, FindCudaDevice());
    absl::StatusOr<Lane> lane = MakeLane();
    if (!lane.ok()) {
      return NoCudaDevice(absl::StrFormat(
          "%s, want %d MiB of device memory and as much pinned memory (%s)", CudaMemoryWords(),
          kCudaLaneBytes >> 20, std::string(lane.status().message())));
    }
    {
      proto::MutexLock lock(&mu_);
      lane_.emplace(*std::move(lane));
    }
    return CheckCudaBackend(*this);
  }

  absl::Status Rotate(absl::Span<const RotateJob> jobs) override {
    for (const RotateJob& job : jobs) {
      CheckJob(job);
      if (!IsFloat8(job.dtype) && !job.move.has_value()) continue;
      return proto::MakeError(Reason::kNotBuilt, "cuda", "an fp8 input, or a move by a table",
                              "a backend that has them");
    }
    ROPE_ASSIGN_OR_RETURN(const std::vector<CudaPart> parts, CutCudaBatch(jobs));
    ROPE_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(kDevice), "cudaSetDevice"));
    proto::MutexLock lock(&mu_);
    for (const CudaPart& part : parts) ROPE_RETURN_IF_ERROR(RunPart(part));
    return absl::OkStatus();
  }

 private:
  absl::Status RunPart(const CudaPart& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<CudaJob> jobs;
    for (const CudaPiece& piece : part.pieces) {
      PackPiece(piece, lane_->pinned.data());
      jobs.push_back(CudaJobOf(piece, lane_->device.data()));
    }
    absl::Status status = Enqueue(part, PlanCuda(jobs, shapes_));
    if (status.ok()) status = lane_->stream.Synchronize();
    if (!status.ok()) {
      static_cast<void>(lane_->stream.Synchronize());  // what was enqueued has ended
      return status;
    }
    for (const CudaPiece& piece : part.pieces) {
      if (piece.output < 0) continue;
      CopyVectors(piece, piece.job->stored(), lane_->pinned.data() + piece.output,
                  CudaLaneStrides(*piece.job), piece.output_data(), piece.job->output_strides);
    }
    return absl::OkStatus();
  }

  // Enqueues a copy to the device, the launches, and a copy back.
  absl::Status Enqueue(const CudaPart& part, const CudaPlan& plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    int64_t upload_end = part.upload_end;
    if (plan.NeedsTable()) {
      const size_t bytes = plan.jobs.size() * sizeof(CudaJob);
      std::memcpy(lane_->pinned.data() + part.jobs(), plan.jobs.data(), bytes);
      upload_end = part.jobs() + static_cast<int64_t>(bytes);
    }
    ROPE_RETURN_IF_ERROR(Copy(0, upload_end, cudaMemcpyHostToDevice));
    const auto* const jobs = reinterpret_cast<const CudaJob*>(lane_->device.data() + part.jobs());
    ROPE_RETURN_IF_ERROR(
        CudaStatus(LaunchCuda(plan, jobs, lane_->stream.get()), "cudaLaunchKernel"));
    return Copy(kCudaUploadBytes, part.results_end, cudaMemcpyDeviceToHost);
  }

  // Enqueues the copy of a part of the lane to its other side.
  absl::Status Copy(int64_t begin, int64_t end, cudaMemcpyKind kind)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (begin == end) return absl::OkStatus();
    char* to = lane_->device.data() + begin;
    char* from = lane_->pinned.data() + begin;
    if (kind == cudaMemcpyDeviceToHost) std::swap(to, from);
    return CudaStatus(
        cudaMemcpyAsync(to, from, static_cast<size_t>(end - begin), kind, lane_->stream.get()),
        "cudaMemcpyAsync");
  }

  const CudaShapes shapes_;
  std::string detail_;  // set by Start
  proto::Mutex mu_;     // held while a batch runs: the lane serves one at a time
  std::optional<Lane> lane_ ABSL_GUARDED_BY(mu_);  // set by Start
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const CudaShapes& shapes) {
  auto backend = std::make_unique<CudaBackend>(shapes);
  const absl::Status status = backend->Start();
  if (absl::IsUnavailable(status)) return status;
  if (!status.ok()) return NoCudaDevice(std::string(status.message()));
  return backend;
}

}  // namespace rope::kernels
