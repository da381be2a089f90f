#include "kernels/backend/cuda/cuda_lanes.h"

#include <utility>

#include "kernels/status_macros.h"

namespace rope::kernels {

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

}  // namespace rope::kernels
