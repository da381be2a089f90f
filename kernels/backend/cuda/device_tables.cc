#include "kernels/backend/cuda/device_tables.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

#include "kernels/error.h"
#include "kernels/status_macros.h"
#include "kernels/tables/page_builder.h"

namespace rope::kernels {
namespace {

constexpr int64_t kChunkPages = 32;  // built, then copied

int64_t BytesOfRow(const Frequencies& frequencies) {
  return 2 * std::ssize(frequencies.inv_freq) * static_cast<int64_t>(sizeof(float));
}

// Enqueues a copy and waits for it.
absl::Status CopyIn(char* to, const char* from, int64_t bytes, CUstream_st* stream) {
  ROPE_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuMemcpyAsync(to, from, static_cast<size_t>(bytes), stream), "cuMemcpyAsync"));
  return CudaStatus(Cuda().cuStreamSynchronize(stream), "cuStreamSynchronize");
}

// Builds rows 0 to rows - 1 in `table`.
absl::Status Fill(const Frequencies& frequencies, int64_t rows, char* table) {
  const int64_t row_bytes = BytesOfRow(frequencies);
  const int64_t chunk_rows = std::min(kChunkPages * kPageRows, rows);
  void* memory = nullptr;
  ROPE_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuMemAllocHost(&memory, static_cast<size_t>(chunk_rows * row_bytes)),
                 "cuMemAllocHost"));
  const CudaPinnedMemory chunk(static_cast<char*>(memory));
  CUstream_st* made = nullptr;
  ROPE_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuStreamCreate(&made, kCudaStreamNonBlocking), "cuStreamCreate"));
  const CudaStream stream(made);
  for (int64_t first = 0; first < rows; first += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - first);
    for (int64_t row = 0; row < count; row += kPageRows) {
      ROPE_ASSIGN_OR_RETURN(const auto page, BuildPage(frequencies, first + row));
      std::memcpy(chunk.get() + row * row_bytes, page->Cos(0),
                  static_cast<size_t>(std::min(kPageRows, count - row) * row_bytes));
    }
    ROPE_RETURN_IF_ERROR(
        CopyIn(table + first * row_bytes, chunk.get(), count * row_bytes, stream.get()));
  }
  return absl::OkStatus();
}

}  // namespace

DeviceTables::View DeviceTables::FindLocked(const Frequencies& frequencies, int64_t rows) const {
  View view;
  const auto found = tables_.find(frequencies.key);
  if (found == tables_.end()) return view;
  for (const Table& table : found->second) {
    if (table.rows < rows || (view.rows != nullptr && table.rows >= view.count)) continue;
    view = {reinterpret_cast<const float*>(table.memory.get()), table.rows};
  }
  return view;
}

DeviceTables::View DeviceTables::Find(const Frequencies& frequencies, int64_t rows) const {
  const proto::ReaderMutexLock lock(&mutex_);
  return FindLocked(frequencies, rows);
}

absl::StatusOr<DeviceTables::View> DeviceTables::FindOrBuild(const Frequencies& frequencies,
                                                             int64_t rows) {
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
  void* memory = nullptr;
  ROPE_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuMemAlloc(&memory, static_cast<size_t>(bytes)), "cuMemAlloc"));
  CudaMemory table(static_cast<char*>(memory));
  ROPE_RETURN_IF_ERROR(Fill(frequencies, rows, table.get()));
  const View view = {reinterpret_cast<const float*>(table.get()), rows};
  tables_[frequencies.key].push_back({std::move(table), rows});
  bytes_ += bytes;
  return view;
}

}  // namespace rope::kernels
