// DeviceQueue: where Client::Enqueue puts its work. Client, server and kernels use the same struct;
// this header includes nothing but the standard library and compiles as C++17.
//
// Threading:  A value.
// Ownership:  Borrows the stream until the call has returned, and the count until the work has run.
#ifndef ROPE_DEVICE_H_
#define ROPE_DEVICE_H_

#include <cstdint>

namespace rope {

struct DeviceQueue {
  int device = 0;  // the driver's number of the GPU, 0 or more: of "cuda:0"
  // A cudaStream_t or CUstream of the device's primary context, which the CUDA runtime uses. Null:
  // the legacy default stream.
  void* stream = nullptr;
  // Rows of the table that the rotation needs on the device: it has positions 0 to positions_max -
  // 1. 0: max_position_embeddings of the config. At most 2^30.
  int64_t positions_max = 0;
  // In memory of the device, or null. Counts tokens whose positions, on the device, lie outside of
  // the table. They rotate by its last row.
  uint32_t* positions_outside = nullptr;
  // True: the call makes resident what the rotation needs, and rotates nothing.
  bool prepares_only = false;
};

}  // namespace rope

#endif  // ROPE_DEVICE_H_
