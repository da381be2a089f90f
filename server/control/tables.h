// GetTables: exact cos and sin in the layout of an engine.
//
// A step computes some rows. A pair of cos and sin takes about 0.3 microseconds, so the largest
// answers take a second.
//
// Threading:  Functions only; the registry is thread-safe.
// Ownership:  Steps own all that they need; they keep no reference to the request.
// Precision:  kernels/tables/derived_rows.h.
#ifndef ROPE_SERVER_CONTROL_TABLES_H_
#define ROPE_SERVER_CONTROL_TABLES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/wire/message_split.h"
#include "rope/v1/tables.pb.h"
#include "server/control/describe.h"
#include "server/engine/side_thread.h"
#include "server/limits.h"
#include "server/models/model_registry.h"
#include "server/request/plan.h"

namespace rope::server {

// Rows and bytes of GetTables, which computes each cos and sin for the call, at 0.3 microseconds a
// pair: 65,536 rows of 64 frequencies in 16 bits have 16 MiB and take a second.
inline constexpr int64_t kTablesRowsMax = 64 * 1024;
inline constexpr int64_t kTablesBytesMax = 16 * limits::kMiB;

// Checks a request, reads its positions, and returns the steps of its answer. `admit` is called
// once, before anything that grows with the number of rows is allocated.
// INVALID_ARGUMENT, NOT_FOUND: as ModelRegistry::Find; a layer that does not rotate, and what
// rope/v1/tables.proto says of each field. OUT_OF_RANGE: a position above limits::kPositionMax, or
// beyond the range of xPos. RESOURCE_EXHAUSTED: more than kTablesRowsMax rows, or more
// bytes than kTablesBytesMax or `reply_bytes_max`. Errors of `admit`.
// REQUIRES: `payloads` belongs to `request`.
absl::StatusOr<Steps<v1::GetTablesResponse>> GetTables(const v1::GetTablesRequest& request,
                                                       const proto::SplitMessage& payloads,
                                                       ModelRegistry& registry,
                                                       int64_t reply_bytes_max, AdmitReply admit);

}  // namespace rope::server

#endif  // ROPE_SERVER_CONTROL_TABLES_H_
