// What planning a rotation and planning a reposition share. It resolves the embedding of a tensor,
// or of each layer of an L axis (RopeSpec.first_layer), and cuts the tokens into runs of equal
// frequencies, for each group of heads.
//
// Threading:  Functions only.
// Errors:     INVALID_ARGUMENT: a head_dim other than the config's, no pairing, an attention factor
//             without a float32 inverse. RESOURCE_EXHAUSTED: too many different lengths.
#ifndef ROPE_SERVER_REQUEST_TOKEN_RUNS_H_
#define ROPE_SERVER_REQUEST_TOKEN_RUNS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rope/v1/rotate.pb.h"
#include "server/models/model_registry.h"
#include "server/request/layout.h"
#include "server/request/limits.h"
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

// The embeddings of a request, which do not depend on its positions.
struct Ropes {
  std::shared_ptr<const RopeEntry> entry;       // null: the caller supplies rows
  std::shared_ptr<const RopeEntry> from_entry;  // null, except in a reposition
  ResolvedPtr resolved;                         // null: the layer does not rotate
  ResolvedPtr from_resolved;                    // null, except in a reposition
  LayerRopes layers;                            // REQUIRES: resolved
};

// The channels from which a config without head_dim takes it: D of the first tensor without a
// rotary_offset of its own, else of tensors[0].
int64_t ChannelsOf(const Plan& plan);

// The embedding for the plan's tensors. Their heads may be wider than the config's head_dim only if
// a rotary_offset, the tensor's or the config's, says which channels rotate. NeedsSideThread,
// unless the plan may take long: wide heads resolve a config without head_dim.
absl::StatusOr<ResolvedPtr> ResolveFor(const RopeEntry& entry, const Plan& plan);

// Checks that `rotary_dim` channels from the tensors' own rotary_offsets lie in their heads.
absl::Status CheckOwnWindows(const Plan& plan, int64_t rotary_dim);

absl::StatusOr<kernels::PairGeometry> GeometryOf(const RopeEntry& entry,
                                                 const kernels::ResolvedRope& resolved);

// The config's division of the pairs between three axes. Null: it has none, or `axes` is not 3.
std::shared_ptr<const kernels::Mrope> MropeOf(const kernels::ResolvedRope& resolved, int axes);

// With SeqLenPolicy::kBatch, all sequences use the length of the longest one.
void ApplyPolicy(const kernels::ResolvedRope& resolved, TokenPositions& positions);

// The sequence length that the token's frequencies depend on; 1 if they do not depend on it.
int64_t LengthOf(const kernels::ResolvedRope& resolved, const TokenPositions& positions,
                 int64_t token);

// Tables hold float32, so that the inverse of the attention factor must be a finite float32.
// `operation` for the error.
absl::Status CheckDivisor(double attention_factor, absl::string_view operation);

// Adds a warning if a position is past the model's own length. `positions` are by axis and token.
void WarnPastLength(const kernels::RopeConfig& config,
                    const std::array<std::vector<int64_t>, 3>& positions, Plan& plan);

// The frequencies of a run; `from` is null except in a reposition between two embeddings.
struct RunFrequencies {
  FrequenciesPtr to;
  FrequenciesPtr from;
};
using TokenRuns = absl::InlinedVector<TokenRun, 1>;

// Cuts the tokens into runs of equal frequencies. `sequence`: LayerRopes::Groups. All tokens of
// a group have the same frequencies, so `frequencies_of(token)` is called when the group changes.
// Runs are compared by pointer, because ByLength makes each Frequencies once. `from_sequence` may
// be null. A plan without bytes needs no frequencies.
TokenRuns MakeRuns(absl::FunctionRef<RunFrequencies(int64_t token)> frequencies_of,
                   const std::vector<int64_t>& sequence, const std::vector<int64_t>* from_sequence,
                   Plan& plan);

// One run of all tokens.
TokenRuns OneRun(FrequenciesPtr frequencies, Plan& plan);

// Memoizes the frequencies of embeddings by sequence length. Plan::frequency_bytes counts the
// frequencies made for this plan. Past a bound it makes no more and returns any: the caller must
// then refuse the plan (CheckFrequencyBytes).
class ByLength {
 public:
  using Make = std::function<FrequenciesPtr(const kernels::ResolvedRope& rope, int64_t length)>;
  // `plan` must outlive it.
  ByLength(Make make, Plan& plan) : make_(std::move(make)), plan_(plan) {}
  FrequenciesPtr At(const kernels::ResolvedRope& rope, int64_t length);

 private:
  const Make make_;
  Plan& plan_;
  FrequenciesPtr last_;  // made last
  absl::flat_hash_map<std::pair<const kernels::ResolvedRope*, int64_t>, FrequenciesPtr> made_;
};

// RESOURCE_EXHAUSTED: the plan's sequences have too many different lengths. NeedsSideThread: more
// than the receiving thread may make frequencies for.
absl::Status CheckFrequencyBytes(const Plan& plan);
// The bytes of all frequencies of the plan, which other requests may share.
int64_t FrequencyBytes(const Plan& plan);

// Gives each group of heads its row set, made by `runs_of(use)`. Makes at least one set.
void MakeRowSets(const kernels::ResolvedRope& resolved, v1::Operation operation,
                 absl::FunctionRef<TokenRuns(const kernels::RowUse& use)> runs_of, Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_TOKEN_RUNS_H_
