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
#include "rope/v1/rotate.pb.h"
#include "server/models/model_registry.h"
#include "server/request/layout.h"

namespace rope::server {

using RopeEntries = std::vector<std::shared_ptr<const RopeEntry>>;

// The entry of the request's embedding; with first_layer, that of this layer.
absl::StatusOr<std::shared_ptr<const RopeEntry>> FindFirst(const v1::RopeSpec& spec,
                                                           ModelRegistry& registry);

// The entries of all layers of the L axis. INVALID_ARGUMENT: `layout` has no L axis, or more than
// limits::kLayersMax layers; from_rope is set; there is no such layer; one does not rotate.
// REQUIRES: the request's rope has a first_layer.
absl::StatusOr<RopeEntries> FindLayers(const v1::RotateRequest& message, const Layout& layout,
                                       ModelRegistry& registry);

// The resolved embedding of each token.
class LayerRopes {
 public:
  using ResolvedPtr = std::shared_ptr<const kernels::ResolvedRope>;

  // `first` is the embedding of the first layer, or of all layers if `entries` is empty. `channels`
  // is the head_dim of configs without one. INVALID_ARGUMENT: the layers differ in more than their
  // frequencies.
  static absl::StatusOr<LayerRopes> Resolve(ResolvedPtr first, const RopeEntries& entries,
                                            int64_t channels, const Layout& layout);

  // Whether layers have embeddings of their own.
  bool differ() const { return by_layer_.size() > 1; }
  const kernels::ResolvedRope& Of(int64_t token) const { return *by_layer_[LayerOf(token)]; }
  // By token: a number that differs from those of other layers and of other sequences. `sequence`
  // has each token's sequence; it is returned itself if all layers share an embedding, else
  // `groups` is filled.
  const std::vector<int64_t>& Groups(const std::vector<int64_t>& sequence,
                                     std::vector<int64_t>& groups) const;
  // INVALID_ARGUMENT: layers have embeddings of their own. `with` names what excludes them.
  absl::Status CheckNone(absl::string_view with) const;

 private:
  size_t LayerOf(int64_t token) const {
    return differ() ? static_cast<size_t>(token / inner_) % by_layer_.size() : 0;
  }

  absl::InlinedVector<ResolvedPtr, 1> by_layer_;
  int64_t inner_ = 1;  // tokens between two layers, in memory order
};

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_LAYER_ROPES_H_
