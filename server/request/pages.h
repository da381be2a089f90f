// Pages: where the tokens of paged tensors lie (rope.v1.PagedTokens).
//
// Threading:  Functions only.
// Ownership:  The plan holds copies of page ids and slots, and the regions of its pools.
// Errors:     INVALID_ARGUMENT: strides by which tokens overlap; ids, slots and targets as
//             PagedTokens says; a pool that is in no region. OUT_OF_RANGE: a slot past the pool.
#ifndef ROPE_SERVER_REQUEST_PAGES_H_
#define ROPE_SERVER_REQUEST_PAGES_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "rope/v1/rotate.pb.h"
#include "server/request/plan.h"

namespace rope::server {

// What stays the same in repeated calls: sizes and strides. REQUIRES: the plan has its layout.
absl::Status ReadPaging(const v1::Tensor& tensor, const std::string& path, TensorPlan& plan);

// What each call brings: the tokens of tensor `index`, and its pool.
absl::Status ReadPages(const v1::Tensor& values, ArraySource& source, size_t index, Plan& plan);

// The bytes of the page ids and slots that ReadPages will keep, at most.
int64_t PagesBytes(const v1::RotateRequest& values, const Plan& plan);

// Bytes from the beginning of the pool of the results to the end of their last slot.
int64_t TargetBytes(const TensorPlan& tensor);

// INVALID_ARGUMENT: one token of the tensor reads a slot that another one writes. REQUIRES: the
// results are in the pool of the tokens.
absl::Status CheckTargets(const TensorPlan& tensor, const std::string& path);

// Whether two pools of the same strides, `distance` elements from each other, share no element:
// layers that take turns in pages or in tokens.
bool AreInterleaved(const TensorPlan& a, const TensorPlan& b, int64_t distance);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_PAGES_H_
