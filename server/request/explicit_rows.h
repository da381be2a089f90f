// Plans a request whose caller supplies rows of cos and sin instead of an embedding: a rotation by
// them, or a move from some of them to others.
//
// Threading:  Functions only.
// Ownership:  The plan holds a copy of the rows that its tokens take. Of a move it holds the region
//             of the rows, if they can be used where they are.
// Errors:     INVALID_ARGUMENT; OUT_OF_RANGE: a position past the last row.
#ifndef ROPE_SERVER_REQUEST_EXPLICIT_ROWS_H_
#define ROPE_SERVER_REQUEST_EXPLICIT_ROWS_H_

#include "absl/status/status.h"
#include "rope/v1/rotate.pb.h"
#include "server/request/plan.h"

namespace rope::server {

// What stays the same in each call: the operation, the pairing, and which arrays there are.
absl::Status PrepareExplicitRows(const v1::RotateRequest& fixed, Plan& plan);

// Fills the rest of a plan that PrepareExplicitRows has begun, from values.rows.
absl::Status PlanExplicitRows(const v1::RotateRequest& fixed, const v1::RotateRequest& values,
                              ArraySource& source, Plan& plan);

// Whether planning a move by these rows may copy them. It never copies rows of a region, unless
// they are FP64 or differ in dtype.
bool CopiesMovedRows(const v1::Rows& rows);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_EXPLICIT_ROWS_H_
