// RopeConfig, the struct of client/include/rope/config.h, for the kernels. config_json.h reads it
// from a config.json, validate_config.h checks it, and frequencies.h resolves it to numbers.
//
// Threading:  A value; const access from any thread.
// Errors:     INVALID_ARGUMENT only, "field: got X, want Y", the field spelt as in config.json.
// Limits:     head_dim and rotary_dim up to 65536, lengths up to 2^53, attention_factor up to the
//             largest float32.
#ifndef ROPE_KERNELS_CONFIG_ROPE_CONFIG_H_
#define ROPE_KERNELS_CONFIG_ROPE_CONFIG_H_

#include <cstdint>

#include "proto/rope_type.h"
#include "rope/config.h"

namespace rope::kernels {

using proto::ParseRopeType;
using rope::Compat;
using rope::LongropeBranch;
using rope::Mrope;
using rope::Precision;
using rope::RopeConfig;
using rope::RopeType;
using rope::SeqLenPolicy;
using rope::XPos;
using rope::YarnRamp;

// Maximum of head_dim and of rotary_dim; bounds every list of frequencies.
inline constexpr int64_t kHeadDimMax = 65536;

// Axis (0 t, 1 h, 2 w) of frequency `index`.
int AxisOf(const Mrope& mrope, int64_t index);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_ROPE_CONFIG_H_
