// What backend.cc and the backends share: one function for each backend of this build, and the
// check of a job's invariants. Everyone else uses backend.h.
//
// Threading:  Any thread.
// Errors:     None. A malformed job is our bug and stops the process.
#ifndef ROPE_KERNELS_BACKEND_FACTORIES_H_
#define ROPE_KERNELS_BACKEND_FACTORIES_H_

#include <memory>

#include "kernels/backend.h"

namespace rope::kernels {

std::unique_ptr<Backend> MakeReferenceBackend();

// ROPE_CHECKs what a backend relies on: sizes, pairs inside the head, one row of `pairs` columns
// for each token.
void CheckJob(const RotateJob& job);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_FACTORIES_H_
