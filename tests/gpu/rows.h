// The rows of rope_bench_cuda.
#ifndef ROPE_TESTS_GPU_ROWS_H_
#define ROPE_TESTS_GPU_ROWS_H_

#include <vector>

#include "tests/gpu/report.h"

namespace rope::bench {

// Kernels on tensors in device memory, and copies of the same bytes.
std::vector<CudaRow> DeviceRows();

// Tensors in host memory through the cuda backend.
std::vector<CudaRow> HostRows();

}  // namespace rope::bench

#endif  // ROPE_TESTS_GPU_ROWS_H_
