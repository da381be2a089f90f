// JobTiler: cuts a tensor that lies in several received buffers into rotate jobs, one for each
// rectangle of whole (token, head) rows within a buffer, and of heads that are treated alike. Only
// a row that straddles two buffers is gathered first, and a tensor whose channels are apart. A
// tensor with strides lies in one buffer.
//
// Threading:  Confined to one thread.
// Ownership:  Jobs refer to the tensor's buffers, to `output`, to the rows that were given, and to
//             the cutter's own rows: it must outlive the rotation.
#ifndef ROPE_SERVER_ENGINE_JOB_TILER_H_
#define ROPE_SERVER_ENGINE_JOB_TILER_H_

#include <array>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "kernels/backend/rotate_job.h"
#include "server/request/request.h"

namespace rope::server {

// A row of no columns: what passes through turns by nothing.
kernels::RowRef PassingRow();

// One or two of most requests: q and k.
using Jobs = absl::InlinedVector<kernels::RotateJob, 2>;

class JobTiler {
 public:
  // What the jobs of one slice share.
  struct Shared {
    kernels::PairGeometry geometry;
    bool conjugate = false;
    kernels::PairArithmetic arithmetic = kernels::PairArithmetic::kTurn;
    int64_t begin = 0;  // first token, in memory order
    // Of each row set, one for each token from `begin`.
    std::array<absl::Span<const kernels::RowRef>, kRowSetsMax> rows;
    absl::Span<const float> token_scales;  // the same, for a tensor that is token_scaled
  };

  // Adds the jobs that rotate all heads of the tokens of `shared` to `jobs`; `output` is the start
  // of the whole tensor's output: packed, in the order of its input unless there are
  // output_strides. Null: the input's own place, of a tensor without either strides. Heads that
  // pass through are jobs without pairs, so that what is done beside the rotation reaches them too.
  void Cut(const TensorPlan& tensor, char* output, const Shared& shared, Jobs& jobs);

  // After the rotation: what was gathered to be rotated in place goes back there.
  void PutBack() const;

  // A copy of bytes that lie in several places.
  struct Gathered {
    std::string bytes;
    absl::InlinedVector<absl::Span<char>, 2> places;  // that it goes back to; empty: none
  };

 private:
  // Neither ever moves its elements.
  std::list<Gathered> gathered_;
  std::list<std::vector<kernels::RowRef>> passing_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_JOB_TILER_H_
