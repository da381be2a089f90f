#include "server/request/plan_rotation.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

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

}  // namespace rope::server
