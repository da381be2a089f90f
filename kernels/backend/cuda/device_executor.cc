#include "kernels/backend/cuda/device_executor.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "kernels/backend/cuda/cuda_device.h"
#include "kernels/backend/cuda/cuda_driver.h"
#include "kernels/backend/cuda/cuda_plan.h"
#include "kernels/check.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"
#include "kernels/tables/page_builder.h"

namespace rope::kernels {
namespace {

constexpr int64_t kChunkPages = 32;  // built, then copied

int64_t BytesOfRow(const Frequencies& frequencies) {
  return 2 * std::ssize(frequencies.inv_freq) * static_cast<int64_t>(sizeof(float));
}

// Builds rows 0 to rows - 1 in `table`.
absl::Status Fill(const Frequencies& frequencies, int64_t rows, char* table) {
  const int64_t row_bytes = BytesOfRow(frequencies);
  const int64_t chunk_rows = std::min(kChunkPages * kPageRows, rows);
  ROPE_ASSIGN_OR_RETURN(const CudaPinnedMemory chunk,
                        AllocateCudaPinned(static_cast<size_t>(chunk_rows * row_bytes)));
  ROPE_ASSIGN_OR_RETURN(const CudaStream stream, CreateCudaStream());
  for (int64_t first = 0; first < rows; first += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - first);
    for (int64_t row = 0; row < count; row += kPageRows) {
      ROPE_ASSIGN_OR_RETURN(const auto page, BuildPage(frequencies, first + row));
      std::memcpy(chunk.get() + row * row_bytes, page->Cos(0),
                  static_cast<size_t>(std::min(kPageRows, count - row) * row_bytes));
    }
    ROPE_RETURN_IF_ERROR(CudaCopy(table + first * row_bytes, chunk.get(),
                                  static_cast<size_t>(count * row_bytes), stream));
    ROPE_RETURN_IF_ERROR(CudaSynchronize(stream));
  }
  return absl::OkStatus();
}

}  // namespace

// DeviceTables: the cos/sin tables that are resident on a GPU, each as a whole: rows 0 to N-1 of
// one TableKey, float32, at an address that stays, so that a captured graph may name it.
//
// A table is built on the calling thread, in pages as those of TableCache, so that its rows have
// the same bits: 131072 rows of 64 pairs take 0.2 seconds and 64 MiB. It never changes, grows or
// goes while the DeviceTables lives.
//
// Threading:  Thread-safe. Build holds up every other call.
// Ownership:  Owns the memory of the tables. REQUIRES of Build and the destructor: the device's
//             context is current on the thread.
// Errors:     RESOURCE_EXHAUSTED: the budget is full, or the device. As CudaStatus. std::bad_alloc.
// Limits:     budget_bytes of all tables together.
class DeviceTables {
 public:
  // What kernels read.
  struct View {
    const float* rows = nullptr;  // null: there is no such table
    int64_t count = 0;
  };

  explicit DeviceTables(int64_t budget_bytes) : budget_bytes_(budget_bytes) {}

  // The smallest resident table with at least `rows` rows.
  View Find(const Frequencies& frequencies, int64_t rows) const {
    const proto::ReaderMutexLock lock(&mutex_);
    return FindLocked(frequencies, rows);
  }
  // The same; if there is none, it is built with `rows` rows.
  absl::StatusOr<View> FindOrBuild(const Frequencies& frequencies, int64_t rows) {
    const proto::WriterMutexLock lock(&mutex_);
    const View found = FindLocked(frequencies, rows);
    if (found.rows != nullptr) return found;
    const int64_t bytes = rows * BytesOfRow(frequencies);
    if (bytes > budget_bytes_ - bytes_) {
      return MakeError(Reason::kLimitExceeded, "positions_max",
                       StrCat("a table of ", rows, " rows, ", bytes, " bytes, beside ", bytes_,
                              " bytes of others"),
                       StrCat("at most ", budget_bytes_, " together (device_table_bytes)"));
    }
    ROPE_ASSIGN_OR_RETURN(CudaMemory table, AllocateCuda(static_cast<size_t>(bytes)));
    ROPE_RETURN_IF_ERROR(Fill(frequencies, rows, table.get()));
    const View view = {reinterpret_cast<const float*>(table.get()), rows};
    tables_[frequencies.key].emplace(rows, std::move(table));
    bytes_ += bytes;
    return view;
  }

