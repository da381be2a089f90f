// The two 16-bit float formats, for code that reads and writes tensors element by element (people's
// numbers, tests, tools); kernels have conversions of their own.
//
// Precision:  To 16 bits: nearest, ties to even; overflow gives infinity; NaN stays NaN. From 16
//             bits: exact.
#ifndef ROPE_PROTO_WIRE_FLOAT16_H_
#define ROPE_PROTO_WIRE_FLOAT16_H_

#include <cstdint>

namespace rope::proto {

float FloatFromHalf(uint16_t bits);
float FloatFromBFloat16(uint16_t bits);
// Rounded once from double, so that a decimal number lands on the nearest 16-bit value.
uint16_t HalfFromDouble(double value);
uint16_t BFloat16FromDouble(double value);

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_FLOAT16_H_
