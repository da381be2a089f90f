// Converts single elements of each dtype to and from float, correctly rounded.
//
// Threading:  Functions only.
#ifndef ROPE_KERNELS_DTYPE_ELEMENT_H_
#define ROPE_KERNELS_DTYPE_ELEMENT_H_

#include <cstdint>

#include "kernels/dtype/dtype.h"

namespace rope::kernels {

// Scalar conversions between 16-bit floats and float or double, for the reference backend and for
// tests.
//
// Threading:  Pure functions.
// Precision:  Widening is exact. Narrowing rounds once, to nearest even, from the double itself;
//             denormals are kept, overflow gives infinity, NaN stays NaN.

// IEEE 754 binary16.
float FromFloat16(uint16_t bits);
uint16_t ToFloat16(double value);

// The upper half of a float.
float FromBFloat16(uint16_t bits);
uint16_t ToBFloat16(double value);

// Scalar conversions between 8-bit floats (the OCP formats of accelerators) and float or double,
// for the reference backend and for tests.
//
// Threading:  Pure functions.
// Precision:  Widening is exact. Narrowing rounds once, to nearest even, from the double itself,
//             and saturates: larger values and infinities become the largest finite number.
//             Denormals are kept, NaN stays NaN.

// 4 bits of exponent, 3 of fraction: at most 448, no infinities, one NaN (of either sign).
float FromFloat8E4M3(uint8_t bits);
uint8_t ToFloat8E4M3(double value);

// 5 bits of exponent, 2 of fraction: the upper half of a binary16, at most 57344.
float FromFloat8E5M2(uint8_t bits);
uint8_t ToFloat8E5M2(double value);

// Reads and writes one tensor element as a double. Used by the reference backend, by rows that are
// rounded to a dtype, and by tests.
//
// Threading:  Pure functions.
// Limits:     Any alignment.
// Precision:  As the conversions above; fp32 is rounded to nearest even.

double ReadElement(const uint8_t* element, DType dtype);
void WriteElement(double value, DType dtype, uint8_t* element);
double RoundedTo(double value, DType dtype);

// Whether the dtype is an 8-bit one and `value` is beyond its largest finite number. Infinities are,
// NaN is not.
bool Saturates(double value, DType dtype);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_DTYPE_ELEMENT_H_
