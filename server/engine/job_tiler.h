// JobTiler: cuts a tensor into rotate jobs without copying it. A packed tensor may lie in several
// received fragments. Each job is a rectangle of whole (token, head) rows within one fragment, with
// heads that are treated alike (HeadSpan). A tensor with strides lies in one fragment.
//
//   fragment 0              fragment 1
//   |row|row|row|ro         w|row|row|
//   `--- a job -'`-gathered-'`- a job'
//
// Of a paged tensor each job is a run of tokens in adjacent slots of one page.
//
// Two things are copied ("gathered") into packed memory first: a row that straddles fragments, and
// a tensor whose channel stride is not 1.
//
// Threading:  Confined to one thread.
// Ownership:  Jobs refer to the tensor's fragments, to `output`, to `shared.rows`, and to gathered
//             rows, which the tiler owns. It must outlive the rotation.
#ifndef ROPE_SERVER_ENGINE_JOB_TILER_H_
#define ROPE_SERVER_ENGINE_JOB_TILER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend/rotate_job.h"
#include "server/limits.h"
#include "server/request/request.h"

namespace rope::server {
namespace limits {

// The part of a large request that one batch takes, so that it cannot hold up a small one.
inline constexpr int64_t kSliceBytesMax = 8 * kMiB;
// Jobs of a batch, each a rectangle of tokens and heads with 210 bytes. A token may need up to
// kJobsMax jobs.
inline constexpr int64_t kJobsMax = 64 * 1024;
// Elements of all results that a reply has as numbers, encoded in one step: 4 milliseconds.
inline constexpr int64_t kReplyNumbersMax = 256 * 1024;
// Bytes of one token in all tensors; a slice has at least one token.
inline constexpr int64_t kTokenBytesMax = 64 * kMiB;

}  // namespace limits

// Fills `jobs` of the plan. RESOURCE_EXHAUSTED: a token is too large for a slice, which has at
// least one; the results have too many numbers. REQUIRES: the plan's tensors have their strides.
absl::Status BoundJobs(Plan& plan);

// Sets what a job of these heads has from its plan: the size and type of a head, the rotation
// without its rows, and the fused ops without the scales of tokens.
void SetOps(const Plan& plan, const TensorPlan& tensor, const HeadSpan& span,
            kernels::RotateJob& job);

// Most requests have one or two: q and k.
using Jobs = absl::InlinedVector<kernels::RotateJob, 2>;

class JobTiler {
 public:
  // What the jobs of one slice share.
  struct Shared {
    const Plan& plan;
    int64_t begin = 0;  // first token, in memory order
    int64_t end = 0;
    // For each row set: one row for each token from `begin`. Not read if the plan has a table, or
    // does not rotate.
    std::array<absl::Span<const kernels::RowRef>, kRowSetsMax> rows = {};
  };

  // Adds the jobs for all heads of the tokens of `shared` to `jobs`. `output` is the start of the
  // whole tensor's output, packed in the order of the input unless the plan has output_strides.
  // Not read if the results overwrite the received bytes. Heads that pass through become jobs
  // without pairs, so that fused ops reach them too.
  // `saturated`: RotateJob's; may be null.
  void Cut(const TensorPlan& tensor, char* output, const Shared& shared,
           std::atomic<int64_t>* saturated, Jobs& jobs);

  // Copies the results of gathered rows over the fragments that the rows came from, where results
  // overwrite the received bytes. Call it after the rotation.
  void PutBack() const;

  // A packed copy of bytes that lie in several places.
  struct Gathered {
    std::string bytes;
    absl::InlinedVector<absl::Span<char>, 2> places;  // to copy the result to; empty: none
  };

 private:
  std::list<Gathered> gathered_;  // a list, because jobs refer to its elements
};

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_JOB_TILER_H_
