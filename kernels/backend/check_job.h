// CheckJob: what every backend relies on.
//
// Threading:  Any thread.
// Errors:     None. A malformed job is a bug of the caller and stops the process.
#ifndef ROPE_KERNELS_BACKEND_CHECK_JOB_H_
#define ROPE_KERNELS_BACKEND_CHECK_JOB_H_

#include "kernels/backend/rotate_job.h"

namespace rope::kernels {

// ROPE_CHECKs sizes, pairs inside the head, and one row of `pairs` columns for each token.
void CheckJob(const RotateJob& job);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CHECK_JOB_H_
