#include "kernels/backend/cuda/cuda_lanes.h"

#include <algorithm>
#include <utility>

#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

// Makes three CUDA calls that may synchronise the device, so mu_ is not held.
absl::StatusOr<std::unique_ptr<CudaLane>> MakeLane(int64_t bytes) {
  ROPE_ASSIGN_OR_RETURN(CudaBuffer pinned, CudaBuffer::Create(CudaBuffer::Kind::kPinned, bytes));
  ROPE_ASSIGN_OR_RETURN(CudaBuffer device, CudaBuffer::Create(CudaBuffer::Kind::kDevice, bytes));
  ROPE_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Create());
  return std::make_unique<CudaLane>(
      CudaLane{std::move(pinned), std::move(device), std::move(stream)});
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaLane>> CudaLanes::Acquire(int64_t bytes) {
  std::unique_ptr<CudaLane> lane;
  {
    proto::MutexLock lock(&mu_);
    while (!HasRoom()) room_.Wait(&mu_);
    lane = Pop();
  }
  return Prepare(std::move(lane), bytes);
}

absl::StatusOr<std::unique_ptr<CudaLane>> CudaLanes::TryAcquire(int64_t bytes) {
  std::unique_ptr<CudaLane> lane;
  {
    proto::MutexLock lock(&mu_);
    if (!HasRoom()) return nullptr;
    lane = Pop();
  }
  return Prepare(std::move(lane), bytes);
}

// An oversized lane is destroyed before mu_ is taken: freeing pinned memory is slow.
void CudaLanes::Release(std::unique_ptr<CudaLane> lane) {
  if (lane->pinned.bytes() > kCudaLaneBytes) lane.reset();
  proto::MutexLock lock(&mu_);
  --busy_;
  if (lane != nullptr) free_.push_back(std::move(lane));
  room_.Signal();
}

void CudaLanes::Discard(std::unique_ptr<CudaLane> lane) {
  lane.reset();
  proto::MutexLock lock(&mu_);
  --busy_;
  room_.Signal();
}

std::unique_ptr<CudaLane> CudaLanes::Pop() {
  ++busy_;
  if (free_.empty()) return nullptr;
  std::unique_ptr<CudaLane> lane = std::move(free_.back());
  free_.pop_back();
  return lane;
}

// Called without mu_, but the lane already counts in busy_, so no other thread takes its place. On
// failure Discard gives the place back and wakes a waiting thread.
absl::StatusOr<std::unique_ptr<CudaLane>> CudaLanes::Prepare(std::unique_ptr<CudaLane> lane,
                                                             int64_t bytes) {
  if (lane != nullptr && lane->pinned.bytes() >= bytes) return lane;
  lane.reset();
  absl::StatusOr<std::unique_ptr<CudaLane>> made = MakeLane(std::max(bytes, kCudaLaneBytes));
  if (!made.ok()) Discard(nullptr);
  return made;
}

}  // namespace rope::kernels
