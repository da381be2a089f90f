// Copies a rectangle of (token, head) vectors in host memory from one set of strides to another, in
// the longest runs of adjacent bytes that both sides allow.
//
// Threading:  A pure function of its arguments.
// Errors:     None.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_COPY_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_COPY_H_

#include <cstdint>

#include "kernels/backend/rotate_job.h"

namespace rope::kernels {

struct CudaRectangle {
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t element_bytes = 0;
};

// Bytes between the vectors are not touched.
void CopyRectangle(const CudaRectangle& rectangle, const char* source, const Strides& from,
                   char* target, const Strides& to);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_COPY_H_
