// Puts the channels of rotated pairs into another order.
//
// Threading:  A pure function; any thread.
#ifndef ROPE_KERNELS_BACKEND_CHANNEL_ORDER_H_
#define ROPE_KERNELS_BACKEND_CHANNEL_ORDER_H_

#include "kernels/backend/rotate_job.h"
#include "kernels/dtype/pairing.h"

namespace rope::kernels {

// Moves the channels of the job's window, in its output, from the order of its pairing to `order`.
// half: the first channels of all pairs, then the second ones. interleaved: the two of each pair,
// one after the other. Nothing moves if the job does not rotate or has that order. REQUIRES: the
// job has run; its output is in host memory; geometry.partner is half of the window.
void ReorderPairs(const RotateJob& job, Pairing order);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CHANNEL_ORDER_H_
