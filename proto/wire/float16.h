// Conversions of the two 16-bit float formats, for code that handles tensors element by element:
// `Array.numbers`, tests, tools. Kernels have their own conversions.
//
// Precision:  To 16 bits: to nearest, ties to even; overflow gives infinity; NaN stays NaN. From 16
//             bits: exact.
#ifndef ROPE_PROTO_WIRE_FLOAT16_H_
#define ROPE_PROTO_WIRE_FLOAT16_H_

#include <cstdint>

namespace rope::proto {

float FloatFromHalf(uint16_t bits);
float FloatFromBFloat16(uint16_t bits);
// Rounds once, from double: a decimal number becomes the nearest 16-bit value.
uint16_t HalfFromDouble(double value);
uint16_t BFloat16FromDouble(double value);

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_FLOAT16_H_
