#include "server/models/kept_bytes.h"

namespace rope::server {

int64_t KeptBytes(const kernels::ResolvedRope& rope) {
  const int64_t growth = rope.DependsOnSide() ? rope.rotary_dim() / 2 : 0;
  return static_cast<int64_t>(sizeof(kernels::ResolvedRope)) + KeptBytes(rope.config()) +
         rope.KeptBytes() + growth * static_cast<int64_t>(sizeof(long double));
}

}  // namespace rope::server
