#include "kernels/backend/cuda/cuda_copy.h"

#include <cstring>
#include <utility>

namespace rope::kernels {
namespace {

struct Dimension {
  int64_t count;
  int64_t from;  // strides in bytes
  int64_t to;
};

// Merges a dimension into the run if its vectors are adjacent on both sides.
void Merge(int64_t& run, Dimension& dimension) {
  const bool adjacent = dimension.from == run && dimension.to == run;
  if (dimension.count != 1 && !adjacent) return;
  run *= dimension.count;
  dimension.count = 1;
}

}  // namespace

void CopyRectangle(const CudaRectangle& rectangle, const char* source, const Strides& from,
                   char* target, const Strides& to) {
  const int64_t bytes = rectangle.element_bytes;
  int64_t run = rectangle.head_dim * bytes;  // of adjacent bytes
  Dimension inner = {rectangle.heads, from.head * bytes, to.head * bytes};
  Dimension outer = {rectangle.tokens, from.token * bytes, to.token * bytes};
  if (outer.from < inner.from) std::swap(inner, outer);
  Merge(run, inner);
  if (inner.count == 1) Merge(run, outer);
  for (int64_t i = 0; i < outer.count; ++i) {
    for (int64_t j = 0; j < inner.count; ++j) {
      std::memcpy(target + i * outer.to + j * inner.to, source + i * outer.from + j * inner.from,
                  static_cast<size_t>(run));
    }
  }
}

}  // namespace rope::kernels
