// Element types of rotated tensors, the pairing of their channels, and what is done to a pair.
#ifndef ROPE_KERNELS_DTYPE_H_
#define ROPE_KERNELS_DTYPE_H_

#include <cstdint>
#include <string_view>

namespace rope::kernels {

// The 8-bit ones are for output alone (float8.h).
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
  switch (dtype) {
    case DType::kFloat32:
      return "fp32";
    case DType::kFloat16:
      return "fp16";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat8E4M3:
      return "fp8_e4m3";
    case DType::kFloat8E5M2:
      return "fp8_e5m2";
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

// What is done to a pair (a, b), with c and s of its row.
enum class PairArithmetic {
  kTurn,  // a' = a c - b s, b' = b c + a s in float32, rounded once
  // The same in the steps of Hugging Face's eager code: each product and each sum is one operation
  // in float32 and is rounded to the dtype before the next.
  kTurnStepwise,
  kAdd,  // a' = a + s, b' = b + c in float32: adds a sinusoidal table
};

// "turn", "turn stepwise" or "add".
constexpr std::string_view Name(PairArithmetic arithmetic) {
  switch (arithmetic) {
    case PairArithmetic::kTurn:
      return "turn";
    case PairArithmetic::kTurnStepwise:
      return "turn stepwise";
    case PairArithmetic::kAdd:
      return "add";
  }
  return "invalid";
}

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_DTYPE_H_
