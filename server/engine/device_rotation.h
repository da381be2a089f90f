// DeviceRotation: the way of a planned request whose tensors lie on a device. It passes no batcher:
// its order is that of the caller's stream.
//
//   plan -> a rectangle for each run of evenly spaced tokens -> kernels::DeviceExecutor
//
// Threading:  Thread-safe, if its parts are. Runs on the calling thread.
// Errors:     As DeviceExecutor. INVALID_ARGUMENT: no length of the table is known.
//             RESOURCE_EXHAUSTED: more than kDeviceJobsMax rectangles.
#ifndef ROPE_SERVER_ENGINE_DEVICE_ROTATION_H_
#define ROPE_SERVER_ENGINE_DEVICE_ROTATION_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/backend/cuda/device_executor.h"
#include "kernels/tables/table_cache.h"
#include "rope/device.h"
#include "server/request/plan.h"

namespace rope::server {

inline constexpr int64_t kDeviceJobsMax = 1024;

struct DeviceRotation {
  // Both must outlive it. Null: no calls for devices come here.
  kernels::DeviceExecutor* executor = nullptr;
  kernels::TableCache* tables = nullptr;  // of moves

  // Enqueues the plan. Returns the device's name. REQUIRES: plan.device.
  absl::StatusOr<std::string_view> Enqueue(const Plan& plan, const DeviceQueue& queue) const;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_DEVICE_ROTATION_H_
