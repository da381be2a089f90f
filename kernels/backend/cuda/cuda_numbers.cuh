// Numbers in the CUDA kernels: 16- and 8-bit floats, and the rotation of a pair. 16-bit conversions
// are intrinsics on the device and integer code with equal results on the host. 8-bit conversions
// are integer code on both.
//
// Threading:  Pure functions.
// Precision:  Rounding is explicit, so that CPU and device agree in every bit with any compiler
//             settings. Only the payload of a NaN may differ.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_NUMBERS_CUH_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_NUMBERS_CUH_

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include <cmath>

#include "kernels/backend/cuda/cuda_cpu_shim.h"
#endif

namespace rope::kernels::cuda_device {

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
struct Float8E4M3 {
  uint8_t bits;
};
struct Float8E5M2 {
  uint8_t bits;
};

__device__ __forceinline__ float FromBits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
__device__ __forceinline__ uint32_t ToBits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

__device__ __forceinline__ float Widen(float value) {
  return value;
}
__device__ __forceinline__ float Widen(BFloat16 value) {
  return FromBits(static_cast<uint32_t>(value.bits) << 16);
}
__device__ __forceinline__ float Widen(Float16 value) {
#if defined(__CUDACC__)
  __half_raw raw;
  raw.x = value.bits;
  return __half2float(__half(raw));
#else
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 31u;
  const uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 31u) return FromBits(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return FromBits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  return FromBits(sign | ToBits(static_cast<float>(mantissa) * 0x1p-24f));  // 0 and denormals
#endif
}

// A code is the start of a binary16: of e5m2 as it is, of e4m3 with an exponent that is 8 less.
__device__ __forceinline__ float Widen(Float8E5M2 value) {
  return Widen(Float16{static_cast<uint16_t>(value.bits << 8)});
}
__device__ __forceinline__ float Widen(Float8E4M3 value) {
  const uint32_t sign = (value.bits & 0x80u) << 8;
  const uint32_t magnitude = value.bits & 0x7fu;
  const float wide = Widen(Float16{static_cast<uint16_t>(sign | (magnitude << 7))}) * 256.0f;
  return magnitude == 0x7fu ? FromBits(0x7fc00000u) : wide;
}

// Rounds to nearest even; NaN stays NaN, denormals are kept.
template <typename T>
__device__ __forceinline__ T Narrow(float value);
template <>
__device__ __forceinline__ float Narrow<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ BFloat16 Narrow<BFloat16>(float value) {
#if defined(__CUDACC__)
  const __nv_bfloat16_raw raw = __float2bfloat16_rn(value);
  return BFloat16{raw.x};
#else
  const uint32_t bits = ToBits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return BFloat16{0x7fff};
  return BFloat16{static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
#endif
}
template <>
__device__ __forceinline__ Float16 Narrow<Float16>(float value) {
#if defined(__CUDACC__)
  const __half_raw raw = __float2half_rn(value);
  return Float16{raw.x};
#else
  const uint32_t bits = ToBits(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 16) & 0x8000u;
  if (magnitude > 0x7f800000u) return Float16{0x7fff};
  if (magnitude >= 0x477ff000u) return Float16{static_cast<uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {  // 0 and denormals: the addition rounds them
    const uint32_t rounded = ToBits(FromBits(magnitude) + 0.5f) - 0x3f000000u;
    return Float16{static_cast<uint16_t>(sign | rounded)};
  }
  const uint32_t rebased = magnitude - 0x38000000u;
  const uint32_t rounded = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
  return Float16{static_cast<uint16_t>(sign | rounded)};
#endif
}

// Rounds to nearest even and saturates (element.h). kDigits: bits of the fraction. kExponentMin:
// exponent of the smallest normal number.
template <int kDigits, int kExponentMin>
__device__ __forceinline__ uint8_t NarrowToFloat8(float value, float largest) {
  constexpr uint32_t kDropped = 23 - kDigits;
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(127 + kExponentMin) << 23;
  // A number whose last place is that of the denormals; adding it rounds a denormal result.
  constexpr uint32_t kRuler = static_cast<uint32_t>(127 + kExponentMin - kDigits + 23) << 23;
  const uint32_t sign = (ToBits(value) >> 24) & 0x80u;
  uint32_t magnitude = ToBits(value) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (magnitude > ToBits(largest)) magnitude = ToBits(largest);
  if (magnitude < kSmallestNormal) {
    const uint32_t rounded = ToBits(FromBits(magnitude) + FromBits(kRuler)) - kRuler;
    return static_cast<uint8_t>(sign | rounded);
  }
  const uint32_t rebased = magnitude - (static_cast<uint32_t>(126 + kExponentMin) << 23);
  const uint32_t half = (1u << (kDropped - 1)) - 1u;
  return static_cast<uint8_t>(sign | ((rebased + half + ((rebased >> kDropped) & 1u)) >> kDropped));
}
template <>
__device__ __forceinline__ Float8E4M3 Narrow<Float8E4M3>(float value) {
  return Float8E4M3{NarrowToFloat8<3, -6>(value, 448.0f)};
}
template <>
__device__ __forceinline__ Float8E5M2 Narrow<Float8E5M2>(float value) {
  return Float8E5M2{NarrowToFloat8<2, -14>(value, 57344.0f)};
}

__device__ __forceinline__ float MultiplyRounded(float a, float b) {
#if defined(__CUDACC__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
__device__ __forceinline__ float MultiplyAddRounded(float a, float b, float c) {
#if defined(__CUDACC__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

__device__ __forceinline__ float AddRounded(float a, float b) {
#if defined(__CUDACC__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

// 1 / sqrt(value) of a positive value, to 40 bits: a float seed and one Newton step. CUDA's double
// rsqrt is a function call, which would spill registers.
__device__ __forceinline__ double InverseSquareRoot(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  const uint64_t exponent = bits >> 52;  // biased by 1023
  if (exponent == 0x7ffu) return (bits << 12) == 0 ? 0.0 : value;
  const uint64_t even = (exponent - 1023) & ~uint64_t{1};
  const uint64_t reduced_bits = bits - (even << 52);  // value / 2^even: 1 to 4
  double reduced;
  memcpy(&reduced, &reduced_bits, sizeof(reduced));
#if defined(__CUDACC__)
  const double seed = rsqrtf(static_cast<float>(reduced));
#else
  const double seed = 1.0f / std::sqrt(static_cast<float>(reduced));
#endif
  double root = seed * (1.5 - 0.5 * reduced * seed * seed);
  memcpy(&bits, &root, sizeof(bits));
  bits -= (even >> 1) << 52;
  memcpy(&root, &bits, sizeof(root));
  return root;
}

// Turns the pair (a, b). The products with cos are rounded first, as on the CPU: so both give the
// same bits where the CPU adds and multiplies in one step.
template <typename T>
__device__ __forceinline__ void Turn(T& a, T& b, float cos, float sin) {
  const float wide_a = Widen(a);
  const float wide_b = Widen(b);
  a = Narrow<T>(MultiplyAddRounded(-wide_b, sin, MultiplyRounded(wide_a, cos)));
  b = Narrow<T>(MultiplyAddRounded(wide_a, sin, MultiplyRounded(wide_b, cos)));
}

// Turns the pair (a, b) and rounds each product and each sum to T.
template <typename T>
__device__ __forceinline__ void TurnStepwise(float& a, float& b, float cos, float sin) {
  const auto product = [](float x, float y) { return Widen(Narrow<T>(MultiplyRounded(x, y))); };
  const auto sum = [](float x, float y) { return Widen(Narrow<T>(AddRounded(x, y))); };
  const float turned = sum(product(a, cos), -product(b, sin));
  b = sum(product(b, cos), product(a, sin));
  a = turned;
}

}  // namespace rope::kernels::cuda_device

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_NUMBERS_CUH_
