#include "kernels/backend/cuda/cuda_backend.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "kernels/backend/check_job.h"
#include "kernels/backend/cuda/cuda_batch.h"
#include "kernels/backend/cuda/cuda_copy.h"
#include "kernels/backend/cuda/cuda_lanes.h"
#include "kernels/backend/cuda/cuda_launch.h"
#include "kernels/backend/cuda/cuda_page_mirror.h"
#include "kernels/backend/cuda/cuda_runtime.h"
#include "kernels/backend/worker_pool.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "proto/mutex.h"

namespace rope::kernels {
namespace {

constexpr int kDevice = 0;
// Chunks in flight per thread: one on its way to the device, one on its way back, and one that the
// thread packs or unpacks.
constexpr size_t kDepth = 3;

absl::StatusOr<CudaMemory> MemoryOf(const void* address) {
  cudaPointerAttributes attributes;
  ROPE_RETURN_IF_ERROR(
      CudaStatus(cudaPointerGetAttributes(&attributes, address), "cudaPointerGetAttributes"));
  switch (attributes.type) {
    case cudaMemoryTypeHost:
      return CudaMemory::kPinned;
    case cudaMemoryTypeDevice:
      return attributes.device == kDevice ? CudaMemory::kDevice : CudaMemory::kElsewhere;
    case cudaMemoryTypeManaged:
      return CudaMemory::kDevice;
    case cudaMemoryTypeUnregistered:
      break;
  }
  return CudaMemory::kHost;
}

absl::StatusOr<std::vector<CudaPlacedJob>> PlaceJobs(absl::Span<const RotateJob> jobs) {
  std::vector<CudaPlacedJob> placed;
  placed.reserve(jobs.size());
  for (const RotateJob& job : jobs) {
    CheckJob(job);
    if (job.tokens == 0 || job.heads == 0) continue;
    ROPE_ASSIGN_OR_RETURN(const CudaMemory input, MemoryOf(job.input));
    CudaMemory output = input;
    if (job.output != job.input) {
      ROPE_ASSIGN_OR_RETURN(output, MemoryOf(job.output));
    }
    placed.push_back({&job, input, output});
  }
  return placed;
}

CudaRectangle InputRectangle(const CudaPiece& piece) {
  return {piece.tokens, piece.heads, piece.job->head_dim, ElementBytes(piece.job->dtype)};
}
CudaRectangle OutputRectangle(const CudaPiece& piece) {
  return {piece.tokens, piece.heads, piece.job->head_dim, ElementBytes(piece.job->stored())};
}

// A chunk in flight, with the lane and the pages that it uses.
struct Flight {
  const CudaChunk* chunk;
  std::unique_ptr<CudaLane> lane;
  CudaPageMirror::Lease pages;
};

// The distinct pages of a chunk's rows.
class ChunkPages {
 public:
  explicit ChunkPages(const CudaChunk& chunk) {
    const CudaPiece* before = nullptr;
    for (const CudaPiece& piece : chunk.pieces) {
      const bool shared = before != nullptr && SharesRows(*before, piece);
      before = &piece;
      if (piece.job->geometry.pairs == 0 || shared) continue;
      for (int64_t i = 0; i < piece.tokens; ++i) Add(RowAt(piece, i).page);
    }
  }

  static const RowRef& RowAt(const CudaPiece& piece, int64_t index) {
    return piece.job->rows[static_cast<size_t>(piece.token + index)];
  }
  absl::Span<const TablePage* const> pages() const { return pages_; }
  size_t IndexOf(const TablePage* page) const { return indices_.at(page->id()); }

 private:
  void Add(const TablePage* page) {
    if (!pages_.empty() && pages_.back() == page) return;
    if (indices_.try_emplace(page->id(), pages_.size()).second) pages_.push_back(page);
  }

