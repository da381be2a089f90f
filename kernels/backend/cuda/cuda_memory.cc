#include "kernels/backend/cuda/cuda_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

struct Dimension {
  int64_t count;
  int64_t from;  // strides in bytes
  int64_t to;
};

// Merges a dimension into the run if its vectors are adjacent on both sides.
void Merge(int64_t& run, Dimension& dimension) {
  const bool adjacent = dimension.from == run && dimension.to == run;
  if (dimension.count != 1 && !adjacent) return;
  run *= dimension.count;
  dimension.count = 1;
}

}  // namespace

void CopyRectangle(const CudaRectangle& rectangle, const char* source, const Strides& from,
                   char* target, const Strides& to) {
  const int64_t bytes = rectangle.element_bytes;
  int64_t run = rectangle.head_dim * bytes;  // of adjacent bytes
  Dimension inner = {rectangle.heads, from.head * bytes, to.head * bytes};
  Dimension outer = {rectangle.tokens, from.token * bytes, to.token * bytes};
  if (outer.from < inner.from) std::swap(inner, outer);
  Merge(run, inner);
  if (inner.count == 1) Merge(run, outer);
  for (int64_t i = 0; i < outer.count; ++i) {
    for (int64_t j = 0; j < inner.count; ++j) {
      std::memcpy(target + i * outer.to + j * inner.to, source + i * outer.from + j * inner.from,
                  static_cast<size_t>(run));
    }
  }
}

absl::StatusOr<std::unique_ptr<CudaLanes>> CudaLanes::Create(int lanes, char* pinned,
                                                             char* device) {
  auto result = std::unique_ptr<CudaLanes>(new CudaLanes);  // the constructor is private
  for (int64_t i = 0; i < lanes; ++i) {
    ROPE_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Create());
    result->lanes_.push_back(
        {pinned + i * kCudaLaneBytes, device + i * kCudaLaneBytes, std::move(stream)});
  }
  proto::MutexLock lock(&result->mu_);
  for (CudaLane& lane : result->lanes_) result->free_.push_back(&lane);
  return result;
}

CudaLane* CudaLanes::Acquire() {
  proto::MutexLock lock(&mu_);
  while (free_.empty()) released_.Wait(&mu_);
  return Pop();
}

CudaLane* CudaLanes::TryAcquire() {
  proto::MutexLock lock(&mu_);
  return free_.size() < 2 ? nullptr : Pop();
}

void CudaLanes::Release(CudaLane* lane) {
  proto::MutexLock lock(&mu_);
  free_.push_back(lane);
  released_.Signal();
}

CudaLane* CudaLanes::Pop() {
  CudaLane* const lane = free_.back();
  free_.pop_back();
  return lane;
}

namespace {

absl::StatusOr<CudaReserve> Reserve(int64_t table_bytes, int lanes) {
  const int64_t lane_bytes = lanes * kCudaLaneBytes;
  ROPE_ASSIGN_OR_RETURN(CudaBuffer device,
                        CudaBuffer::Create(CudaBuffer::Kind::kDevice, table_bytes + lane_bytes));
  // Copies back take along the gaps between results, which nothing writes.
  ROPE_RETURN_IF_ERROR(CudaStatus(
      cudaMemset(device.data() + table_bytes, 0, static_cast<size_t>(lane_bytes)), "cudaMemset"));
  ROPE_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  ROPE_ASSIGN_OR_RETURN(CudaBuffer pinned,
                        CudaBuffer::Create(CudaBuffer::Kind::kPinned, lane_bytes));
  return CudaReserve{std::move(device), std::move(pinned), table_bytes, lanes};
}

}  // namespace

absl::StatusOr<CudaReserve> CudaReserve::Create(int lanes_wanted) {
  for (int step = 0;; ++step) {
    const int64_t table_bytes = std::max(kCudaTableBytes >> step, kCudaTableBytesMin);
    const int lanes = std::max(lanes_wanted >> step, 1);
    absl::StatusOr<CudaReserve> reserve = Reserve(table_bytes, lanes);
    if (reserve.ok() || proto::PartsOf(reserve.status()).reason != Reason::kBudgetFull) {
      return reserve;
    }
    if (table_bytes > kCudaTableBytesMin || lanes > 1) continue;
    return NoCudaDevice(
        absl::StrFormat("%s, want %d MiB of device memory and %d MiB of pinned memory (%s)",
                        CudaMemoryWords(), (table_bytes + kCudaLaneBytes) >> 20,
                        kCudaLaneBytes >> 20, std::string(reserve.status().message())));
  }
}

std::string CudaReserve::detail(int lanes_wanted) const {
  std::string words = absl::StrFormat("reserved %d MiB for tables and %d lanes of %d MiB",
                                      table_bytes >> 20, lanes, kCudaLaneBytes >> 20);
  if (table_bytes < kCudaTableBytes || lanes < lanes_wanted) {
    words += absl::StrFormat(" (memory is short, want %d MiB and %d lanes)", kCudaTableBytes >> 20,
                             lanes_wanted);
  }
  return words;
}

}  // namespace rope::kernels
