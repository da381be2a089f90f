// Element types of rotated tensors; the pairing of a head's channels, and the arithmetic on a pair.
#ifndef ROPE_KERNELS_DTYPE_DTYPE_H_
#define ROPE_KERNELS_DTYPE_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "rope/config.h"

namespace rope::kernels {

using rope::Pairing;

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

// The operation on a pair (a, b) with the cos c and the sin s of its row.
enum class PairArithmetic : uint8_t {
  kTurn,  // a' = a c - b s, b' = b c + a s in float32, rounded once
  // The same rotation in the steps of Hugging Face's eager code: each product and each sum is one
  // float32 operation, rounded to the dtype before the next step.
  kTurnStepwise,
  kAdd,  // a' = a + s, b' = b + c in float32: adds a sinusoidal table
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_DTYPE_DTYPE_H_
