// Rotator: rotates tensors of this process, without a server.
//
//   auto rotator = Rotator::Create("cpu", {.threads = 4});
//   rotator->Rotate({.rope = *Resolve(config), .pairing = Pairing::kHalf, .positions = {ids}},
//                   {{q.data(), q.data(), Side::kQ, DType::kFloat32, {tokens, 32, 128}}});
//
// Threading:  Rotate may be called from any number of threads at once.
// Ownership:  The caller owns all tensors and positions; Rotate keeps no pointer to them. Table
//             pages stay in the cache until its budget evicts them.
// Errors:     INVALID_ARGUMENT, "field: got X, want Y"; OUT_OF_RANGE: a position that is too large.
//             No output is written then. Errors of CreateBackend and of Backend::Rotate.
// Limits:     Positions 0 to 2^30. Memory beside the tensors: 16 bytes for each token of a tensor,
//             the pages, and with three axes a row for each token.
// Precision:  That of the backend (backend.h).
#ifndef ROPE_KERNELS_ROTATE_H_
#define ROPE_KERNELS_ROTATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend/backend.h"
#include "kernels/config/rope_config.h"
#include "kernels/dtype/dtype.h"
#include "kernels/dtype/pairing.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/table_cache.h"

namespace rope::kernels {

// q or k, packed in the order [tokens, heads, head_dim]. `output` is equal to `input` (in place) or
// does not overlap it; both hold the product of `shape` in elements.
struct RotateTensor {
  const void* input = nullptr;
  void* output = nullptr;
  Side side = Side::kQ;  // matters with xPos only
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape = {};
};

// The rotation of every tensor of a call.
struct Rotation {
  std::shared_ptr<const ResolvedRope> rope = {};
  Pairing pairing = Pairing::kHalf;
  // One axis, or three (t, h, w) for an embedding with mrope: the position of each token.
  std::vector<absl::Span<const int64_t>> positions = {};
  // The length that dynamic and longrope use, >= 1. Unset: the largest position + 1.
  std::optional<int64_t> seq_len = {};
};

class Rotator {
 public:
  static constexpr int64_t kTableBytes = int64_t{64} << 20;

  // `backend` is a name of ListBackends(). REQUIRES: options.threads >= 1.
  static absl::StatusOr<Rotator> Create(std::string_view backend, const BackendOptions& options,
                                        int64_t table_bytes = kTableBytes);

  // Rotates every tensor; returns when all outputs are written.
  absl::Status Rotate(const Rotation& rotation, absl::Span<const RotateTensor> tensors) const;

  Backend& backend() const { return *backend_; }

 private:
  Rotator(std::unique_ptr<Backend> backend, std::unique_ptr<TableCache> tables);

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<TableCache> tables_;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_ROTATE_H_
