# Embeds the kernels: -DPTX=FILE, nvcc's, becomes the string of OUTPUT.cc, and OUTPUT.ptx with the
# same text. Drivers since CUDA 11.0 read PTX 7.0. The kernels need nothing newer: used_bytes_mask is
# a hint of PTX 8.3.
file(READ "${PTX}" ROPE_CUDA_PTX)
string(REGEX REPLACE "\\.version [0-9.]+" ".version 7.0" ROPE_CUDA_PTX "${ROPE_CUDA_PTX}")
string(REGEX REPLACE "[^\n]*used_bytes_mask[^\n]*\n" "" ROPE_CUDA_PTX "${ROPE_CUDA_PTX}")
file(WRITE "${OUTPUT}.ptx" "${ROPE_CUDA_PTX}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/cuda_ptx.cc.in "${OUTPUT}.cc" @ONLY)
