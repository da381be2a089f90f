// The embeddings of the layers of an L axis: RopeSpec.first_layer.
//
// Threading:  Functions; LayerRopes is immutable.
// Errors:     INVALID_ARGUMENT, with the field's path.
#ifndef ROPE_SERVER_REQUEST_LAYER_ROPES_H_
#define ROPE_SERVER_REQUEST_LAYER_ROPES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rope/v1/rotate.pb.h"
#include "server/models/model_registry.h"
#include "server/request/layout.h"
#include "server/request/limits.h"

namespace rope::server {

// The entries of all layers of the L axis; that of the first one if the axis is empty.
// INVALID_ARGUMENT: `layout` has no L axis, or more than limits::kLayersMax layers; from_rope is
// set; there is no such layer; ModelRegistry::FindLayers.
// REQUIRES: the request's rope has a first_layer.
absl::StatusOr<RopeEntries> FindLayers(const v1::RotateRequest& message, const Layout& layout,
                                       ModelRegistry& registry);

// The resolved embedding of each token.
class LayerRopes {
 public:
  using ResolvedPtr = std::shared_ptr<const kernels::ResolvedRope>;

  // `first` is the embedding of the first layer, or of all layers if `entries` is empty. `channels`
  // is the head_dim of configs without one. INVALID_ARGUMENT: the layers differ in more than their
  // frequencies; CheckLayersBytes.
  static absl::StatusOr<LayerRopes> Resolve(ResolvedPtr first, const RopeEntries& entries,
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
  // Adds the embeddings of the layers after the first one.
  absl::Status AddOthers(const RopeEntries& entries, int64_t channels);
  size_t LayerOf(int64_t token) const {
    return differ() ? static_cast<size_t>(token / inner_) % by_layer_.size() : 0;
  }

  absl::InlinedVector<ResolvedPtr, 1> by_layer_;
  int64_t inner_ = 1;  // tokens between two layers, in memory order
};

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_LAYER_ROPES_H_
