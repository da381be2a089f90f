// CudaReserve: all memory that the CUDA backend uses, taken at the start, so that a device which
// others fill later cannot fail a batch.
//
// Threading:  Thread-compatible.
// Ownership:  Owns the memory.
// Errors:     Create: UNAVAILABLE, with what there is and what is wanted, if even the smallest
//             reserve does not fit; another error of CUDA as CudaStatus.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_RESERVE_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_RESERVE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend/cuda/cuda_runtime.h"

namespace rope::kernels {

// Tables: the default size of the server's table cache, so that its pages fit here too. Each step
// down halves tables and lanes, down to the smallest.
inline constexpr int64_t kCudaTableBytes = int64_t{256} << 20;
inline constexpr int64_t kCudaTableBytesMin = int64_t{8} << 20;
// 64 MiB a side in total: the tensors of one large request in flight.
inline constexpr int kCudaLanesMax = 32;

struct CudaReserve {
  // `lanes_wanted`: 1 to kCudaLanesMax.
  static absl::StatusOr<CudaReserve> Create(int lanes_wanted);

  std::string detail(int lanes_wanted) const;  // for people
  char* table() const { return device.data(); }
  char* lanes_device() const { return device.data() + table_bytes; }

  CudaBuffer device;  // the table's block, then the lanes
  CudaBuffer pinned;  // the lanes
  int64_t table_bytes;
  int lanes;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_RESERVE_H_
