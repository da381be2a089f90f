#include "server/request/layer_ropes.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/request/limits.h"

namespace rope::server {
namespace {

constexpr char kField[] = "rope.first_layer";

// What the layer has that the first one has not; empty: they differ in their frequencies at most.
absl::string_view DifferenceOf(const kernels::ResolvedRope& first, const RopeEntry& first_entry,
                               const kernels::ResolvedRope& rope, const RopeEntry& entry) {
  // Frequencies of 0 have no column, and all tokens of a tensor have the same columns.
  const auto columns = [](const kernels::ResolvedRope& of) {
    return of.ForSeqLen(1, kernels::Multiplier::kOne)->inv_freq.size();
  };
  if (entry.pairing() != first_entry.pairing()) return "another pairing";
  if (rope.head_dim() != first.head_dim()) return "another head_dim";
  if (rope.rotary_dim() != first.rotary_dim()) return "another rotary_dim";
  if (rope.rotary_offset() != first.rotary_offset()) return "another rotary_offset";
  if (rope.attention_factor() != first.attention_factor()) return "another attention factor";
  if (rope.config().mrope != first.config().mrope) return "another mrope_section";
  if (rope.config().seq_len_policy != first.config().seq_len_policy) return "another policy";
  if (rope.DependsOnSide() || first.DependsOnSide()) return "xpos";
  if (columns(rope) != columns(first)) return "another number of frequencies above 0";
  return "";
}

}  // namespace

absl::StatusOr<RopeEntries> FindLayers(const v1::RotateRequest& message, const Layout& layout,
                                       ModelRegistry& registry) {
  if (!layout.Has('L')) return InvalidField(kField, "it without an L axis", "it unset");
  if (message.reposition().has_from_rope()) {
    return InvalidField(kField, "it together with reposition.from_rope", "one of them");
  }
  const int64_t layers = layout.Length('L');
  if (layers > limits::kLayersMax) {
    return InvalidField(kField, absl::StrCat("it with ", layers, " layers"),
                        absl::StrCat("at most ", limits::kLayersMax));
  }
  const v1::RopeSpec& spec = message.rope();
  if (spec.has_layer() || !spec.layer_type().empty() || spec.has_config_id()) {
    return InvalidField(kField, "it together with layer, layer_type or config_id", "it alone");
  }
  if (spec.first_layer() < 0) {
    return InvalidField(kField, spec.first_layer(), "a layer of the config");
  }
  return registry.FindLayers(spec, std::max<int64_t>(layers, 1));
}

absl::Status LayerRopes::AddOthers(const RopeEntries& entries, int64_t channels) {
  const kernels::ResolvedRope& of_first = *by_layer_.front();
  // Layers share entries. Each entry is resolved and compared once.
  absl::flat_hash_map<const RopeEntry*, ResolvedPtr> by_entry;
  int64_t bytes = of_first.KeptBytes();
  for (size_t i = 1; i < entries.size(); ++i) {
    const RopeEntry& entry = *entries[i];
    ResolvedPtr& rope = by_entry[&entry];
    if (rope == nullptr) {
      if (entries[i] == entries.front()) {
        rope = by_layer_.front();
      } else {
        ROPE_ASSIGN_OR_RETURN(rope, entry.Resolve(channels));
        bytes += rope->KeptBytes();
        ROPE_RETURN_IF_ERROR(CheckLayersBytes(kField, bytes));
      }
      const absl::string_view difference = DifferenceOf(of_first, *entries.front(), *rope, entry);
      if (!difference.empty()) {
        return InvalidField(kField, absl::StrCat("index ", i, " of the L axis with ", difference),
                            "layers that differ from the first one in their frequencies only");
      }
    }
    by_layer_.push_back(rope);
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerRopes> LayerRopes::Resolve(ResolvedPtr first, const RopeEntries& entries,
                                               int64_t channels, const Layout& layout) {
  LayerRopes ropes;
  ropes.by_layer_.push_back(std::move(first));
  if (entries.size() > 1) ROPE_RETURN_IF_ERROR(ropes.AddOthers(entries, channels));
  const auto is_layers = [](const TokenAxis& axis) { return axis.letter == 'L'; };
  const auto axis = std::ranges::find_if(layout.token_axes, is_layers);
  if (axis != layout.token_axes.end()) {
    for (auto inner = axis + 1; inner != layout.token_axes.end(); ++inner) {
      ropes.inner_ *= std::max<int64_t>(inner->length, 1);
    }
  }
  return ropes;
}

const std::vector<int64_t>& LayerRopes::Groups(const std::vector<int64_t>& sequence,
                                               std::vector<int64_t>& groups) const {
  if (!differ()) return sequence;
  groups = sequence;
  for (size_t token = 0; token < groups.size(); ++token) {
    groups[token] = groups[token] * static_cast<int64_t>(by_layer_.size()) +
                    static_cast<int64_t>(LayerOf(static_cast<int64_t>(token)));
  }
  return groups;
}

absl::Status LayerRopes::CheckNone(absl::string_view with) const {
  if (!differ()) return absl::OkStatus();
  return InvalidField(kField, absl::StrCat("it with ", with),
                      "it unset, or a request for each layer");
}

}  // namespace rope::server
