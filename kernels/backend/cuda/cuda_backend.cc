#include "kernels/backend/cuda/cuda_backend.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "kernels/backend/cuda/cuda_batch.h"
#include "kernels/backend/cuda/cuda_host_memory.h"
#include "kernels/backend/cuda/cuda_launch.h"
#include "kernels/backend/cuda/cuda_memory.h"
#include "kernels/backend/cuda/cuda_page_mirror.h"
#include "kernels/backend/cuda/cuda_runtime.h"
#include "kernels/backend/rotate_job.h"
#include "kernels/backend/worker_pool.h"
#include "kernels/check.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"
#include "kernels/tables/page_builder.h"
#include "proto/mutex.h"

namespace rope::kernels {
namespace {

constexpr int kDevice = 0;
// Chunks in flight per thread: one on its way to the device, one on its way back, and one that the
// thread packs or unpacks.
constexpr size_t kDepth = 3;

int LanesWanted(int threads) {
  return std::clamp(static_cast<int>(kDepth) * threads, 4, kCudaLanesMax);
}

CudaRectangle RectangleOf(const CudaPiece& piece, DType dtype) {
  return {piece.tokens, piece.job->heads, piece.job->head_dim, ElementBytes(dtype)};
}

// A chunk in flight, with the lane and the pages that it uses. Unless it has landed, its destructor
// waits for the lane's stream: then nothing accesses the caller's or the lane's memory any more.
struct Flight {
  Flight(const CudaChunk& of, CudaLanes& from, CudaLane* taken)
      : chunk(&of), lanes(&from), lane(taken) {}
  ~Flight() {
    if (lane == nullptr) return;
    if (!landed) static_cast<void>(lane->stream.Synchronize());
    lanes->Release(lane);
  }
  Flight(Flight&& other) noexcept
      : chunk(other.chunk),
        lanes(other.lanes),
        lane(std::exchange(other.lane, nullptr)),
        pages(std::move(other.pages)),
        landed(other.landed) {}
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  const CudaChunk* chunk;
  CudaLanes* lanes;
  CudaLane* lane;
  CudaPageMirror::Lease pages;
  bool landed = false;
};

// The pages of the chunk's runs, in the order in which AddRuns goes through them.
std::vector<const TablePage*> PagesOf(const CudaChunk& chunk) {
  std::vector<const TablePage*> pages;
  for (const CudaPiece& piece : chunk.pieces) {
    if (!piece.in_pages) continue;
    for (int64_t i = 0; i < piece.tokens; i += kPageRows - piece.row(i).index) {
      pages.push_back(piece.row(i).page);
    }
  }
  return pages;
}

// Copies the rows of the piece's tokens to `rows`.
void FillRows(const CudaPiece& piece, float* rows) {
  const int64_t columns = 2 * piece.job->geometry.pairs;
  if (columns == 0) return;
  for (int64_t i = 0; i < piece.tokens; ++i) {
    const RowRef& row = piece.row(i);
    std::memcpy(rows + i * columns, row.page->Cos(row.index),
                static_cast<size_t>(columns) * sizeof(float));
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

// The job for the kernel, without its rows. Each side is the piece's slot in the lane, or the
// tensor itself if the device reaches it.
CudaJob CudaJobOf(const CudaPiece& piece, char* device) {
  const RotateJob& job = *piece.job;
  CudaJob result = CudaSettings(job);
  const bool input_slot = piece.slot >= 0;
  const bool output_slot = piece.output_slot >= 0;
  result.input = input_slot ? device + piece.slot : piece.input_data();
  result.output = output_slot ? device + piece.output_slot : piece.output_data();
  const Strides& from = input_slot ? piece.slot_strides : job.input_strides;
  const Strides& to = output_slot ? piece.slot_strides : job.output_strides;
  result.input_token = from.token;
  result.input_head = from.head;
  result.output_token = to.token;
  result.output_head = to.head;
  result.tokens = static_cast<uint32_t>(piece.tokens);
  result.heads = static_cast<uint32_t>(job.heads);
  return result;
}

// Adds `whole` once for each part of the piece whose rows are neighbours in the mirror. Its pages
// begin at number `page` of the lease.
void AddRuns(const CudaPiece& piece, const CudaJob& whole, const CudaPageMirror::Lease& lease,
             size_t& page, std::vector<CudaJob>& jobs) {
  const int64_t columns = 2 * piece.job->geometry.pairs;
  const float* end = nullptr;  // of the rows of jobs.back()
  for (int64_t i = 0; i < piece.tokens;) {
    const int64_t index = piece.row(i).index;
    const float* const begin = lease.address(page++) + index * columns;
    const int64_t tokens = std::min(kPageRows - index, piece.tokens - i);
    if (begin == end) {
      jobs.back().tokens += static_cast<uint32_t>(tokens);
    } else {
      CudaJob job = whole;
      job.rows = begin;
      job.input = static_cast<const char*>(whole.input) +
                  i * whole.input_token * ElementBytes(piece.job->dtype);
      job.output = static_cast<char*>(whole.output) +
                   i * whole.output_token * ElementBytes(piece.job->stored());
      if (whole.token_scales != nullptr) job.token_scales = whole.token_scales + i;
      job.tokens = static_cast<uint32_t>(tokens);
      jobs.push_back(job);
    }
    end = begin + tokens * columns;
    i += tokens;
  }
}

// Fills the pinned side of the lane with tensors, rows, floats and jobs. Returns the plan of the
// launches.
CudaPlan PackChunk(const Flight& flight, const CudaShapes& shapes) {
  const CudaChunk& chunk = *flight.chunk;
  char* const pinned = flight.lane->pinned;
  char* const device = flight.lane->device;
  std::vector<CudaJob> jobs;
  jobs.reserve(chunk.pieces.size());
  int64_t floats = chunk.floats_offset;
  size_t page = 0;
  const CudaPiece* before = nullptr;
  for (const CudaPiece& piece : chunk.pieces) {
    if (piece.slot >= 0) {
      CopyRectangle(RectangleOf(piece, piece.job->dtype), piece.input_data(),
                    piece.job->input_strides, pinned + piece.slot, piece.slot_strides);
    }
    CudaJob job = CudaJobOf(piece, device);
    FillFloats(piece, pinned + floats, device + floats, job);
    floats += piece.floats() * static_cast<int64_t>(sizeof(float));
    if (piece.in_pages) {
      AddRuns(piece, job, flight.pages, page, jobs);
    } else {
      if (before == nullptr || !SharesRows(*before, piece)) {
        FillRows(piece, reinterpret_cast<float*>(pinned + piece.rows));
      }
      job.rows = reinterpret_cast<const float*>(device + piece.rows);
      jobs.push_back(job);
    }
    before = &piece;
  }
  CudaPlan plan = PlanCuda(jobs, shapes);
  const auto bytes = static_cast<int64_t>(plan.jobs.size() * sizeof(CudaJob));
  ROPE_CHECK(!plan.NeedsTable() || chunk.jobs_offset + bytes <= kCudaLaneBytes);
  if (plan.NeedsTable()) {
    std::memcpy(pinned + chunk.jobs_offset, plan.jobs.data(), static_cast<size_t>(bytes));
  }
  return plan;
}

absl::Status CopyIn(const CudaChunk& chunk, const CudaPlan& plan, const CudaLane& lane) {
  const int64_t begin = chunk.upload_begin;
  const int64_t end =
      plan.NeedsTable()
          ? chunk.jobs_offset + static_cast<int64_t>(plan.jobs.size() * sizeof(CudaJob))
          : chunk.floats_end;
  if (begin >= end) return absl::OkStatus();
  return CudaStatus(
      cudaMemcpyAsync(lane.device + begin, lane.pinned + begin, static_cast<size_t>(end - begin),
                      cudaMemcpyHostToDevice, lane.stream.get()),
      "cudaMemcpyAsync");
}

absl::Status CopyBack(char* to, const char* from, int64_t bytes, const CudaLane& lane) {
  return CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                                    lane.stream.get()),
                    "cudaMemcpyAsync");
}

// One call copies each result that goes to a pinned output. One more copies the others to the lane.
absl::Status CopyOut(const CudaChunk& chunk, const CudaLane& lane) {
  int64_t begin = kCudaLaneBytes;
  int64_t end = 0;
  for (const CudaPiece& piece : chunk.pieces) {
    if (piece.job->output_memory == MemoryKind::kPinned) {
      ROPE_RETURN_IF_ERROR(CopyBack(piece.output_data(), lane.device + piece.output_slot,
                                    piece.output_bytes(), lane));
    } else if (piece.output_slot >= 0) {
      begin = std::min(begin, piece.output_slot);
      end = std::max(end, piece.output_slot + piece.output_bytes());
    }
  }
  if (begin >= end) return absl::OkStatus();
  return CopyBack(lane.pinned + begin, lane.device + begin, end - begin, lane);
}

void Unpack(const CudaChunk& chunk, const CudaLane& lane) {
  for (const CudaPiece& piece : chunk.pieces) {
    if (piece.job->output_memory != MemoryKind::kHost) continue;
    CopyRectangle(RectangleOf(piece, piece.job->stored()), lane.pinned + piece.output_slot,
                  piece.slot_strides, piece.output_data(), piece.job->output_strides);
  }
}

// Gives the context back when the rest of the backend is gone.
class DeviceOwner {
 public:
  explicit DeviceOwner(bool owns) : owns_(owns) {}
  ~DeviceOwner() {
    if (owns_) static_cast<void>(cudaDeviceReset());
    static_cast<void>(cudaGetLastError());
  }
  DeviceOwner(const DeviceOwner&) = delete;
  DeviceOwner& operator=(const DeviceOwner&) = delete;
  bool owns() const { return owns_; }

