#include "server/request/token_runs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/models/model_registry.h"
#include "server/request/limits.h"

namespace rope::server {
namespace {

// The side whose rows rotate q or k. The inverse uses the rows of the other side, because xPos
// scales q and k by reciprocal factors.
kernels::Side SideOf(bool is_k, v1::Operation operation) {
  const bool undoes = operation == v1::OPERATION_INVERSE;
  return is_k != undoes ? kernels::Side::kK : kernels::Side::kQ;
}

// The numbers, and their bits in the key.
int64_t BytesOf(const kernels::Frequencies& frequencies) {
  const size_t numbers = frequencies.inv_freq.size() + frequencies.growth.size();
  return static_cast<int64_t>(sizeof(frequencies) + 2 * numbers * sizeof(long double));
}

// Half of the time that making frequencies takes is their power.
int64_t FrequencyBytesMax(const Plan& plan) {
  return plan.may_take_long ? limits::kFrequencyBytesMax : limits::kPlanHereBytesMax / 2;
}

}  // namespace

int64_t ChannelsOf(const Plan& plan) {
  const auto plain = [](const TensorPlan& tensor) { return !tensor.rotary_offset.has_value(); };
  const auto first = std::ranges::find_if(plan.tensors, plain);
  return (first == plan.tensors.end() ? plan.tensors.front() : *first).layout.head_dim;
}

absl::Status CheckOwnWindows(const Plan& plan, int64_t rotary_dim) {
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorPlan& tensor = plan.tensors[i];
    const int64_t last = tensor.layout.head_dim - rotary_dim;
    if (tensor.rotary_offset.value_or(0) <= last || !tensor.rotary_offset.has_value()) continue;
    return InvalidField(
        absl::StrCat("tensors[", i, "].rotary_offset"), *tensor.rotary_offset,
        absl::StrCat("at most D - rotary_dim, ", tensor.layout.head_dim, " - ", rotary_dim));
  }
  return absl::OkStatus();
}

absl::StatusOr<ResolvedPtr> ResolveFor(const RopeEntry& entry, const Plan& plan) {
  const int64_t channels = ChannelsOf(plan);
  const bool is_open = !entry.layer().config.head_dim.has_value();  // resolved each time
  if (!plan.may_take_long && is_open && channels > kWidthHereMax) return NeedsSideThread();
  ROPE_ASSIGN_OR_RETURN(auto resolved, entry.Resolve(channels));
  ROPE_RETURN_IF_ERROR(CheckOwnWindows(plan, resolved->rotary_dim()));
  const bool may_be_wider = resolved->config().rotary_offset.has_value();
  const int64_t least =
      std::max(resolved->head_dim(), resolved->rotary_offset() + resolved->rotary_dim());
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    if (plan.tensors[i].rotary_offset.has_value()) continue;
    const int64_t heads = plan.tensors[i].layout.head_dim;
    if (heads == least || (heads > least && may_be_wider)) continue;
    return InvalidField(
        absl::StrCat("tensors[", i, "].array.shape"), absl::StrCat("D ", heads),
        may_be_wider ? absl::StrCat("at least ", least, ", head_dim and rotary_offset + rotary_dim")
                     : absl::StrCat("the config's head_dim ", least,
                                    heads > least ? "; more with rotary_offset alone" : ""));
  }
  return resolved;
}

absl::StatusOr<kernels::PairGeometry> GeometryOf(const RopeEntry& entry,
                                                 const kernels::ResolvedRope& resolved) {
  if (!entry.pairing().has_value()) {
    return InvalidField("rope.pairing", "nothing",
                        "PAIRING_HALF or PAIRING_INTERLEAVED: this config does not say");
  }
  kernels::PairGeometry geometry;
  geometry.pairing = *entry.pairing();
  geometry.offset = resolved.rotary_offset();
  geometry.partner = resolved.rotary_dim() / 2;
  return geometry;
}

std::shared_ptr<const kernels::Mrope> MropeOf(const kernels::ResolvedRope& resolved, int axes) {
  const std::optional<kernels::Mrope>& mrope = resolved.config().mrope;
  return axes == 3 && mrope.has_value() ? std::make_shared<const kernels::Mrope>(*mrope) : nullptr;
}

void ApplyPolicy(const kernels::ResolvedRope& resolved, TokenPositions& positions) {
  if (resolved.config().seq_len_policy != kernels::SeqLenPolicy::kBatch) return;
  if (positions.seq_len.empty()) return;
  const int64_t longest = *std::ranges::max_element(positions.seq_len);
  std::ranges::fill(positions.seq_len, longest);
}

int64_t LengthOf(const kernels::ResolvedRope& resolved, const TokenPositions& positions,
                 int64_t token) {
  if (!resolved.DependsOnSeqLen()) return 1;
  const int64_t sequence = positions.sequence[static_cast<size_t>(token)];
  return positions.seq_len[static_cast<size_t>(sequence)];
}

