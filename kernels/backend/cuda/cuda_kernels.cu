// The kernels: the only file that nvcc compiles. It becomes PTX, which cuda_ptx.cmake embeds.
#include "kernels/backend/cuda/cuda_fused_ops.cuh"
#include "kernels/backend/cuda/cuda_rectangle.cuh"
