// The interface of a backend.
#ifndef ROPE_KERNELS_BACKEND_BACKEND_H_
#define ROPE_KERNELS_BACKEND_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend/rotate_job.h"

namespace rope::kernels {

// Backend: rotates a batch of jobs on one device. This is the contract of reference, cpu and cuda;
// tests/conformance/backend_contract_test.cc runs over all three.
//
// Threading:  Rotate may be called from any number of threads at once.
// Ownership:  The caller owns the jobs and the memory they point to. Rotate does not touch them
//             after it has returned.
// Errors:     After an error other than kNotBuilt, outputs of the batch are undefined. The reason
//             (proto/error.h) has the class:
//               kDeviceFault  INTERNAL: the device is lost to this process, for good.
//               kBudgetFull   RESOURCE_EXHAUSTED: the device, or the process, lacks memory now; a
//                             later batch may succeed.
//               kInternal     INTERNAL: the device refuses this batch, and works.
//               kNotBuilt     UNIMPLEMENTED: the backend cannot run one of the jobs. Nothing has
//                             run, so inputs and outputs are unchanged.
//             No other: jobs are validated before, and a malformed job is a bug of the caller
//             (ROPE_CHECK).
// Precision:  cos, sin and products are float32 (reference: double). Outputs of fewer bits are
//             rounded once, to nearest even, when they are stored. NaN stays NaN; infinities follow
//             IEEE 754. Denormals are kept, with one exception: bf16 results below 2^-126 may
//             become 0 if the cpu backend uses the CPU's bf16 instructions (detail() then says
//             AVX3_BF16). Fused ops are float32 too, except the mean of the norm, which is a
//             double. The error of the rotation is at most 1.5e-7 * A * (|a| + |b|), where (a, b)
//             is a pair after the norm and A the attention factor. Fused ops add, with u = 2^-24,
//               3 u * A * (|a| + |b|)  for a norm: its factor, times the element, times the weight
//               2 u * |result|         for scales: their product, times the element
//               u * |result|           for an output_scale: the division
//             in units of the output, before it is rounded. PairArithmetic::kTurnStepwise has one
//             right answer: the same bits on every backend, denormals kept (NaN: any payload). kAdd
//             has an error of u * |result| before rounding. fp8 inputs are widened exactly. fp8
//             outputs saturate: larger values and infinities become the largest finite number.

class Backend {
 public:
  virtual ~Backend() = default;
  // The name in replies and metrics: "reference", "cpu", "cuda:0".
  virtual std::string_view name() const = 0;
  // A description for people: instruction set, threads.
  virtual std::string detail() const = 0;
  // Rotates all jobs and returns when all outputs are written. Jobs may differ in shape, dtype and
  // geometry.
  virtual absl::Status Rotate(absl::Span<const RotateJob> jobs) = 0;
};

// The definition of RotateJob in scalar double arithmetic, rounded once when stored. It is always
// built and is slow; tests compare the other backends with it.
std::unique_ptr<Backend> MakeReferenceBackend();
// What it does to a part of a job.
void RotateReference(const RotateJob& job, const RotateRange& range);

struct BackendOptions {
  int threads = 1;  // of the CPU for one batch, including the caller; at most; >= 1
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_BACKEND_H_
