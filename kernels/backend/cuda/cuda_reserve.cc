#include "kernels/backend/cuda/cuda_reserve.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/backend/cuda/cuda_lanes.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

absl::StatusOr<CudaReserve> Reserve(int64_t table_bytes, int lanes) {
  const int64_t lane_bytes = lanes * kCudaLaneBytes;
  ROPE_ASSIGN_OR_RETURN(CudaBuffer device,
                        CudaBuffer::Create(CudaBuffer::Kind::kDevice, table_bytes + lane_bytes));
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
