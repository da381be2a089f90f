// KeptBytes: the memory that a resolved embedding keeps, approximately, and those of
// kernels/config/kept_bytes.h.
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_SERVER_MODELS_KEPT_BYTES_H_
#define ROPE_SERVER_MODELS_KEPT_BYTES_H_

#include <cstdint>

#include "kernels/config/kept_bytes.h"
#include "kernels/frequencies/frequencies.h"

namespace rope::server {

using kernels::KeptBytes;
// With the object, which is always allocated.
int64_t KeptBytes(const kernels::ResolvedRope& rope);

}  // namespace rope::server

#endif  // ROPE_SERVER_MODELS_KEPT_BYTES_H_
