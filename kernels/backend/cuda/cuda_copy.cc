#include "kernels/backend/cuda/cuda_copy.h"

#include <cstring>
#include <utility>

#include "kernels/backend/cuda/cuda_runtime.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

struct Dimension {
  int64_t count;
  int64_t from;  // strides in bytes
  int64_t to;
};

// outer.count x inner.count runs, each of `run` adjacent bytes.
struct Runs {
  int64_t run;
  Dimension inner;
  Dimension outer;
};

// Merges a dimension into the run if its vectors are adjacent on both sides.
void Merge(int64_t& run, Dimension& dimension) {
  const bool adjacent = dimension.from == run && dimension.to == run;
  if (dimension.count != 1 && !adjacent) return;
  run *= dimension.count;
  dimension.count = 1;
}

Runs RunsOf(const CudaRectangle& rectangle, const Strides& from, const Strides& to) {
  const int64_t bytes = rectangle.element_bytes;
  Runs runs{.run = rectangle.head_dim * bytes,
            .inner = {rectangle.heads, from.head * bytes, to.head * bytes},
            .outer = {rectangle.tokens, from.token * bytes, to.token * bytes}};
  if (runs.outer.from < runs.inner.from) std::swap(runs.inner, runs.outer);
  Merge(runs.run, runs.inner);
  if (runs.inner.count == 1) {
    Merge(runs.run, runs.outer);
    std::swap(runs.inner, runs.outer);
  }
  return runs;
}

absl::Status CopyRows(const Runs& runs, const char* source, char* target, cudaStream_t stream) {
  const Dimension& rows = runs.inner;
  const auto run = static_cast<size_t>(runs.run);
  if (rows.count > 1 && rows.from >= runs.run && rows.to >= runs.run) {
    return CudaStatus(cudaMemcpy2DAsync(target, static_cast<size_t>(rows.to), source,
                                        static_cast<size_t>(rows.from), run,
                                        static_cast<size_t>(rows.count), cudaMemcpyDefault, stream),
                      "cudaMemcpy2DAsync");
  }
  for (int64_t i = 0; i < rows.count; ++i) {
    ROPE_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(target + i * rows.to, source + i * rows.from,
                                                    run, cudaMemcpyDefault, stream),
                                    "cudaMemcpyAsync"));
  }
  return absl::OkStatus();
}

}  // namespace

void CopyRectangle(const CudaRectangle& rectangle, const char* source, const Strides& from,
                   char* target, const Strides& to) {
  const Runs runs = RunsOf(rectangle, from, to);
  for (int64_t i = 0; i < runs.outer.count; ++i) {
    for (int64_t j = 0; j < runs.inner.count; ++j) {
      std::memcpy(target + i * runs.outer.to + j * runs.inner.to,
                  source + i * runs.outer.from + j * runs.inner.from,
                  static_cast<size_t>(runs.run));
    }
  }
}

absl::Status CopyRectangleAsync(const CudaRectangle& rectangle, const char* source,
                                const Strides& from, char* target, const Strides& to,
                                cudaStream_t stream) {
  const Runs runs = RunsOf(rectangle, from, to);
  for (int64_t i = 0; i < runs.outer.count; ++i) {
    ROPE_RETURN_IF_ERROR(
        CopyRows(runs, source + i * runs.outer.from, target + i * runs.outer.to, stream));
  }
  return absl::OkStatus();
}

}  // namespace rope::kernels
