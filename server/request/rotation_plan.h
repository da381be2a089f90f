// Plans which embedding, pairs and rows each tensor of a rotation or reposition takes: resolves the
// embedding of a tensor, or of each layer of an L axis (RopeSpec.first_layer), and cuts the tokens
// into runs of equal frequencies, for each group of heads.
//
// Threading:  Functions only.
// Errors:     INVALID_ARGUMENT: a head_dim other than the config's, no pairing, an attention factor
//             without a float32 inverse. RESOURCE_EXHAUSTED: too many different lengths.
//             OUT_OF_RANGE: a position or a distance beyond the range of xPos.
#ifndef ROPE_SERVER_REQUEST_ROTATION_PLAN_H_
#define ROPE_SERVER_REQUEST_ROTATION_PLAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rope/v1/rotate.pb.h"
#include "server/models/model_registry.h"
#include "server/request/plan.h"
#include "server/request/positions.h"

namespace rope::server {

using FrequenciesPtr = std::shared_ptr<const kernels::Frequencies>;
using ResolvedPtr = std::shared_ptr<const kernels::ResolvedRope>;

// The entries of all layers of the L axis; that of the first one if the axis is empty.
// INVALID_ARGUMENT: `layout` has no L axis, or more than limits::kLayersMax layers; from_rope is
// set; there is no such layer; ModelRegistry::FindLayers.
// REQUIRES: the request's rope has a first_layer.
absl::StatusOr<RopeEntries> FindLayers(const v1::RotateRequest& message, const Layout& layout,
                                       ModelRegistry& registry);

// The resolved embedding of each token, on an L axis by its layer. Immutable.
class LayerRopes {
 public:
  // `first` is the embedding of the first layer, or of all layers if `entries` is empty. `channels`
  // is the head_dim of configs without one. INVALID_ARGUMENT: the layers differ in more than their
  // frequencies; CheckLayersBytes.
  static absl::StatusOr<LayerRopes> Resolve(const ResolvedPtr& first, const RopeEntries& entries,
                                            int64_t channels, const Layout& layout);

  // Whether there are several layers, even if they share one embedding.
  bool differ() const { return by_layer_.size() > 1; }
  // By layer; layers may share one.
  absl::Span<const ResolvedPtr> by_layer() const { return by_layer_; }
  const kernels::ResolvedRope& Of(int64_t token) const { return *by_layer_[LayerOf(token)]; }
  // By token: a number that differs from those of other layers and of other sequences. `sequence`
  // has each token's sequence; it is returned itself if all layers share an embedding, else
  // `groups` is filled.
  const std::vector<int64_t>& Groups(const std::vector<int64_t>& sequence,
                                     std::vector<int64_t>& groups) const;
  // INVALID_ARGUMENT: layers have different embeddings. `with` names what excludes them.
  absl::Status CheckNone(absl::string_view with) const;

 private:
  size_t LayerOf(int64_t token) const {
    return differ() ? static_cast<size_t>(token / inner_) % by_layer_.size() : 0;
  }

  absl::InlinedVector<ResolvedPtr, 1> by_layer_;
  int64_t inner_ = 1;  // tokens between two layers, in memory order
};

// The embeddings of a request, which do not depend on its positions.
struct Ropes {
  std::shared_ptr<const RopeEntry> entry;       // null: the caller supplies rows
  std::shared_ptr<const RopeEntry> from_entry;  // null, except in a reposition
  ResolvedPtr resolved;                         // null: the layer does not rotate
  ResolvedPtr from_resolved;                    // null, except in a reposition
  LayerRopes layers;                            // REQUIRES: resolved
  RopeEntries entries;                          // by layer, of an L axis (FindLayers); else empty
};

// The number of channels that a config without head_dim takes: D of the first tensor that names no
// rotary_offset. If all tensors name one, D of tensors[0].
int64_t ChannelsOf(const Plan& plan);

// Checks that `rotary_dim` channels from the tensors' own rotary_offsets lie in their heads.
absl::Status CheckOwnWindows(const Plan& plan, int64_t rotary_dim);

// The bytes of all frequencies of the plan, which other requests may share.
int64_t FrequencyBytes(const Plan& plan);

// PlanRotation: assigns frequencies to every token, given an embedding and the tokens' positions.
//
// Tokens with the same frequencies form a run (TokenRun). Frequencies depend on the sequence's
// length only for configs whose scaling follows it (dynamic, longrope), so that most plans have one
// run. Heads whose rows differ, by side or dtype, have row sets of their own (RowSet).

// OUT_OF_RANGE: a position beyond the range of xPos, if the embedding has it.
absl::Status CheckRange(const kernels::ResolvedRope& resolved, absl::Span<const int64_t> positions);

// INVALID_ARGUMENT: OPERATION_ADD_SINUSOIDAL does not support the embedding, because it has an
// attention factor other than 1, xpos or precision hf.
absl::Status CheckSinusoidal(const kernels::ResolvedRope& resolved);

// The part that does not depend on positions: the embedding's checks, the geometry and the
// attention factor, and, where frequencies depend on no length and no layer, the row sets.
// REQUIRES: the plan's tensors are set; ropes.entry is.
absl::Status PrepareRotation(v1::Operation operation, Ropes& ropes, Plan& plan);

// Fills the rest of a prepared plan. A layer that does not rotate changes nothing.
absl::Status PlanRotation(v1::Operation operation, const Ropes& ropes, TokenPositions positions,
                          Plan& plan);

// Fills the row sets of a plan for tensors on a device, each as one run: of a rotation at `length`,
// and of a move of all tokens by one difference within one embedding. UNIMPLEMENTED: embeddings
// that no resident table serves.
absl::Status PlanDeviceRotation(v1::Operation operation, const Ropes& ropes,
                                std::optional<int64_t> length, Plan& plan);
absl::Status PlanDeviceMove(const Ropes& ropes, int64_t difference, Plan& plan);

// PlanReposition: moves tensors that are already rotated to other positions or another embedding.
//
//   equal frequencies before and after   one rotation by the difference of the positions
//   different frequencies                undo the old rotation (`from`), then apply the new one
//
// Errors:     INVALID_ARGUMENT: a reposition between incompatible embeddings;
//             layers of which one has different frequencies before and after.

// The former embedding of a request. Errors name it reposition.from_rope. Errors: as
// ModelRegistry::Find.
absl::StatusOr<std::shared_ptr<const RopeEntry>> FindFromRope(const v1::RopeSpec& from_rope,
                                                              ModelRegistry& registry,
                                                              bool may_take_long = true);

// INVALID_ARGUMENT: another pairing, rotary_offset or rotary_dim.
absl::Status CheckSameGeometry(const RopeEntry& from, const kernels::ResolvedRope& resolved_from,
                               const RopeEntry& to, const kernels::ResolvedRope& resolved_to);

// OUT_OF_RANGE: a difference of positions beyond the range of xPos, if the embedding has it.
absl::Status CheckDistances(const kernels::ResolvedRope& resolved,
                            absl::Span<const int64_t> differences);

// The part that does not depend on positions: the embeddings' checks and the geometry. REQUIRES:
// the plan's tensors are set; ropes.entry and ropes.from_entry are.
absl::Status PrepareReposition(Ropes& ropes, Plan& plan);

// Fills the rest of a prepared plan that moves tensors `from` their positions `to` others. The
// result has the attention factor of ropes.entry. Within one embedding nothing is scaled.
absl::Status PlanReposition(const Ropes& ropes, TokenPositions from, TokenPositions to, Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_ROTATION_PLAN_H_
