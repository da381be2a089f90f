// Element types of rotated tensors.
#ifndef ROPE_KERNELS_DTYPE_DTYPE_H_
#define ROPE_KERNELS_DTYPE_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace rope::kernels {

// The 8-bit types are the OCP formats of accelerators (element.h).
enum class DType { kFloat32, kFloat16, kBFloat16, kFloat8E4M3, kFloat8E5M2 };

constexpr bool IsFloat8(DType dtype) {
  return dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2;
}

constexpr int64_t ElementBytes(DType dtype) {
  if (IsFloat8(dtype)) return 1;
  return dtype == DType::kFloat32 ? 4 : 2;
}

// "fp32", "fp16", "bf16", "fp8_e4m3" or "fp8_e5m2".
constexpr std::string_view Name(DType dtype) {
  constexpr std::string_view kNames[] = {"fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2"};
  const auto index = static_cast<size_t>(dtype);
  return index < std::size(kNames) ? kNames[index] : "invalid";
}

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_DTYPE_DTYPE_H_