  std::vector<const TablePage*> pages_;
  absl::flat_hash_map<uint64_t, size_t> indices_;
};

// Writes the device addresses of the piece's rows to `rows`.
void FillRows(const CudaPiece& piece, const ChunkPages& pages, const CudaPageMirror::Lease& lease,
              const float** rows) {
  const TablePage* page = nullptr;
  const float* address = nullptr;
  for (int64_t i = 0; i < piece.tokens; ++i) {
    const RowRef& row = ChunkPages::RowAt(piece, i);
    if (row.page != page) {
      page = row.page;
      address = lease.address(pages.IndexOf(page));
    }
    rows[i] = address + row.index * 2 * page->columns();
  }
}

// Writes the piece's floats (cuda_batch.h) to `pinned`. `device` is their address for the kernel.
void FillFloats(const CudaPiece& piece, char* pinned, const char* device, CudaJob& result) {
  const RotateJob& job = *piece.job;
  if (!job.token_scales.empty()) {
    const size_t bytes = static_cast<size_t>(piece.tokens) * sizeof(float);
    std::memcpy(pinned, job.token_scales.data() + piece.token, bytes);
    result.token_scales = reinterpret_cast<const float*>(device);
    pinned += bytes;
    device += bytes;
  }
  if (job.norm && job.norm->weight != nullptr) {
    std::memcpy(pinned, job.norm->weight, static_cast<size_t>(job.head_dim) * sizeof(float));
    result.norm_weight = reinterpret_cast<const float*>(device);
  }
}

// The job for the kernel. Each side is the piece's slot in the lane, or the tensor itself if it has
// no slot.
CudaJob CudaJobOf(const CudaPiece& piece, char* device, const float* const* rows) {
  const RotateJob& job = *piece.job;
  ROPE_CHECK(job.head_dim <= kCudaHeadDimMax);  // by far more than a server admits
  CudaJob result = CudaSettings(job);
  const bool input_slot = piece.input != CudaRoute::kNone;
  const bool output_slot = piece.output != CudaRoute::kNone;
  result.input = input_slot ? device + piece.slot : piece.input_data();
  result.output = output_slot ? device + piece.output_slot : piece.output_data();
  const Strides& from = input_slot ? piece.slot_strides : job.input_strides;
  const Strides& to = output_slot ? piece.slot_strides : job.output_strides;
  result.rows = rows;
  result.input_token = from.token;
  result.input_head = from.head;
  result.output_token = to.token;
  result.output_head = to.head;
  result.tokens = piece.tokens;
  result.heads = piece.heads;
  return result;
}

// Fills the pinned side of the lane with tensors, row addresses, floats and jobs. Returns the plan
// of the launches.
CudaPlan PackChunk(const CudaChunk& chunk, const ChunkPages& pages, const Flight& flight) {
  char* const pinned = flight.lane->pinned.data();
  char* const device = flight.lane->device.data();
  std::vector<CudaJob> jobs;
  jobs.reserve(chunk.pieces.size());
  int64_t rows_end = chunk.rows_offset;
  int64_t rows_begin = rows_end;  // of the piece
  int64_t floats = chunk.floats_offset;
  const CudaPiece* before = nullptr;
  for (const CudaPiece& piece : chunk.pieces) {
    if (piece.input == CudaRoute::kStaged) {
      CopyRectangle(InputRectangle(piece), piece.input_data(), piece.job->input_strides,
                    pinned + piece.slot, piece.slot_strides);
    }
    if (before == nullptr || !SharesRows(*before, piece)) {
      rows_begin = rows_end;
      rows_end += piece.tokens * static_cast<int64_t>(sizeof(const float*));
      if (piece.job->geometry.pairs > 0) {
        FillRows(piece, pages, flight.pages, reinterpret_cast<const float**>(pinned + rows_begin));
      }
    }
    before = &piece;
    jobs.push_back(
        CudaJobOf(piece, device, reinterpret_cast<const float* const*>(device + rows_begin)));
    FillFloats(piece, pinned + floats, device + floats, jobs.back());
    floats += piece.floats() * static_cast<int64_t>(sizeof(float));
  }
  CudaPlan plan = PlanCuda(jobs);
  ROPE_CHECK(plan.jobs.size() <= chunk.pieces.size());
  if (!plan.jobs.empty()) {
    std::memcpy(pinned + chunk.jobs_offset, plan.jobs.data(), plan.jobs.size() * sizeof(CudaJob));
  }
  return plan;
}

absl::Status CopyIn(const CudaChunk& chunk, const CudaLane& lane) {
  ROPE_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(lane.device.data(), lane.pinned.data(),
                                                  static_cast<size_t>(chunk.direct_offset),
                                                  cudaMemcpyHostToDevice, lane.stream.get()),
                                  "cudaMemcpyAsync"));
  for (const CudaPiece& piece : chunk.pieces) {
    if (piece.input != CudaRoute::kDirect) continue;
    ROPE_RETURN_IF_ERROR(
        CopyRectangleAsync(InputRectangle(piece), piece.input_data(), piece.job->input_strides,
                           lane.device.data() + piece.slot, piece.slot_strides, lane.stream.get()));
  }
  return absl::OkStatus();
}