 private:
  const bool owns_;
};

class CudaBackend : public Backend {
 public:
  CudaBackend(const BackendOptions& options, const CudaShapes& shapes)
      : owner_(options.owns_device), shapes_(shapes), pool_(options.threads) {}
  ~CudaBackend() override {
    if (owner_.owns()) host_memory_->Close();
  }

  std::string_view name() const override { return "cuda:0"; }
  std::string detail() const override { return detail_; }
  std::shared_ptr<HostMemory> host_memory() override { return host_memory_; }

  // Takes all memory, and runs every kernel.
  absl::Status Start() {
    ROPE_ASSIGN_OR_RETURN(detail_, FindCudaDevice());
    const int lanes_wanted = LanesWanted(pool_.threads());
    ROPE_ASSIGN_OR_RETURN(CudaReserve reserve, CudaReserve::Create(lanes_wanted));
    reserve_.emplace(std::move(reserve));
    detail_ += "; " + reserve_->detail(lanes_wanted);
    mirror_.emplace(reserve_->table(), reserve_->table_bytes);
    ROPE_ASSIGN_OR_RETURN(lanes_, CudaLanes::Create(reserve_->lanes, reserve_->pinned.data(),
                                                    reserve_->lanes_device()));
    return CheckCudaBackend(*this);
  }

