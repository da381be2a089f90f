// Element types of rotated tensors, and the pairing of their channels.
#ifndef ROPE_KERNELS_DTYPE_H_
#define ROPE_KERNELS_DTYPE_H_

#include <cstdint>
#include <string_view>

namespace rope::kernels {

enum class DType { kFloat32, kFloat16, kBFloat16 };

constexpr int64_t ElementBytes(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

// "fp32", "fp16" or "bf16".
constexpr std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "fp32";
    case DType::kFloat16:
      return "fp16";
    case DType::kBFloat16:
      return "bf16";
  }
  return "invalid";
}

// Which two channels of a head turn together.
enum class Pairing {
  kHalf,         // i with i + rotary_dim/2 (GPT-NeoX)
  kInterleaved,  // 2i with 2i + 1 (GPT-J)
};

// "half" or "interleaved".
constexpr std::string_view Name(Pairing pairing) {
  return pairing == Pairing::kHalf ? "half" : "interleaved";
}

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_DTYPE_H_
