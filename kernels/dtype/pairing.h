// The pairing of a head's channels, and the arithmetic on a pair.
#ifndef ROPE_KERNELS_DTYPE_PAIRING_H_
#define ROPE_KERNELS_DTYPE_PAIRING_H_

#include <cstdint>

#include "rope/config.h"

namespace rope::kernels {

using rope::Pairing;

// The operation on a pair (a, b) with the cos c and the sin s of its row.
enum class PairArithmetic : uint8_t {
  kTurn,  // a' = a c - b s, b' = b c + a s in float32, rounded once
  // The same rotation in the steps of Hugging Face's eager code: each product and each sum is one
  // float32 operation, rounded to the dtype before the next step.
  kTurnStepwise,
  kAdd,  // a' = a + s, b' = b + c in float32: adds a sinusoidal table
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_DTYPE_PAIRING_H_
