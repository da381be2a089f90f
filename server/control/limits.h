// Bounds of the control plane.
#ifndef ROPE_SERVER_CONTROL_LIMITS_H_
#define ROPE_SERVER_CONTROL_LIMITS_H_

#include <cstdint>

#include "server/limits.h"

namespace rope::server::limits {

inline constexpr int64_t kDescribePositionsMax = 4096;
// Rows and bytes of GetTables, which computes each cos and sin for the call, at 0.3 microseconds a
// pair: 65,536 rows of 64 frequencies in 16 bits have 16 MiB and take a second.
inline constexpr int64_t kTablesRowsMax = 64 * 1024;
inline constexpr int64_t kTablesBytesMax = 16 * kMiB;
// Bytes of the rows of Describe: 4096 positions of 256 frequencies, which take 0.3 seconds.
inline constexpr int64_t kDescribeBytesMax = 16 * kMiB;
// Of memory: one KeyIdentity with its text and its message.
inline constexpr int64_t kIdentityBytesMax = 16 * kMiB;
// Bytes of a page of ListModels, unless its only model is larger. gRPC's clients accept 4 MiB.
inline constexpr int64_t kModelsPageBytesMax = 1 * kMiB;

}  // namespace rope::server::limits

#endif  // ROPE_SERVER_CONTROL_LIMITS_H_
