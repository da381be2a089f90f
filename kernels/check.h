// ROPE_CHECK: aborts the process, with file and line, when our own code breaks an invariant. Bad
// input never does: it is reported as an absl::Status.
#ifndef ROPE_KERNELS_CHECK_H_
#define ROPE_KERNELS_CHECK_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>

#define ROPE_CHECK(condition)                                                            \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

// Products and sums of sizes with an overflow check.

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

#endif  // ROPE_KERNELS_CHECK_H_
