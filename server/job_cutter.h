// JobCutter: cuts a tensor that lies in several received buffers into rotate jobs, one for each
// rectangle of whole (token, head) rows within a buffer. Only a row that straddles two buffers is
// gathered first.
//
// Threading:  Confined to one thread.
// Ownership:  Jobs refer to the tensor's buffers, to `output`, to the rows that were given, and to
//             the cutter's own gathered rows: it must outlive the rotation.
#ifndef ROPE_SERVER_JOB_CUTTER_H_
#define ROPE_SERVER_JOB_CUTTER_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "kernels/rotate_job.h"
#include "server/request.h"

namespace rope::server {

class JobCutter {
 public:
  // What the jobs of one slice share.
  struct Shared {
    kernels::PairGeometry geometry;
    bool conjugate = false;
    int64_t begin = 0;                       // first token, in memory order
    absl::Span<const kernels::RowRef> rows;  // one for each token from `begin`
  };

  // Adds the jobs that rotate all heads of the tokens of `shared` to `jobs`; `output` is the start
  // of the whole tensor's output, laid out as its input.
  void Cut(const TensorPlan& tensor, char* output, const Shared& shared,
           std::vector<kernels::RotateJob>& jobs);

 private:
  std::deque<std::string> gathered_;  // never moves its elements
};

}  // namespace rope::server

#endif  // ROPE_SERVER_JOB_CUTTER_H_
