#include "server/request/plan_rotation.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "server/error.h"

namespace rope::server {
namespace {

using FrequenciesPtr = std::shared_ptr<const kernels::Frequencies>;
using ResolvedPtr = std::shared_ptr<const kernels::ResolvedRope>;

// Resolves the embedding for heads of `channels`. They may be wider than the config's head_dim only
// if rotary_offset says which channels rotate.
absl::StatusOr<ResolvedPtr> ResolveFor(const RopeEntry& entry, int64_t channels) {
  ROPE_ASSIGN_OR_RETURN(auto resolved, entry.Resolve(channels));
  const bool may_be_wider = resolved->config().rotary_offset.has_value();
  const int64_t least =
      std::max(resolved->head_dim(), resolved->rotary_offset() + resolved->rotary_dim());
  if (channels == least || (channels > least && may_be_wider)) return resolved;
  return InvalidField(
      "tensors[0].array.shape", absl::StrCat("D ", channels),
      may_be_wider ? absl::StrCat("at least ", least, ", head_dim and rotary_offset + rotary_dim")
                   : absl::StrCat("the config's head_dim ", least,
                                  channels > least ? "; more with rotary_offset alone" : ""));
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

// The sequence length that the token's frequencies depend on; 1 if they do not depend on it.
int64_t LengthOf(const kernels::ResolvedRope& resolved, const TokenPositions& positions,
                 int64_t token) {
  if (!resolved.DependsOnSeqLen()) return 1;
  const int64_t sequence = positions.sequence[static_cast<size_t>(token)];
  return positions.seq_len[static_cast<size_t>(sequence)];
}

// The frequencies of a run; `from` is null except in a reposition between two embeddings.
struct RunFrequencies {
  FrequenciesPtr to;
  FrequenciesPtr from;
};

// Cuts the tokens into runs of equal frequencies. `frequencies_of(token)` is called when the
// sequence changes, because frequencies are constant within one. Pointers are compared, which
// suffices since ByLength makes each of them once. `from_sequence` may be null. A plan without
// bytes needs no frequencies.
template <typename FrequenciesOf>
absl::InlinedVector<TokenRun, 1> MakeRuns(const FrequenciesOf& frequencies_of,
                                          const std::vector<int64_t>& sequence,
                                          const std::vector<int64_t>* from_sequence, Plan& plan) {
  absl::InlinedVector<TokenRun, 1> runs;
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

// Memoizes the frequencies by sequence length.
class ByLength {
 public:
  using Make = std::function<FrequenciesPtr(int64_t length)>;
  explicit ByLength(Make make) : make_(std::move(make)) {}
  const FrequenciesPtr& At(int64_t length) {
    FrequenciesPtr& slot = made_[length];
    if (slot == nullptr) slot = make_(length);
    return slot;
  }

 private:
  const Make make_;
  absl::flat_hash_map<int64_t, FrequenciesPtr> made_;
};

kernels::Multiplier MultiplierOf(v1::Operation operation, bool applied) {
  const bool adds = operation == v1::OPERATION_ADD_SINUSOIDAL;
  if (!applied || adds) return kernels::Multiplier::kOne;
  return operation == v1::OPERATION_INVERSE ? kernels::Multiplier::kInverseAttentionFactor
                                            : kernels::Multiplier::kAttentionFactor;
}

// Tables hold float32, so that the inverse of the attention factor must be a finite float32.
absl::Status CheckDivisor(double attention_factor, absl::string_view operation) {
  if (std::isfinite(static_cast<float>(1 / attention_factor))) return absl::OkStatus();
  return InvalidField("operation",
                      absl::StrCat(operation, " with attention factor ", attention_factor),
                      "an attention factor that can be divided by");
}

// --- Reposition ---

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

std::optional<kernels::Mrope> MropeOf(const kernels::ResolvedRope& resolved, int axes) {
  return axes == 3 ? resolved.config().mrope : std::nullopt;
}

// Whether every token has the same frequencies in both embeddings. If so, one rotation by the
// difference of its positions replaces two. Compares each pair of lengths once in a row.
bool SameFrequencies(const kernels::ResolvedRope& resolved_to, const TokenPositions& to,
                     const kernels::ResolvedRope& resolved_from, const TokenPositions& from,
                     int64_t tokens) {
  if (&resolved_to == &resolved_from && !resolved_to.DependsOnSeqLen()) return true;
  if (resolved_to.attention_factor() != resolved_from.attention_factor()) return false;
  if (resolved_to.config().mrope != resolved_from.config().mrope) return false;
  ByLength all_to([&](int64_t length) { return resolved_to.ForDifferences(length); });
  ByLength all_from([&](int64_t length) { return resolved_from.ForDifferences(length); });
  int64_t checked_to = 0;  // lengths that were compared last
  int64_t checked_from = 0;
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t length_to = LengthOf(resolved_to, to, token);
    const int64_t length_from = LengthOf(resolved_from, from, token);
    if (length_to == checked_to && length_from == checked_from) continue;
    if (!(all_to.At(length_to)->key == all_from.At(length_from)->key)) return false;
    checked_to = length_to;
    checked_from = length_from;
  }
  return true;
}

// With SeqLenPolicy::kBatch, all sequences use the length of the longest one.
void ApplyPolicy(const kernels::ResolvedRope& resolved, TokenPositions& positions) {
  if (resolved.config().seq_len_policy != kernels::SeqLenPolicy::kBatch) return;
  if (positions.seq_len.empty()) return;
  const int64_t longest = *std::ranges::max_element(positions.seq_len);
  std::ranges::fill(positions.seq_len, longest);
}

absl::Status CheckRange(const kernels::ResolvedRope& resolved, const TokenPositions& positions) {
  const std::optional<kernels::PositionRange> range = resolved.position_range();
  if (!range.has_value()) return absl::OkStatus();
  for (const std::vector<int64_t>& values : positions.values) {
    for (const int64_t position : values) {
      if (position >= range->first && position <= range->last) continue;
      return absl::OutOfRangeError(absl::StrCat("positions: got ", position, ", want ",
                                                range->first, " to ", range->last,
                                                ": past it the scale of xpos is no float32"));
    }
  }
  return absl::OkStatus();
}

// The scale of a difference equals that of a position at the same distance from the centre.
absl::Status CheckDistance(const kernels::ResolvedRope& resolved, const Plan& plan) {
  const std::optional<kernels::PositionRange> range = resolved.position_range();
  if (!range.has_value()) return absl::OkStatus();
  const int64_t most = range->last - resolved.config().xpos->centre;
  for (const int64_t difference : plan.positions[0]) {
    if (std::abs(difference) <= most) continue;
    return absl::OutOfRangeError(absl::StrCat("positions: got a move by ", difference,
                                              ", want at most ", most,
                                              ": past it the scale of xpos is no float32"));
  }
  return absl::OkStatus();
}

// The side whose rows rotate q or k. The inverse uses the rows of the other side, because xPos
// scales q and k by reciprocal factors.
kernels::Side SideOf(bool is_k, v1::Operation operation) {
  const bool undoes = operation == v1::OPERATION_INVERSE;
  return is_k != undoes ? kernels::Side::kK : kernels::Side::kQ;
}

// Gives each group of heads its row set, made by `runs_of(use)`. Makes at least one set.
template <typename RunsOf>
void MakeRowSets(const kernels::ResolvedRope& resolved, v1::Operation operation,
                 const RunsOf& runs_of, Plan& plan) {
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

// The reposition as one rotation by the difference of the positions, without attention factor.
absl::Status PlanDifference(const kernels::ResolvedRope& resolved, const TokenPositions& from,
                            const TokenPositions& to, Plan& plan) {
  const auto runs_of = [&](const kernels::RowUse& use) {
    ByLength frequencies([&](int64_t length) { return resolved.ForDifferences(length, use.side); });
    return MakeRuns(
        [&](int64_t token) {
          return RunFrequencies{frequencies.At(LengthOf(resolved, to, token)), nullptr};
        },
        to.sequence, nullptr, plan);
  };
  MakeRowSets(resolved, v1::OPERATION_REPOSITION, runs_of, plan);
  SubtractPositions(to, from, plan);
  plan.mrope = MropeOf(resolved, std::max(to.axes, from.axes));
  return CheckDistance(resolved, plan);
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

}  // namespace

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

void WarnPastLength(const kernels::RopeConfig& config,
                    const std::array<std::vector<int64_t>, 3>& positions, Plan& plan) {
  auto warning = WarningPastLength(config.max_position_embeddings, positions);
  if (warning.has_value()) plan.warnings.push_back(*std::move(warning));
}

absl::Status PlanRotation(v1::Operation operation, RopeAt rope, Plan& plan) {
  if (!plan.rotates) return absl::OkStatus();
  ROPE_ASSIGN_OR_RETURN(const auto resolved,
                        ResolveFor(rope.entry, plan.tensors.front().layout.head_dim));
  ROPE_ASSIGN_OR_RETURN(plan.geometry, GeometryOf(rope.entry, *resolved));
  ROPE_RETURN_IF_ERROR(CheckRange(*resolved, rope.positions));
  ApplyPolicy(*resolved, rope.positions);
  plan.attention_factor = resolved->attention_factor();
  plan.conjugate = operation == v1::OPERATION_INVERSE || operation == v1::OPERATION_BACKWARD;
  const kernels::Multiplier multiplier = MultiplierOf(operation, plan.attention_factor_applied);
  if (multiplier == kernels::Multiplier::kInverseAttentionFactor) {
    ROPE_RETURN_IF_ERROR(CheckDivisor(plan.attention_factor, "OPERATION_INVERSE"));
  }
  if (resolved->DependsOnDType()) {
    ROPE_RETURN_IF_ERROR(CheckStepwise(plan));
    plan.arithmetic = kernels::PairArithmetic::kTurnStepwise;
  }
  const bool adds = operation == v1::OPERATION_ADD_SINUSOIDAL;
  if (adds) {
    ROPE_RETURN_IF_ERROR(CheckSinusoidal(*resolved));
    plan.arithmetic = kernels::PairArithmetic::kAdd;
  }
  const auto runs_of = [&](const kernels::RowUse& use) {
    ByLength frequencies([&](int64_t length) {
      FrequenciesPtr columns = resolved->ForSeqLen(length, multiplier, use);
      // ForSeqLen omits pairs of frequency 0, but the sum still needs their cos(0) = 1.
      const auto all = static_cast<size_t>(resolved->rotary_dim() / 2);
      return adds && columns->inv_freq.size() < all ? resolved->ForDifferences(length) : columns;
    });
    return MakeRuns(
        [&](int64_t token) {
          return RunFrequencies{frequencies.At(LengthOf(*resolved, rope.positions, token)),
                                nullptr};
        },
        rope.positions.sequence, nullptr, plan);
  };
  MakeRowSets(*resolved, operation, runs_of, plan);
  WarnPastLength(resolved->config(), rope.positions.values, plan);
  plan.mrope = MropeOf(*resolved, rope.positions.axes);
  plan.positions = std::move(rope.positions.values);
  plan.resolved = resolved;
  return absl::OkStatus();
}

absl::Status PlanReposition(RopeAt from, RopeAt to, Plan& plan) {
  if (from.entry.layer().rotates != to.entry.layer().rotates) {
    return InvalidField("reposition.from_rope", "rotation in only one of the two layers",
                        "both with rotation, or both without");
  }
  if (!plan.rotates) return absl::OkStatus();
  const int64_t head_dim = plan.tensors.front().layout.head_dim;
  ROPE_ASSIGN_OR_RETURN(const auto resolved_to, ResolveFor(to.entry, head_dim));
  ROPE_ASSIGN_OR_RETURN(const auto resolved_from, ResolveFor(from.entry, head_dim));
  ROPE_ASSIGN_OR_RETURN(plan.geometry, GeometryOf(to.entry, *resolved_to));
  if (resolved_to->DependsOnDType() || resolved_from->DependsOnDType()) {
    return InvalidField(
        resolved_to->DependsOnDType() ? "rope.precision" : "reposition.from_rope.precision",
        "PRECISION_HF with OPERATION_REPOSITION",
        "PRECISION_EXACT: Hugging Face has no such operation");
  }
  ROPE_RETURN_IF_ERROR(CheckSameGeometry(from.entry, *resolved_from, to.entry, *resolved_to));
  ApplyPolicy(*resolved_to, to.positions);
  ApplyPolicy(*resolved_from, from.positions);
  WarnPastLength(resolved_to->config(), to.positions.values, plan);
  // One rotation suffices if the frequencies are equal. Otherwise each run has two: `from` is
  // undone, `to` is applied, and a run ends where either of them changes.
  if (SameFrequencies(*resolved_to, to.positions, *resolved_from, from.positions, plan.tokens)) {
    return PlanDifference(*resolved_to, from.positions, to.positions, plan);
  }
  if (resolved_to->DependsOnSide() || resolved_from->DependsOnSide()) {
    return InvalidField("reposition.from_rope", "a different embedding with xpos in one of them",
                        "the same xpos in both, or none");
  }
  ROPE_RETURN_IF_ERROR(CheckDivisor(resolved_from->attention_factor(), "OPERATION_REPOSITION"));
  plan.attention_factor = resolved_to->attention_factor() / resolved_from->attention_factor();
  ByLength all_to([&](int64_t length) { return resolved_to->ForDifferences(length); });
  ByLength all_from([&](int64_t length) { return resolved_from->ForDifferences(length); });
  auto runs = MakeRuns(
      [&](int64_t token) {
        return RunFrequencies{all_to.At(LengthOf(*resolved_to, to.positions, token)),
                              all_from.At(LengthOf(*resolved_from, from.positions, token))};
      },
      to.positions.sequence, &from.positions.sequence, plan);
  plan.row_sets.push_back({{}, std::move(runs)});
  plan.positions = std::move(to.positions.values);
  plan.mrope = MropeOf(*resolved_to, to.positions.axes);
  plan.from_positions = std::move(from.positions.values);
  plan.from_mrope = MropeOf(*resolved_from, from.positions.axes);
  return absl::OkStatus();
}

}  // namespace rope::server
