// The rows of rope_bench_cuda.
#ifndef ROPE_TESTS_GPU_ROWS_H_
#define ROPE_TESTS_GPU_ROWS_H_

#include <vector>

#include "tests/gpu/report.h"

namespace rope::bench {

// Kernels and calls on tensors in device memory, and copies of the same bytes.
std::vector<CudaRow> DeviceRows();

}  // namespace rope::bench

#endif  // ROPE_TESTS_GPU_ROWS_H_