absl::Status CheckDivisor(double attention_factor, absl::string_view operation) {
  if (std::isfinite(static_cast<float>(1 / attention_factor))) return absl::OkStatus();
  return InvalidField("operation",
                      absl::StrCat(operation, " with attention factor ", attention_factor),
                      "an attention factor that can be divided by");
}

void WarnPastLength(const kernels::RopeConfig& config,
                    const std::array<std::vector<int64_t>, 3>& positions, Plan& plan) {
  auto warning = WarningPastLength(config.max_position_embeddings, positions);
  if (warning.has_value()) plan.warnings.push_back(*std::move(warning));
}

TokenRuns MakeRuns(absl::FunctionRef<RunFrequencies(int64_t token)> frequencies_of,
                   const std::vector<int64_t>& sequence, const std::vector<int64_t>* from_sequence,
                   Plan& plan) {
  TokenRuns runs;
  if (plan.bytes() == 0) return runs;
  const auto continues = [](const std::vector<int64_t>& values, size_t token) {
    return values[token] == values[token - 1];
  };
  for (size_t token = 0; token < sequence.size(); ++token) {
    const bool same_sequence = token > 0 && continues(sequence, token) &&
                               (from_sequence == nullptr || continues(*from_sequence, token));
    if (!same_sequence) {
      const RunFrequencies run = frequencies_of(static_cast<int64_t>(token));
      const bool same_run =
          !runs.empty() && runs.back().frequencies == run.to && runs.back().from == run.from;
      const auto begin = static_cast<int64_t>(token);
      if (!same_run) runs.push_back({begin, begin, run.to, run.from});
    }
    runs.back().end = static_cast<int64_t>(token) + 1;
  }
  const size_t columns = runs.front().frequencies->inv_freq.size();
  for (const TokenRun& run : runs) {
    ROPE_CHECK(run.frequencies->inv_freq.size() == columns);
    ROPE_CHECK(run.from == nullptr || run.from->inv_freq.size() == columns);
  }
  plan.geometry.pairs = static_cast<int64_t>(columns);
  return runs;
}

TokenRuns OneRun(FrequenciesPtr frequencies, Plan& plan) {
  if (plan.bytes() == 0) return {};
  plan.geometry.pairs = static_cast<int64_t>(frequencies->inv_freq.size());
  return {{0, plan.tokens, std::move(frequencies), nullptr}};
}

// An embedding keeps most of its frequencies and shares them; others are made for this length.
FrequenciesPtr ByLength::At(const kernels::ResolvedRope& rope, int64_t length) {
  if (plan_.frequency_bytes > FrequencyBytesMax(plan_) && last_ != nullptr) return last_;
  FrequenciesPtr& slot = made_[{&rope, length}];
  if (slot != nullptr) return slot;
  slot = make_(rope, length);
  if (slot.use_count() == 1) plan_.frequency_bytes += BytesOf(*slot);
  last_ = slot;
  return slot;
}

absl::Status CheckFrequencyBytes(const Plan& plan) {
  if (plan.frequency_bytes <= FrequencyBytesMax(plan)) return absl::OkStatus();
  if (!plan.may_take_long) return NeedsSideThread();
  return MakeError(Reason::kLimitExceeded, "positions.seq_lens",
                   "so many different lengths, given or from the positions",
                   absl::StrCat("frequencies of at most ", limits::kFrequencyBytesMax,
                                " bytes, 16 for each channel that rotates and each length"));
}

int64_t FrequencyBytes(const Plan& plan) {
  absl::InlinedVector<const kernels::Frequencies*, 8> all;
  for (const RowSet& set : plan.row_sets) {
    for (const TokenRun& run : set.runs) {
      all.push_back(run.frequencies.get());
      if (run.from != nullptr) all.push_back(run.from.get());
    }
  }
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  int64_t bytes = 0;
  for (const kernels::Frequencies* frequencies : all) bytes += BytesOf(*frequencies);
  return bytes;
}

void MakeRowSets(const kernels::ResolvedRope& resolved, v1::Operation operation,
                 absl::FunctionRef<TokenRuns(const kernels::RowUse& use)> runs_of, Plan& plan) {
  const auto add = [&](const kernels::RowUse& use) {
    plan.row_sets.push_back({use, runs_of(use)});
    ROPE_CHECK(plan.row_sets.size() <= kRowSetsMax);
  };
  for (TensorPlan& tensor : plan.tensors) {
    for (HeadSpan& span : tensor.heads) {
      if (!span.rotates) continue;
      kernels::RowUse use;
      if (resolved.DependsOnSide()) use.side = SideOf(span.is_k, operation);
      if (resolved.DependsOnDType()) use.dtype = tensor.dtype;
      const auto same = [&use](const RowSet& set) { return set.use == use; };
      const auto found = std::ranges::find_if(plan.row_sets, same);
      span.row_set = static_cast<size_t>(found - plan.row_sets.begin());
      if (found == plan.row_sets.end()) add(use);
    }
  }
  if (plan.row_sets.empty()) add({});
}

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
