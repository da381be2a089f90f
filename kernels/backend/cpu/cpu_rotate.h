// The CPU kernel of RotateJob: one function per instruction set that is compiled in and runs on
// this CPU.
//
// Threading:  CpuTargets: any thread. The functions: any number of threads at once, on ranges that
//             do not overlap.
// Ownership:  A job and the memory it points to are borrowed for the call.
// Errors:     None; jobs are validated before.
// Limits:     Touches no byte outside the heads of its range. A plain rotation in place touches
//             only channels of pairs.
// Precision:  As Backend; fp32 within 1.5e-7 * (|a| + |b|) of exact for each pair of channels.
#ifndef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_H_
#define ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_H_

#include <vector>

#include "kernels/backend/cpu/cpu_rotate_function.h"

namespace rope::kernels {

// The targets of this CPU, best first; never empty. A backend chooses once, so no row is
// dispatched.
const std::vector<CpuTarget>& CpuTargets();

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_H_
