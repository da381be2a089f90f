// Backend: rotates a batch of jobs on one device. The contract that reference, cpu and cuda share;
// tests/conformance/backend_contract_test.cc runs over every one of them.
//
// Threading:  Rotate and Expect may be called from any number of threads at once.
// Ownership:  Jobs and what they point to are the caller's and are not touched after Rotate
//             returned.
// Errors:     INTERNAL: the device failed; outputs of the batch are then undefined. No other code:
//             jobs were validated before, and a malformed one is our bug (ROPE_CHECK).
// Precision:  cos, sin and products in float32 (reference: double); outputs of fewer bits round
//             to nearest even once, when stored. NaN stays NaN; infinities follow IEEE 754;
//             denormals are kept, except that bf16 results below 2^-126 may become 0 where the cpu
//             backend uses the CPU's own bf16 instructions (detail() then says AVX3_BF16).
//             Beside the rotation everything is float32 too, but for the mean of the norm, which is
//             a double. With u = 2^-24 and (a, b) a pair after the norm, a result may be off by
//             what the rotation is allowed, 1.5e-7 * A * (|a| + |b|), plus
//               3 u * A * (|a| + |b|)  for a norm: its factor, times the element, times the weight
//               2 u * |result|         for scales: their product, times the element
//               u * |result|           for an output_scale: the division
//             all in units of the output, before it is rounded. PairArithmetic::kTurnStepwise has
//             one right answer, the same bits on every backend, denormals kept (NaN: any); kAdd is
//             off by u * |result| before it is rounded. fp8 saturates: what is past the
//             largest number, infinities too, becomes the largest number; NaN stays NaN.
#ifndef ROPE_KERNELS_BACKEND_BACKEND_H_
#define ROPE_KERNELS_BACKEND_BACKEND_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend/rotate_job.h"

namespace rope::kernels {

class Backend {
 public:
  virtual ~Backend() = default;
  // As replies and metrics name it: "reference", "cpu", "cuda:0".
  virtual std::string_view name() const = 0;
  // What it runs on, for people: instruction set, threads.
  virtual std::string detail() const = 0;
  // A hint that this thread will soon rotate jobs of about so many bytes: what that would have to
  // wake up may do so meanwhile.
  virtual void PrepareFor(int64_t /*bytes*/) {}
  // Rotates all jobs and returns when their outputs are written. Jobs differ freely in shape, dtype
  // and geometry.
  virtual absl::Status Rotate(absl::Span<const RotateJob> jobs) = 0;
};

struct BackendOptions {
  int threads = 1;  // that may work on one batch, the caller's included; >= 1
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_BACKEND_H_