 private:
  View FindLocked(const Frequencies& frequencies, int64_t rows) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    const auto found = tables_.find(frequencies.key);
    if (found == tables_.end()) return {};
    const auto table = found->second.lower_bound(rows);
    if (table == found->second.end()) return {};
    return {reinterpret_cast<const float*>(table->second.get()), table->first};
  }

  const int64_t budget_bytes_;
  mutable proto::SharedMutex mutex_;
  // By key, then by the number of rows.
  absl::flat_hash_map<TableKey, std::map<int64_t, CudaMemory>> tables_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

struct DeviceExecutor::Gpu {
  explicit Gpu(int64_t table_bytes_max) : tables(table_bytes_max) {}

  std::unique_ptr<const CudaDevice> device;
  absl::Status checked;  // INTERNAL: a kernel failed or gave a wrong result
  DeviceTables tables;
};

namespace {

CUstream_st* StreamOf(const DeviceQueue& queue) {
  return static_cast<CUstream_st*>(queue.stream);
}

// FAILED_PRECONDITION while the stream is captured: what is to be made takes memory or waits. A
// stream that the driver does not know is refused later.
absl::Status CheckNotCaptured(const DeviceQueue& queue, const char* what) {
  int state = 0;
  const CudaError error = Cuda().cuStreamIsCapturing(StreamOf(queue), &state);
  const bool known = error == CudaError::kSuccess;
  if (known ? state == 0
            : error < CudaError::kCaptureUnsupported || error > CudaError::kCaptureWrongThread) {
    return absl::OkStatus();
  }
  return MakeError(Reason::kWrongState, "stream",
                   StrCat("a capture before the device has the ", what, " of this rotation"),
                   "a call before the capture, such as one with prepares_only");
}

std::string TensorField(const DeviceJob& job) {
  return StrCat("tensors[", job.tensor, "]");
}

// INVALID_ARGUMENT: `address` is not in memory of the queue's device.
absl::Status CheckAddress(const void* address, const std::string& field, const CudaDevice& device,
                          const DeviceQueue& queue) {
  unsigned type = 0;
  int ordinal = -1;
  int attributes[] = {kCudaMemoryType, kCudaDeviceOrdinal};
  void* values[] = {&type, &ordinal};
  ROPE_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuPointerGetAttributes(2, attributes, values, const_cast<void*>(address)),
                 "cuPointerGetAttributes"));
  if (type == kCudaDeviceMemory && ordinal == queue.device) return absl::OkStatus();
  const std::string got = type == kCudaDeviceMemory ? StrCat("memory of cuda:", ordinal)
                                                    : std::string("an address in host memory");
  return InvalidField(field, got, StrCat("memory of ", device.name(), ", the queue's device"));
}

absl::Status CheckAddresses(absl::Span<const DeviceJob> jobs, const CudaDevice& device,
                            const DeviceQueue& queue) {
  size_t tensors = 0;  // checked; their other jobs are in the same memory
  const void* positions = nullptr;
  for (const DeviceJob& job : jobs) {
    if (positions == nullptr) positions = job.rows.positions;
    if (job.tensor < tensors) continue;
    tensors = job.tensor + 1;
    ROPE_RETURN_IF_ERROR(CheckAddress(job.job.input, TensorField(job), device, queue));
    if (job.job.output == job.job.input) continue;
    ROPE_RETURN_IF_ERROR(CheckAddress(job.job.output, TensorField(job) + ".output", device, queue));
  }
  for (const auto& [address, field] :
       {std::pair(positions, "positions.position_ids"),
        std::pair(static_cast<const void*>(queue.positions_outside), "positions_outside")}) {
    if (address != nullptr) ROPE_RETURN_IF_ERROR(CheckAddress(address, field, device, queue));
  }
  return absl::OkStatus();
}

