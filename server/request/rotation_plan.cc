#include "server/request/rotation_plan.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/error.h"

namespace rope::server {
namespace {

kernels::Multiplier MultiplierOf(v1::Operation operation, bool applied) {
  const bool adds = operation == v1::OPERATION_ADD_SINUSOIDAL;
  if (!applied || adds) return kernels::Multiplier::kOne;
  return operation == v1::OPERATION_INVERSE ? kernels::Multiplier::kInverseAttentionFactor
                                            : kernels::Multiplier::kAttentionFactor;
}

// Precision hf rounds each step to the tensor's dtype; the output of a fused norm is not rounded.
absl::Status CheckStepwise(const Plan& plan) {
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    if (!plan.tensors[i].norm_eps.has_value()) continue;
    return InvalidField(absl::StrCat("tensors[", i, "].norm"), "it with PRECISION_HF",
                        "PRECISION_EXACT, or tensors that are normalised already");
  }
  return absl::OkStatus();
}

// Makes the frequencies of an embedding for a group of heads.
ByLength::Make FrequenciesOf(v1::Operation operation, const kernels::RowUse& use,
                             const Plan& plan) {
  const kernels::Multiplier multiplier = MultiplierOf(operation, plan.attention_factor_applied);
  const bool adds = operation == v1::OPERATION_ADD_SINUSOIDAL;
  return [=](const kernels::ResolvedRope& of, int64_t length) {
    FrequenciesPtr columns = of.ForSeqLen(length, multiplier, use);
    // ForSeqLen omits pairs of frequency 0, but the sum still needs their cos(0) = 1.
    const auto all = static_cast<size_t>(of.rotary_dim() / 2);
    return adds && columns->inv_freq.size() < all ? of.ForDifferences(length) : columns;
  };
}

// The row sets of frequencies that depend on the sequence's length or on the layer.
void MakeRowSetsAt(v1::Operation operation, const Ropes& ropes, TokenPositions& positions,
                   Plan& plan) {
  ApplyPolicy(*ropes.resolved, positions);
  std::vector<int64_t> groups;
  const auto runs_of = [&](const kernels::RowUse& use) {
    ByLength frequencies(FrequenciesOf(operation, use, plan), plan);
    return MakeRuns(
        [&](int64_t token) {
          const kernels::ResolvedRope& of = ropes.layers.Of(token);
          return RunFrequencies{frequencies.At(of, LengthOf(of, positions, token)), nullptr};
        },
        ropes.layers.Groups(positions.sequence, groups), nullptr, plan);
  };
  MakeRowSets(*ropes.resolved, operation, runs_of, plan);
}

}  // namespace

absl::Status CheckRange(const kernels::ResolvedRope& resolved,
                        absl::Span<const int64_t> positions) {
  const std::optional<kernels::PositionRange> range = resolved.position_range();
  if (!range.has_value()) return absl::OkStatus();
  for (const int64_t position : positions) {
    if (position >= range->first && position <= range->last) continue;
    return MakeError(Reason::kPositionOutOfRange, "positions", position,
                     absl::StrCat(range->first, " to ", range->last,
                                  ": past it the scale of xpos is no float32"));
  }
  return absl::OkStatus();
}

absl::Status CheckSinusoidal(const kernels::ResolvedRope& resolved) {
  const auto refuse = [](absl::string_view got, absl::string_view want) {
    return InvalidField("operation", absl::StrCat("OPERATION_ADD_SINUSOIDAL with ", got), want);
  };
  if (resolved.attention_factor() != 1) {
    return refuse(absl::StrCat("attention factor ", resolved.attention_factor()),
                  "an attention factor of 1");
  }
  if (resolved.DependsOnSide()) return refuse("xpos", "an embedding without it");
  if (resolved.DependsOnDType()) return refuse("PRECISION_HF", "PRECISION_EXACT");
  return absl::OkStatus();
}

