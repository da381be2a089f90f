// CheckJob: checks the preconditions that all backends rely on.
//
// Threading:  Any thread.
// Errors:     None. A malformed job is a bug of the caller and stops the process.
#ifndef ROPE_KERNELS_BACKEND_CHECK_JOB_H_
#define ROPE_KERNELS_BACKEND_CHECK_JOB_H_

#include "kernels/backend/rotate_job.h"

namespace rope::kernels {

// Checks sizes, that all pairs are inside the head, and that each token has one row of `pairs`
// columns.
void CheckJob(const RotateJob& job);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CHECK_JOB_H_
