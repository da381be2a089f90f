#include "server/request/plan_reposition.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/error.h"

namespace rope::server {
namespace {

FrequenciesPtr MakeDifferences(const kernels::ResolvedRope& rope, int64_t length) {
  return rope.ForDifferences(length);
}

// positions = to - from, by axis. If one side has three axes, the other's only axis counts as each.
void SubtractPositions(const TokenPositions& to, const TokenPositions& from, Plan& plan) {
  const int axes = std::max(to.axes, from.axes);
  for (int axis = 0; axis < axes; ++axis) {
    const std::vector<int64_t>& a = to.values[static_cast<size_t>(std::min(axis, to.axes - 1))];
    const std::vector<int64_t>& b = from.values[static_cast<size_t>(std::min(axis, from.axes - 1))];
    std::vector<int64_t>& difference = plan.positions[static_cast<size_t>(axis)];
    difference.resize(a.size());
    for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  }
}

// Whether every token has the same frequencies before and after. If so, one rotation by the
// difference of its positions replaces two. Layers that differ keep their embeddings, because
// FindLayers refuses from_rope. Compares an embedding and its lengths once in a row.
bool SameFrequencies(const Ropes& ropes, const TokenPositions& to, const TokenPositions& from,
                     Plan& plan) {
  const kernels::ResolvedRope& resolved_to = *ropes.resolved;
  const kernels::ResolvedRope& resolved_from = *ropes.from_resolved;
  const LayerRopes& layers = ropes.layers;
  const bool kept = layers.differ() || &resolved_to == &resolved_from;
  const auto depends = [](const ResolvedPtr& layer) { return layer->DependsOnSeqLen(); };
  if (kept && absl::c_none_of(layers.by_layer(), depends)) return true;
  if (resolved_to.attention_factor() != resolved_from.attention_factor()) return false;
  if (resolved_to.config().mrope != resolved_from.config().mrope) return false;
  ByLength all(MakeDifferences, plan);
  const kernels::ResolvedRope* checked = nullptr;  // compared last, at these lengths
  int64_t checked_to = 0;
  int64_t checked_from = 0;
  for (int64_t token = 0; token < plan.tokens; ++token) {
    const kernels::ResolvedRope& rope_to = layers.Of(token);
    const kernels::ResolvedRope& rope_from = kept ? rope_to : resolved_from;
    const int64_t length_to = LengthOf(rope_to, to, token);
    const int64_t length_from = LengthOf(rope_from, from, token);
    if (&rope_to == checked && length_to == checked_to && length_from == checked_from) continue;
    const FrequenciesPtr frequencies_to = all.At(rope_to, length_to);
    const FrequenciesPtr frequencies_from = all.At(rope_from, length_from);
    const bool same = frequencies_to == frequencies_from ||  // without a look at their numbers
                      frequencies_to->key == frequencies_from->key;
    if (!same) return false;
    checked = &rope_to;
    checked_to = length_to;
    checked_from = length_from;
  }
  return true;
}

// The reposition as one rotation by the difference of the positions, without attention factor.
absl::Status PlanDifference(const kernels::ResolvedRope& resolved, const LayerRopes& layers,
                            const TokenPositions& from, const TokenPositions& to, Plan& plan) {
  std::vector<int64_t> groups;
  const auto runs_of = [&](const kernels::RowUse& use) {
    ByLength frequencies([&](const kernels::ResolvedRope& of,
                             int64_t length) { return of.ForDifferences(length, use.side); },
                         plan);
    return MakeRuns(
        [&](int64_t token) {
          const kernels::ResolvedRope& of = layers.Of(token);
          return RunFrequencies{frequencies.At(of, LengthOf(of, to, token)), nullptr};
        },
        layers.Groups(to.sequence, groups), nullptr, plan);
  };
  MakeRowSets(resolved, v1::OPERATION_REPOSITION, runs_of, plan);
  ROPE_RETURN_IF_ERROR(CheckFrequencyBytes(plan));
  SubtractPositions(to, from, plan);
  plan.mrope = MropeOf(resolved, std::max(to.axes, from.axes));
  return CheckDistances(resolved, plan.positions[0]);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const RopeEntry>> FindFromRope(const v1::RopeSpec& from_rope,
                                                              ModelRegistry& registry,
                                                              bool may_take_long) {
  auto found = registry.Find(from_rope, may_take_long);
  if (found.ok()) return *std::move(found);
  // The registry's errors name fields of "rope"; here it is reposition.from_rope.
  return Prefixed("reposition.from_", found.status());
}

absl::Status CheckSameGeometry(const RopeEntry& from, const kernels::ResolvedRope& resolved_from,
                               const RopeEntry& to, const kernels::ResolvedRope& resolved_to) {
  if (from.pairing() != to.pairing()) {
    return InvalidField("reposition.from_rope.pairing", "a different pairing",
                        "the pairing of rope");
  }
  if (resolved_from.rotary_offset() != resolved_to.rotary_offset()) {
    return InvalidField("reposition.from_rope",
                        absl::StrCat("rotary_offset ", resolved_from.rotary_offset()),
                        absl::StrCat(resolved_to.rotary_offset(), ", as rope"));
  }
  if (resolved_from.rotary_dim() != resolved_to.rotary_dim()) {
    return InvalidField("reposition.from_rope",
                        absl::StrCat("rotary_dim ", resolved_from.rotary_dim()),
                        absl::StrCat(resolved_to.rotary_dim(), ", as rope"));
  }
  return absl::OkStatus();
}

// The scale of a difference equals that of a position at the same distance from the centre.
absl::Status CheckDistances(const kernels::ResolvedRope& resolved,
                            absl::Span<const int64_t> differences) {
  const std::optional<kernels::PositionRange> range = resolved.position_range();
  if (!range.has_value()) return absl::OkStatus();
  const int64_t most = range->last - resolved.config().xpos->centre;
  for (const int64_t difference : differences) {
    if (std::abs(difference) <= most) continue;
    return MakeError(Reason::kPositionOutOfRange, "positions",
                     absl::StrCat("a move by ", difference),
                     absl::StrCat("at most ", most, ": past it the scale of xpos is no float32"));
  }
  return absl::OkStatus();
}

absl::Status PrepareReposition(const RopeEntries& layers, Ropes& ropes, Plan& plan) {
  if (ropes.from_entry->layer().rotates != ropes.entry->layer().rotates) {
    return InvalidField("reposition.from_rope", "rotation in only one of the two layers",
                        "both with rotation, or both without");
  }
  if (!plan.rotates) return absl::OkStatus();
  ROPE_ASSIGN_OR_RETURN(ropes.resolved, ResolveFor(*ropes.entry, plan));
  ROPE_ASSIGN_OR_RETURN(ropes.from_resolved, ResolveFor(*ropes.from_entry, plan));
  ROPE_ASSIGN_OR_RETURN(ropes.layers, LayerRopes::Resolve(ropes.resolved, layers, ChannelsOf(plan),
                                                          plan.tensors.front().layout));
  ROPE_ASSIGN_OR_RETURN(plan.geometry, GeometryOf(*ropes.entry, *ropes.resolved));
  if (ropes.resolved->DependsOnDType() || ropes.from_resolved->DependsOnDType()) {
    return InvalidField(
        ropes.resolved->DependsOnDType() ? "rope.precision" : "reposition.from_rope.precision",
        "PRECISION_HF with OPERATION_REPOSITION",
        "PRECISION_EXACT: Hugging Face has no such operation");
  }
  return CheckSameGeometry(*ropes.from_entry, *ropes.from_resolved, *ropes.entry, *ropes.resolved);
}

absl::Status PlanReposition(const Ropes& ropes, TokenPositions from, TokenPositions to,
                            Plan& plan) {
  if (!plan.rotates) return absl::OkStatus();
  const kernels::ResolvedRope& resolved_to = *ropes.resolved;
  const kernels::ResolvedRope& resolved_from = *ropes.from_resolved;
  ApplyPolicy(resolved_to, to);
  ApplyPolicy(resolved_from, from);
  WarnPastLength(resolved_to.config(), to.values, plan);
  // One rotation suffices if the frequencies are equal. Otherwise each run has two: `from` is
  // undone, `to` is applied, and a run ends where either of them changes.
  const bool same = SameFrequencies(ropes, to, from, plan);
  ROPE_RETURN_IF_ERROR(CheckFrequencyBytes(plan));
  if (same) {
    return PlanDifference(resolved_to, ropes.layers, from, to, plan);
  }
  if (resolved_to.DependsOnSide() || resolved_from.DependsOnSide()) {
    return InvalidField("reposition.from_rope", "a different embedding with xpos in one of them",
                        "the same xpos in both, or none");
  }
  ROPE_RETURN_IF_ERROR(CheckDivisor(resolved_from.attention_factor(), "OPERATION_REPOSITION"));
  plan.attention_factor = resolved_to.attention_factor() / resolved_from.attention_factor();
  ROPE_RETURN_IF_ERROR(ropes.layers.CheckNone("a length that changes the frequencies"));
  ByLength all(MakeDifferences, plan);
  auto runs = MakeRuns(
      [&](int64_t token) {
        return RunFrequencies{all.At(resolved_to, LengthOf(resolved_to, to, token)),
                              all.At(resolved_from, LengthOf(resolved_from, from, token))};
      },
      to.sequence, &from.sequence, plan);
  ROPE_RETURN_IF_ERROR(CheckFrequencyBytes(plan));
  plan.row_sets.push_back({{}, std::move(runs)});
  plan.positions = std::move(to.values);
  plan.mrope = MropeOf(resolved_to, to.axes);
  plan.from_positions = std::move(from.values);
  plan.from_mrope = MropeOf(resolved_from, from.axes);
  return absl::OkStatus();
}

}  // namespace rope::server
