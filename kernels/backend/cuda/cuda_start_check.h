// CheckCudaBackend: runs each kernel of a backend once, each with its jobs by value and in device
// memory, and the page mirror, and compares the results.
//
// Errors:     The backend's own; kInternal (backend.h) if a result is wrong.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_START_CHECK_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_START_CHECK_H_

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace rope::kernels {

absl::Status CheckCudaBackend(Backend& backend);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_START_CHECK_H_