absl::Status CopyOut(const CudaChunk& chunk, const CudaLane& lane) {
  int64_t begin = chunk.rows_offset;
  int64_t end = 0;
  for (const CudaPiece& piece : chunk.pieces) {
    if (piece.output == CudaRoute::kStaged) {
      begin = std::min(begin, piece.output_slot);
      end = std::max(end, piece.output_slot + piece.output_bytes());
    }
    if (piece.output == CudaRoute::kDirect) {
      ROPE_RETURN_IF_ERROR(CopyRectangleAsync(
          OutputRectangle(piece), lane.device.data() + piece.output_slot, piece.slot_strides,
          piece.output_data(), piece.job->output_strides, lane.stream.get()));
    }
  }
  if (begin >= end) return absl::OkStatus();
  return CudaStatus(
      cudaMemcpyAsync(lane.pinned.data() + begin, lane.device.data() + begin,
                      static_cast<size_t>(end - begin), cudaMemcpyDeviceToHost, lane.stream.get()),
      "cudaMemcpyAsync");
}

void Unpack(const CudaChunk& chunk, const CudaLane& lane) {
  for (const CudaPiece& piece : chunk.pieces) {
    if (piece.output != CudaRoute::kStaged) continue;
    CopyRectangle(OutputRectangle(piece), lane.pinned.data() + piece.output_slot,
                  piece.slot_strides, piece.output_data(), piece.job->output_strides);
  }
}

class CudaBackend : public Backend {
 public:
  CudaBackend(const BackendOptions& options, std::string detail)
      : detail_(std::move(detail)),
        pool_(options.threads),
        mirror_(kCudaMirrorBytes),
        lanes_(std::clamp(static_cast<int>(kDepth) * options.threads, 4, kCudaLanesMax)) {}

  std::string_view name() const override { return "cuda:0"; }
  std::string detail() const override { return detail_; }

