// Scalar conversions between 16-bit floats and float or double, for the reference backend and for
// tests.
//
// Threading:  Pure functions.
// Precision:  Widening is exact. Narrowing rounds once, to nearest even, from the double itself;
//             denormals are kept, overflow gives infinity, NaN stays NaN.
#ifndef ROPE_KERNELS_DTYPE_FLOAT16_H_
#define ROPE_KERNELS_DTYPE_FLOAT16_H_

#include <cstdint>

namespace rope::kernels {

// IEEE 754 binary16.
float FromFloat16(uint16_t bits);
uint16_t ToFloat16(double value);

// The upper half of a float.
float FromBFloat16(uint16_t bits);
uint16_t ToBFloat16(double value);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_DTYPE_FLOAT16_H_