  absl::Status Rotate(absl::Span<const RotateJob> given) override {
    for (const RotateJob& job : given) {
      CheckJob(job);
      if (!IsFloat8(job.dtype) && !job.move.has_value()) continue;
      return proto::MakeError(Reason::kNotBuilt, "cuda", "an fp8 input, or a move by a table",
                       "a backend that has them");
    }
    const std::vector<RotateJob> placed = host_memory_->Place(given);
    const auto jobs = placed.empty() ? given : absl::MakeConstSpan(placed);
    Batch batch;
    ROPE_ASSIGN_OR_RETURN(batch.chunks,
                          CutCudaBatch(jobs, pool_.threads(), reserve_->table_bytes / 2));
    const auto chunks = static_cast<int64_t>(batch.chunks.size());
    pool_.ParallelFor(std::min<int64_t>(pool_.threads(), chunks), [this, &batch](int64_t) {
      try {
        RunChunks(batch);
      } catch (const std::bad_alloc&) {
        batch.Note(proto::MakeError({.reason = Reason::kBudgetFull}, "cuda: out of host memory"));
      }
    });
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

    bool Note(const absl::Status& outcome) {
      if (outcome.ok()) return true;
      failed = true;
      proto::MutexLock lock(&mu);
      status.Update(outcome);
      return false;
    }
  };

