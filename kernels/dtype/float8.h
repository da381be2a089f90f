// Scalar conversions between 8-bit floats (the OCP formats of accelerators) and float or double,
// for the reference backend and for tests.
//
// Threading:  Pure functions.
// Precision:  Widening is exact. Narrowing rounds once, to nearest even, from the double itself,
//             and saturates: larger values and infinities become the largest finite number.
//             Denormals are kept, NaN stays NaN.
#ifndef ROPE_KERNELS_DTYPE_FLOAT8_H_
#define ROPE_KERNELS_DTYPE_FLOAT8_H_

#include <cstdint>

namespace rope::kernels {

// 4 bits of exponent, 3 of fraction: at most 448, no infinities, one NaN (of either sign).
float FromFloat8E4M3(uint8_t bits);
uint8_t ToFloat8E4M3(double value);

// 5 bits of exponent, 2 of fraction: the upper half of a binary16, at most 57344.
float FromFloat8E5M2(uint8_t bits);
uint8_t ToFloat8E5M2(double value);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_DTYPE_FLOAT8_H_