// Checks the kernels over rectangles, each by a job of a few bytes in host memory, whose tokens
// share a row. REQUIRES: the device's context is current.
absl::Status CheckKernels(const CudaDevice& device) {
  constexpr size_t kBytes = 4096;
  ROPE_ASSIGN_OR_RETURN(const CudaMemory memory, AllocateCuda(kBytes));
  ROPE_ASSIGN_OR_RETURN(const CudaPinnedMemory pinned, AllocateCudaPinned(kBytes));
  ROPE_ASSIGN_OR_RETURN(const CudaStream stream, CreateCudaStream());
  const auto rotate = [&](absl::Span<const RotateJob> jobs) -> absl::Status {
    const RotateJob& job = jobs.front();
    const auto bytes = static_cast<size_t>(job.bytes());
    const RowRef& row = job.rows.front();
    CudaJob planned = CudaJobOf(job);
    planned.one_row = row.page->Cos(row.index);
    planned.input = planned.output = memory.get();
    const auto launch = PlanCudaRectangle({planned});
    ROPE_CHECK(bytes <= kBytes && launch.has_value());
    std::memcpy(pinned.get(), job.input, bytes);
    ROPE_RETURN_IF_ERROR(CudaCopy(memory.get(), pinned.get(), bytes, stream));
    ROPE_RETURN_IF_ERROR(CudaStatus(device.Launch(*launch, stream.get()), "cuLaunchKernel"));
    ROPE_RETURN_IF_ERROR(CudaCopy(pinned.get(), memory.get(), bytes, stream));
    ROPE_RETURN_IF_ERROR(CudaSynchronize(stream));
    std::memcpy(job.output, pinned.get(), bytes);
    return absl::OkStatus();
  };
  return CheckCudaKernels(rotate, /*has_lists=*/false, /*has_rectangles=*/true);
}

// Whether all tokens rotate by a row of the table.
absl::Status CheckPositions(const DeviceJob& job, int64_t rows) {
  const int64_t first = job.rows.first;
  if (job.rows.positions != nullptr || (first >= 0 && first <= rows - job.job.tokens)) {
    return absl::OkStatus();
  }
  return MakeError(Reason::kPositionOutOfRange, "positions", first + job.job.tokens - 1,
                   StrCat("below the ", rows, " rows of the table on the device (positions_max)"));
}

void SetTable(const DeviceRows& rows, const DeviceTables::View& table, const DeviceQueue& queue,
              CudaRectangle& work) {
  work.first_row = rows.first;
  work.row_step = 1;
  work.row_count = table.count;
  work.positions = rows.positions;
  work.wide_positions = rows.wide ? 1 : 0;
  work.positions_outside = queue.positions_outside;
}

absl::Status NoRectangle(const DeviceJob& job) {
  return MakeError(Reason::kNotBuilt, TensorField(job),
                   "sizes, strides, addresses or a conversion that the GPU's kernels do not take",
                   "multiples of 16 bytes (fp8: 8), heads of at most 4096 bytes, moves of at most "
                   "64 pairs, and results of the input's type without a scale of fp8");
}

// The launch of the first jobs of the list; sets how many those are.
absl::StatusOr<CudaRectangleLaunch> PlanFirst(absl::Span<const DeviceJob> jobs,
                                              const DeviceTables::View& table,
                                              const DeviceQueue& queue, size_t& count) {
  const DeviceRows& rows = jobs.front().rows;
  std::vector<CudaJob> planned;
  planned.reserve(kCudaTensors);
  for (const DeviceJob& job : jobs) {
    if (planned.size() == kCudaTensors || !(job.rows == rows)) break;
    planned.push_back(CudaJobOf(job.job));
    planned.back().rows = table.rows;
    planned.back().one_row = rows.one_row;
  }
  std::optional<CudaRectangleLaunch> launch = PlanCudaRectangle(planned);
  count = planned.size();
  if (!launch.has_value() && count > 1) {
    count = 1;
    launch = PlanCudaRectangle({planned.front()});
  }
  const bool has_row = rows.one_row == nullptr || (launch && launch->work.rows == nullptr);
  if (!launch.has_value() || !has_row) return NoRectangle(jobs.front());
  if (table.rows != nullptr) SetTable(rows, table, queue, launch->work);
  return *launch;
}

}  // namespace

