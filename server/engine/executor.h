// Executor: runs one batch of slices. Looks up the rows of every token, cuts the tensors into jobs
// and gives all of them to the devices in one call.
//
// Threading:  Thread-safe; Run may be called from several threads for different requests.
// Ownership:  Slices and their requests stay the caller's, with the rows that a slice ran with.
//             Outputs are written to their place in a memory region, over the received bytes where
//             these may be overwritten, or into buffers of the pool that the requests then own.
// Errors:     Each slice gets its own status: an error of its tables fails it alone, and so does a
//             POSIX object that shrank (FAILED_PRECONDITION) or a result that the system has no
//             memory for (RESOURCE_EXHAUSTED); an error of the device fails the batch.
#ifndef ROPE_SERVER_ENGINE_EXECUTOR_H_
#define ROPE_SERVER_ENGINE_EXECUTOR_H_

#include "absl/types/span.h"
#include "kernels/tables/table_cache.h"
#include "server/engine/device_router.h"
#include "server/limits.h"
#include "server/memory/buffer_pool.h"
#include "server/request/request.h"

namespace rope::server {

class Executor {
 public:
  // All three must outlive the executor. Results of fewer than `overwrite_bytes_min` bytes do not
  // take the place of received bytes.
  Executor(DeviceRouter& devices, kernels::TableCache& tables, BufferPool& pool,
           int64_t overwrite_bytes_min = limits::kOverwriteBytesMin)
      : devices_(devices),
        tables_(tables),
        pool_(pool),
        overwrite_bytes_min_(overwrite_bytes_min) {}

  // REQUIRES: none of the slices has run.
  void Run(absl::Span<Slice> slices);

 private:
  // What Run does, as far as there is memory.
  void RunAll(absl::Span<Slice> slices);
  // Where results go: the one place that decides it.
  absl::Status AllocateOutputs(Request& request) const;
  bool MayOverwrite(const Request& request, size_t tensor) const;

  DeviceRouter& devices_;
  kernels::TableCache& tables_;
  BufferPool& pool_;
  const int64_t overwrite_bytes_min_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_EXECUTOR_H_
