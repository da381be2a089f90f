// PlanExplicitRows: plans a request whose caller supplies rows of cos and sin instead of an
// embedding.
//
// Threading:  Functions only.
// Ownership:  The plan holds a copy of the rows that its tokens take.
// Errors:     INVALID_ARGUMENT; OUT_OF_RANGE: a position past the last row.
#ifndef ROPE_SERVER_REQUEST_EXPLICIT_ROWS_H_
#define ROPE_SERVER_REQUEST_EXPLICIT_ROWS_H_

#include "absl/status/status.h"
#include "rope/v1/rotate.pb.h"
#include "server/request/plan.h"

namespace rope::server {

// Fills the rest of a plan whose tensors are set, from message.rows.
absl::Status PlanExplicitRows(const v1::RotateRequest& message, ArraySource& source, Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_EXPLICIT_ROWS_H_
