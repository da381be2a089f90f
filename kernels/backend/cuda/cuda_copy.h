// Copies a rectangle of (token, head) vectors between two sets of strides, in as few runs of
// adjacent bytes as both allow.
//
// Threading:  Pure functions of their arguments.
// Errors:     CopyRectangleAsync: INTERNAL.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_COPY_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_COPY_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/rotate_job.h"

namespace rope::kernels {

struct CudaRectangle {
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t element_bytes = 0;
};

// By this thread, from host memory to host memory. Nothing between the vectors is touched.
void CopyRectangle(const CudaRectangle& rectangle, const char* source, const Strides& from,
                   char* target, const Strides& to);

// By the device, on `stream`: one side is this device's memory, the other whatever it can copy.
absl::Status CopyRectangleAsync(const CudaRectangle& rectangle, const char* source,
                                const Strides& from, char* target, const Strides& to,
                                cudaStream_t stream);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_COPY_H_
