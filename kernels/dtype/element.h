// Reads and writes one tensor element as a double. Used by the reference backend, by rows that are
// rounded to a dtype, and by tests.
//
// Threading:  Pure functions.
// Limits:     Any alignment.
// Precision:  As float16.h and float8.h; fp32 is rounded to nearest even.
#ifndef ROPE_KERNELS_DTYPE_ELEMENT_H_
#define ROPE_KERNELS_DTYPE_ELEMENT_H_

#include <cstdint>

#include "kernels/dtype/dtype.h"

namespace rope::kernels {

double ReadElement(const uint8_t* element, DType dtype);
void WriteElement(double value, DType dtype, uint8_t* element);
double RoundedTo(double value, DType dtype);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_DTYPE_ELEMENT_H_
