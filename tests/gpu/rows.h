// The rows of rope_bench_cuda.
#ifndef ROPE_TESTS_GPU_ROWS_H_
#define ROPE_TESTS_GPU_ROWS_H_

#include <vector>

#include "tests/gpu/report.h"

namespace rope::bench {

// Kernels on tensors in device memory, and copies of the same bytes.
std::vector<CudaRow> DeviceRows();

// Whole calls of the cuda backend on tensors in device memory.
std::vector<CudaRow> BackendRows();

}  // namespace rope::bench

#endif  // ROPE_TESTS_GPU_ROWS_H_