DeviceExecutor::DeviceExecutor(int64_t table_bytes_max) : table_bytes_max_(table_bytes_max) {}

DeviceExecutor::~DeviceExecutor() {
  for (auto& [ordinal, gpu] : gpus_) {
    const CudaCurrent current(gpu->device->context());
    gpu.reset();
  }
}

absl::StatusOr<DeviceExecutor::Gpu*> DeviceExecutor::FindOrOpen(const DeviceQueue& queue) {
  {
    const proto::ReaderMutexLock lock(&mutex_);
    const auto found = gpus_.find(queue.device);
    if (found != gpus_.end()) return found->second.get();
  }
  if (queue.device < 0) return InvalidField("device", queue.device, "the number of a GPU");
  if (*kCudaPtx == '\0') {
    return MakeError(Reason::kNotBuilt, "device", "memory of a GPU",
                     "a build with CUDA's kernels; this one was built without kernels");
  }
  ROPE_RETURN_IF_ERROR(FindCudaDriver().status());
  ROPE_RETURN_IF_ERROR(CheckNotCaptured(queue, "kernels"));
  const proto::WriterMutexLock lock(&mutex_);
  const auto found = gpus_.find(queue.device);
  if (found != gpus_.end()) return found->second.get();
  ROPE_ASSIGN_OR_RETURN(CudaDevice device, CudaDevice::Open(queue.device));
  const CudaCurrent current(device.context());
  ROPE_RETURN_IF_ERROR(current.status());
  auto gpu = std::make_unique<Gpu>(table_bytes_max_);
  gpu->device = std::make_unique<const CudaDevice>(std::move(device));
  gpu->checked = CheckKernels(*gpu->device);
  if (!absl::IsInternal(gpu->checked)) ROPE_RETURN_IF_ERROR(gpu->checked);
  return gpus_.emplace(queue.device, std::move(gpu)).first->second.get();
}

absl::StatusOr<std::string_view> DeviceExecutor::Enqueue(absl::Span<const DeviceJob> jobs,
                                                         int64_t table_rows,
                                                         const DeviceQueue& queue) {
  ROPE_ASSIGN_OR_RETURN(Gpu* const gpu, FindOrOpen(queue));
  ROPE_RETURN_IF_ERROR(gpu->checked);
  const CudaDevice& device = *gpu->device;
  const CudaCurrent current(device.context());
  ROPE_RETURN_IF_ERROR(current.status());
  ROPE_RETURN_IF_ERROR(CheckAddresses(jobs, device, queue));
  absl::InlinedVector<CudaRectangleLaunch, 1> launches;
  const Frequencies* found = nullptr;  // whose table `table` is
  DeviceTables::View table;
  for (size_t count = 0; !jobs.empty(); jobs.remove_prefix(count)) {
    const Frequencies* const wanted = jobs.front().rows.frequencies;
    if (wanted != nullptr && wanted != found) {
      table = gpu->tables.Find(*wanted, table_rows);
      if (table.rows == nullptr) {
        ROPE_RETURN_IF_ERROR(CheckNotCaptured(queue, "table"));
        ROPE_ASSIGN_OR_RETURN(table, gpu->tables.FindOrBuild(*wanted, table_rows));
      }
      found = wanted;
    }
    if (wanted != nullptr) ROPE_RETURN_IF_ERROR(CheckPositions(jobs.front(), table.count));
    const DeviceTables::View none;
    ROPE_ASSIGN_OR_RETURN(launches.emplace_back(),
                          PlanFirst(jobs, wanted != nullptr ? table : none, queue, count));
  }
  if (queue.prepares_only) return device.name();
  for (const CudaRectangleLaunch& launch : launches) {
    absl::Status status = CudaStatus(device.Launch(launch, StreamOf(queue)), "cuLaunchKernel");
    if (!status.ok()) return proto::MarkMayHaveExecuted(std::move(status));
  }
  return device.name();
}

}  // namespace rope::kernels
