// Runs the source of the CUDA kernels on the CPU, as a stand-in for a device.
//
// Threading:  Any thread.
// Errors:     A misaligned 16-byte access stops the process.
#ifndef ROPE_TESTS_SUPPORT_FAKE_CUDA_KERNEL_H_
#define ROPE_TESTS_SUPPORT_FAKE_CUDA_KERNEL_H_

#include <cstdint>
#include <string>

#include "kernels/backend/cuda/cuda_plan.h"

namespace rope::testing {

// kernel<<<blocks, threads>>>(jobs, count)
void RunCudaKernelOnCpu(kernels::CudaKernel kernel, uint32_t blocks, uint32_t threads,
                        const kernels::CudaJob* jobs, uint32_t count);
void RunCudaRectangleOnCpu(const std::string& name, const kernels::CudaGrid& blocks,
                           const kernels::CudaGrid& threads, const kernels::CudaRectangle& work);

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_FAKE_CUDA_KERNEL_H_
