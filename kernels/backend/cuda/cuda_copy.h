// Copies a rectangle of (token, head) vectors from one set of strides to another, in the longest
// runs of adjacent bytes that both sides allow.
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

// Copies from host memory to host memory, on this thread. Bytes between the vectors are not
// touched.
void CopyRectangle(const CudaRectangle& rectangle, const char* source, const Strides& from,
                   char* target, const Strides& to);

// Enqueues copies on `stream`. One side is memory of the device; the other is any memory that CUDA
// can copy.
absl::Status CopyRectangleAsync(const CudaRectangle& rectangle, const char* source,
                                const Strides& from, char* target, const Strides& to,
                                cudaStream_t stream);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_COPY_H_
