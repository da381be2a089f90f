// Executor: runs one batch of slices. It looks up the rows of every token, cuts the tensors into
// jobs, and passes all jobs of the batch to the device router in one call.
//
// Threading:  Thread-safe; Run may be called from several threads for different requests.
// Ownership:  The caller owns slices and requests, including the rows that a slice ran with.
//             Outputs are written to their destinations. Pool buffers are then the request's.
// Errors:     Each slice gets its own status. These errors fail one slice: an error of its tables,
//             no memory for its result (RESOURCE_EXHAUSTED). An error of the device fails the
//             batch.
// Limits:     A batch builds at most limits::kBatchBuildBytesMax bytes of table rows and one page
//             more, for each axis and row set. A slice then ends early.
#ifndef ROPE_SERVER_ENGINE_EXECUTOR_H_
#define ROPE_SERVER_ENGINE_EXECUTOR_H_

#include "absl/types/span.h"
#include "kernels/tables/table_cache.h"
#include "server/clients/buffer_pool.h"
#include "server/engine/device_router.h"
#include "server/engine/limits.h"
#include "server/request/request.h"

namespace rope::server {

class Executor {
 public:
  // All three must outlive the executor.
  Executor(DeviceRouter& devices, kernels::TableCache& tables, BufferPool& pool)
      : devices_(devices), tables_(tables), pool_(pool) {}

  // May move the end of a slice. REQUIRES: none of the slices has run.
  void Run(absl::Span<Slice> slices);

 private:
  // Run without the handling of std::bad_alloc.
  void RunAll(absl::Span<Slice> slices);
  // Fills `outputs` with one buffer for each tensor, before the first slice runs.
  absl::Status AllocateOutputs(Request& request) const;

  DeviceRouter& devices_;
  kernels::TableCache& tables_;
  BufferPool& pool_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_EXECUTOR_H_
