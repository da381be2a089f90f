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

// Reads and writes one tensor element as a double. Used by the reference backend, by rows that are
// rounded to a dtype, and by tests.
//
// Threading:  Pure functions.
// Limits:     Any alignment.
// Precision:  As the conversions above; fp32 is rounded to nearest even. 8-bit floats (the OCP
//             formats of accelerators) saturate: larger values and infinities become the largest
//             finite number. fp8_e4m3 has 4 bits of exponent: at most 448, no infinities, one NaN
//             (of either sign). fp8_e5m2 is the upper half of a binary16: at most 57344.

double ReadElement(const uint8_t* element, DType dtype);
void WriteElement(double value, DType dtype, uint8_t* element);
double RoundedTo(double value, DType dtype);

// Whether the dtype is an 8-bit one and `value` is beyond its largest finite number. An infinity is
// beyond it, NaN is not.
bool Saturates(double value, DType dtype);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_DTYPE_ELEMENT_H_
