// Products and sums of sizes with an overflow check.
#ifndef ROPE_KERNELS_CHECKED_MATH_H_
#define ROPE_KERNELS_CHECKED_MATH_H_

#include <cstdint>
#include <optional>

namespace rope::kernels {

// a * b, or nullopt if it overflows 64 bits.
inline std::optional<int64_t> CheckedMultiply(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// a + b, or nullopt if it overflows 64 bits.
inline std::optional<int64_t> CheckedAdd(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CHECKED_MATH_H_