  // Takes chunks until none is left and keeps up to kDepth in flight. Holds no lock. Waits for a
  // lane, or for room in the mirror, only while it has none in flight; otherwise it finishes its
  // oldest chunk first. So threads cannot deadlock on what others hold.
  void RunChunks(Batch& batch) {
    if (!batch.Note(CudaStatus(cudaSetDevice(kDevice), "cudaSetDevice"))) return;
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
      CudaLane* lane = nullptr;
      while (lane == nullptr) {
        lane = flights.empty() ? lanes_->Acquire() : lanes_->TryAcquire();
        if (lane == nullptr) land();
      }
      Flight flight(chunk, *lanes_, lane);
      const std::vector<const TablePage*> pages = PagesOf(chunk);
      auto lease = mirror_->Acquire(pages, *lane, flights.empty());
      while (lease.ok() && !lease->has_value()) {
        land();
        lease = mirror_->Acquire(pages, *lane, flights.empty());
      }
      absl::Status status = lease.status();
      if (status.ok()) {
        flight.pages = **std::move(lease);
        status = Launch(flight);
      }
      if (batch.Note(status)) flights.push_back(std::move(flight));
    }
    while (!flights.empty()) land();
  }

  absl::Status Launch(const Flight& flight) {
    const CudaChunk& chunk = *flight.chunk;
    const CudaLane& lane = *flight.lane;
    const CudaPlan plan = PackChunk(flight, shapes_);
    ROPE_RETURN_IF_ERROR(CopyIn(chunk, plan, lane));
    const auto* const jobs = reinterpret_cast<const CudaJob*>(lane.device + chunk.jobs_offset);
    ROPE_RETURN_IF_ERROR(CudaStatus(LaunchCuda(plan, jobs, lane.stream.get()), "cudaLaunchKernel"));
    return CopyOut(chunk, lane);
  }

  static absl::Status Finish(Flight& flight) {
    ROPE_RETURN_IF_ERROR(flight.lane->stream.Synchronize());
    flight.landed = true;
    Unpack(*flight.chunk, *flight.lane);
    return absl::OkStatus();
  }

  const DeviceOwner owner_;  // destroyed last
  const CudaShapes shapes_;
  std::string detail_;
  WorkerPool pool_;
  const std::shared_ptr<CudaHostMemory> host_memory_ = std::make_shared<CudaHostMemory>(kDevice);
  // Set by Start.
  std::optional<CudaReserve> reserve_;
  std::optional<CudaPageMirror> mirror_;
  std::unique_ptr<CudaLanes> lanes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const BackendOptions& options,
                                                         const CudaShapes& shapes) {
  // Threads that wait for the device yield their processor. To sleep would take as long as a small
  // batch, and CUDA's own choice for a lone process is to spin.
  if (options.owns_device) static_cast<void>(cudaSetDeviceFlags(cudaDeviceScheduleYield));
  static_cast<void>(cudaGetLastError());
  auto backend = std::make_unique<CudaBackend>(options, shapes);
  const absl::Status status = backend->Start();
  if (absl::IsUnavailable(status)) return status;
  if (!status.ok()) return NoCudaDevice(std::string(status.message()));
  return backend;
}

}  // namespace rope::kernels
