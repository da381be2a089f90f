// The reference backend: the definition of RotateJob in scalar double arithmetic. It is always
// built and is slow; tests compare the other backends with it.
//
// Threading:  As Backend.
// Precision:  Double, rounded once when stored.
#ifndef ROPE_KERNELS_BACKEND_BACKEND_REFERENCE_H_
#define ROPE_KERNELS_BACKEND_BACKEND_REFERENCE_H_

#include <memory>

#include "kernels/backend/backend.h"

namespace rope::kernels {

std::unique_ptr<Backend> MakeReferenceBackend();

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_BACKEND_REFERENCE_H_
