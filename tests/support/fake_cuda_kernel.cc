#include "tests/support/fake_cuda_kernel.h"

#include <algorithm>
#include <iterator>

#include "kernels/backend/cuda/cuda_fused_ops.cuh"
#include "kernels/backend/cuda/cuda_rectangle.cuh"
#include "kernels/check.h"

namespace rope::testing {

namespace {

using kernels::cuda_cpu_shim::Index;
using kernels::cuda_cpu_shim::Launch;

auto KernelOf(kernels::CudaKernel kernel) {
  switch (kernel) {
    case kernels::CudaKernel::kVector:
      return kernels::cuda_device::RotateVector;
    case kernels::CudaKernel::kScalar:
      return kernels::cuda_device::RotateScalar;
    case kernels::CudaKernel::kFused:
      break;
  }
  return kernels::cuda_device::RotateFused;
}

struct NamedRectangle {
  const char* name;
  void (*kernel)(kernels::CudaRectangle);
};
constexpr NamedRectangle kRectangles[] = {
#define ROPE_NAMED_RECTANGLE(OPS, TYPE, PAIRING, BLOCKS) \
  {"Rectangle" #OPS #TYPE #PAIRING, kernels::cuda_device::Rectangle##OPS##TYPE##PAIRING},
    ROPE_CUDA_RECTANGLES(ROPE_NAMED_RECTANGLE)
#undef ROPE_NAMED_RECTANGLE
};

}  // namespace

void RunCudaKernelOnCpu(kernels::CudaKernel kernel, uint32_t blocks, uint32_t threads,
                        const kernels::CudaJob* jobs, uint32_t count) {
  Launch(KernelOf(kernel), Index{blocks}, Index{threads}, jobs, count);
}

void RunCudaRectangleOnCpu(const std::string& name, const kernels::CudaGrid& blocks,
                           const kernels::CudaGrid& threads, const kernels::CudaRectangle& work) {
  const auto* const known =
      std::find_if(std::begin(kRectangles), std::end(kRectangles),
                   [&](const NamedRectangle& rectangle) { return rectangle.name == name; });
  ROPE_CHECK(known != std::end(kRectangles));
  Launch(known->kernel, Index{blocks.x, blocks.y, blocks.z}, Index{threads.x, threads.y, threads.z},
         work);
}

}  // namespace rope::testing