absl::Status PrepareRotation(v1::Operation operation, const RopeEntries& layers, Ropes& ropes,
                             Plan& plan) {
  if (!plan.rotates) return absl::OkStatus();
  ROPE_ASSIGN_OR_RETURN(ropes.resolved, ResolveFor(*ropes.entry, plan));
  ROPE_ASSIGN_OR_RETURN(ropes.layers, LayerRopes::Resolve(ropes.resolved, layers, ChannelsOf(plan),
                                                          plan.tensors.front().layout));
  ROPE_ASSIGN_OR_RETURN(plan.geometry, GeometryOf(*ropes.entry, *ropes.resolved));
  const kernels::ResolvedRope& resolved = *ropes.resolved;
  plan.attention_factor = resolved.attention_factor();
  plan.conjugate = operation == v1::OPERATION_INVERSE || operation == v1::OPERATION_BACKWARD;
  if (MultiplierOf(operation, plan.attention_factor_applied) ==
      kernels::Multiplier::kInverseAttentionFactor) {
    ROPE_RETURN_IF_ERROR(CheckDivisor(plan.attention_factor, "OPERATION_INVERSE"));
  }
  if (resolved.DependsOnDType()) {
    ROPE_RETURN_IF_ERROR(CheckStepwise(plan));
    plan.arithmetic = kernels::PairArithmetic::kTurnStepwise;
  }
  if (operation == v1::OPERATION_ADD_SINUSOIDAL) {
    ROPE_RETURN_IF_ERROR(CheckSinusoidal(resolved));
    ROPE_RETURN_IF_ERROR(ropes.layers.CheckNone("OPERATION_ADD_SINUSOIDAL"));
    plan.arithmetic = kernels::PairArithmetic::kAdd;
  }
  if (resolved.DependsOnSeqLen() || ropes.layers.differ()) return absl::OkStatus();
  const auto runs_of = [&](const kernels::RowUse& use) {
    return OneRun(FrequenciesOf(operation, use, plan)(resolved, 1), plan);
  };
  MakeRowSets(resolved, operation, runs_of, plan);
  return absl::OkStatus();
}

absl::Status PlanRotation(v1::Operation operation, const Ropes& ropes, TokenPositions positions,
                          Plan& plan) {
  if (!plan.rotates) return absl::OkStatus();
  const kernels::ResolvedRope& resolved = *ropes.resolved;
  for (const std::vector<int64_t>& values : positions.values) {
    ROPE_RETURN_IF_ERROR(CheckRange(resolved, values));
  }
  if (plan.row_sets.empty()) {
    MakeRowSetsAt(operation, ropes, positions, plan);
    ROPE_RETURN_IF_ERROR(CheckFrequencyBytes(plan));
  }
  WarnPastLength(resolved.config(), positions.values, plan);
  plan.mrope = MropeOf(resolved, positions.axes);
  plan.positions = std::move(positions.values);
  return absl::OkStatus();
}

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

absl::Status PlanDeviceRotation(v1::Operation operation, const Ropes& ropes,
                                std::optional<int64_t> length, Plan& plan) {
  const kernels::ResolvedRope& resolved = *ropes.resolved;
  const auto refuse = [](absl::string_view field, absl::string_view got, absl::string_view want) {
    return MakeError(Reason::kNotBuilt, field, absl::StrCat(got, " with tensors on a device"),
                     want);
  };
  if (ropes.layers.differ()) return refuse("rope.first_layer", "it", "a request for each layer");
  if (resolved.DependsOnSide()) return refuse("rope", "xpos", "an embedding without it");
  if (!plan.row_sets.empty()) return absl::OkStatus();
  if (!length.has_value()) {
    return refuse("positions.seq_lens", "nothing for frequencies that follow the length",
                  "one length for all sequences");
  }
  const auto runs_of = [&](const kernels::RowUse& use) {
    return OneRun(FrequenciesOf(operation, use, plan)(resolved, *length), plan);
  };
  MakeRowSets(resolved, operation, runs_of, plan);
  for (const RowSet& set : plan.row_sets) {
    if (set.runs.empty() || set.runs.front().frequencies->cacheable) continue;
    return refuse("rope", "frequencies of this length alone", "a length within the model's own");
  }
  return absl::OkStatus();
}

absl::Status PlanDeviceMove(const Ropes& ropes, int64_t difference, Plan& plan) {
  const kernels::ResolvedRope& resolved = *ropes.resolved;
  if (ropes.layers.differ()) {
    return MakeError(Reason::kNotBuilt, "rope.first_layer", "it with tensors on a device",
                     "a request for each layer");
  }
  const auto runs_of = [&](const kernels::RowUse& use) {
    return OneRun(resolved.ForDifferences(1, use.side), plan);
  };
  MakeRowSets(resolved, v1::OPERATION_REPOSITION, runs_of, plan);
  return CheckDistances(resolved, {&difference, 1});
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
  if (&resolved_to == &resolved_from) {
    plan.warnings.push_back(
        "reposition: the lengths before and after have different frequencies; keys of the sequence "
        "that stay in place keep those of their length");
  }
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