  // Initialises the device and the first lane, so that the first request does not wait for them.
  absl::Status WarmUp() {
    ROPE_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(kDevice), "cudaSetDevice"));
    ROPE_ASSIGN_OR_RETURN(std::unique_ptr<CudaLane> lane, lanes_.Acquire(kCudaLaneBytes));
    lanes_.Release(std::move(lane));
    return absl::OkStatus();
  }

  absl::Status Rotate(absl::Span<const RotateJob> jobs) override {
    ROPE_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(kDevice), "cudaSetDevice"));
    ROPE_ASSIGN_OR_RETURN(const std::vector<CudaPlacedJob> placed, PlaceJobs(jobs));
    Batch batch;
    batch.chunks = CutCudaBatch(placed, pool_.threads());
    const auto chunks = static_cast<int64_t>(batch.chunks.size());
    pool_.ParallelFor(std::min<int64_t>(pool_.threads(), chunks),
                      [this, &batch](int64_t) { RunChunks(batch); });
    proto::MutexLock lock(&batch.mu);
    return batch.status;
  }

 private:
  // State that the threads of one Rotate share.
  struct Batch {
    std::vector<CudaChunk> chunks;
    std::atomic<size_t> next = 0;
    std::atomic<bool> failed = false;
    proto::Mutex mu;
    absl::Status status ABSL_GUARDED_BY(mu);  // the first error

    void Note(const absl::Status& outcome) {
      if (outcome.ok()) return;
      failed = true;
      proto::MutexLock lock(&mu);
      status.Update(outcome);
    }
  };

  // Takes chunks until none is left and keeps up to kDepth in flight. Holds no lock. Waits for a
  // lane only while it holds none; otherwise it finishes its oldest chunk first. So threads cannot
  // deadlock on each other's lanes.
  void RunChunks(Batch& batch) {
    std::deque<Flight> flights;
    const auto land = [&] {
      batch.Note(Finish(flights.front()));
      flights.pop_front();
    };
    while (!batch.failed) {
      const size_t index = batch.next.fetch_add(1);
      if (index >= batch.chunks.size()) break;
      const CudaChunk& chunk = batch.chunks[index];
      if (flights.size() == kDepth) land();
      absl::StatusOr<std::unique_ptr<CudaLane>> lane = nullptr;
      while (lane.ok() && *lane == nullptr) {
        lane = flights.empty() ? lanes_.Acquire(chunk.bytes) : lanes_.TryAcquire(chunk.bytes);
        if (lane.ok() && *lane == nullptr) land();
      }
      batch.Note(lane.status());
      if (!lane.ok()) break;
      flights.push_back({&chunk, *std::move(lane), {}});
      const absl::Status started = Start(flights.back());
      batch.Note(started);
      if (started.ok()) continue;
      Abandon(flights.back());
      flights.pop_back();
    }
    while (!flights.empty()) land();
  }

  absl::Status Start(Flight& flight) {
    const CudaChunk& chunk = *flight.chunk;
    const CudaLane& lane = *flight.lane;
    const ChunkPages pages(chunk);
    if (!pages.pages().empty()) {
      ROPE_ASSIGN_OR_RETURN(flight.pages, mirror_.Acquire(pages.pages()));
    }
    const CudaPlan plan = PackChunk(chunk, pages, flight);
    ROPE_RETURN_IF_ERROR(CopyIn(chunk, lane));
    ROPE_RETURN_IF_ERROR(CudaStatus(
        LaunchCuda(plan, reinterpret_cast<const CudaJob*>(lane.device.data() + chunk.jobs_offset),
                   lane.stream.get()),
        "cudaLaunchKernel"));
    return CopyOut(chunk, lane);
  }

  absl::Status Finish(Flight& flight) {
    absl::Status status = flight.lane->stream.Synchronize();
    if (!status.ok()) {
      Abandon(flight);
      return status;
    }
    Unpack(*flight.chunk, *flight.lane);
    lanes_.Release(std::move(flight.lane));
    return absl::OkStatus();
  }

  // After an error: waits for the lane's stream. Then nothing accesses the caller's or the lane's
  // memory any more.
  void Abandon(Flight& flight) {
    static_cast<void>(flight.lane->stream.Synchronize());
    lanes_.Discard(std::move(flight.lane));
  }

  const std::string detail_;
  WorkerPool pool_;
  CudaPageMirror mirror_;
  CudaLanes lanes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const BackendOptions& options) {
  ROPE_ASSIGN_OR_RETURN(std::string detail, FindCudaDevice());
  auto backend = std::make_unique<CudaBackend>(options, std::move(detail));
  if (const absl::Status status = backend->WarmUp(); !status.ok()) {
    return absl::UnavailableError(status.message());
  }
  return backend;
}

}  // namespace rope::kernels
