// Estimates the memory that a request makes the server hold and the time that its planning takes,
// from the part of the request that is decoded or planned so far. Sums saturate below 63 bits, at a
// value that no budget holds.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_ENGINE_REQUEST_COST_H_
#define ROPE_SERVER_ENGINE_REQUEST_COST_H_

#include <cstdint>

#include "server/request/request.h"

namespace rope::server {

// Bytes of a decoded request: its message, plus the parsed objects of its skeleton.
int64_t DecodedBytes(const Request& request);

// The cost of planning a request's positions and rows, as bytes of a copy. REQUIRES: `plan` has its
// tensors.
int64_t PlanningBytes(const v1::RotateRequest& values, const Plan& plan);

// Bytes that planning and running allocate in addition: copies of numbers that came as repeated
// fields, a fixed cost per token, the caller's own rows, results that take a buffer, and a slice of
// each tensor whose channels are not adjacent.
// REQUIRES: `plan` has its tensors and their destinations.
int64_t RunningBytes(const v1::RotateRequest& asked, const Plan& plan);

// Bytes of what the positions ask for: the plan's frequencies, and the rows that one token may
// build, a page on each axis for each row set. A batch's budget bounds what it builds in addition.
int64_t PlannedBytes(const Plan& plan);

// Bytes of results inside the reply: all results that do not go to a region.
int64_t ReplyBytes(const Plan& plan);

// The most that the other fields of the reply take. A tensor of a reply says what the request says
// of it, and where a result in a region lies.
int64_t ReplyTextBytesMax(const Request& request);

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_REQUEST_COST_H_
