#include "server/plan_rotation.h"

#include <algorithm>
#include <cmath>
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

absl::StatusOr<ResolvedPtr> ResolveFor(const RopeEntry& entry, int64_t head_dim) {
  ROPE_ASSIGN_OR_RETURN(auto resolved, entry.Resolve(head_dim));
  if (resolved->head_dim() != head_dim) {
    return InvalidField("tensors[0].array.shape", absl::StrCat("D ", head_dim),
                        absl::StrCat("the config's head_dim ", resolved->head_dim()));
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
  geometry.partner = resolved.rotary_dim() / 2;
  return geometry;
}

// The length that decides the frequencies of a token; 1 where no length does.
int64_t LengthOf(const kernels::ResolvedRope& resolved, const TokenPositions& positions,
                 int64_t token) {
  if (!resolved.DependsOnSeqLen()) return 1;
  const int64_t sequence = positions.sequence[static_cast<size_t>(token)];
  return positions.seq_len[static_cast<size_t>(sequence)];
}

// What a run of tokens turns by; `from` is null where positions alone say it.
struct RunFrequencies {
  FrequenciesPtr to;
  FrequenciesPtr from;
};

// Cuts the tokens into runs that `frequencies_of(token)` gives the same pointers, which do not
// change within a sequence. `from` may be null. Tokens without bytes need no frequencies.
template <typename FrequenciesOf>
void MakeRuns(const FrequenciesOf& frequencies_of, const std::vector<int64_t>& sequence,
              const std::vector<int64_t>* from_sequence, Plan& plan) {
  if (plan.bytes() == 0) return;
  const auto continues = [](const std::vector<int64_t>& values, size_t token) {
    return values[token] == values[token - 1];
  };
  for (size_t token = 0; token < sequence.size(); ++token) {
    const bool same_sequence = token > 0 && continues(sequence, token) &&
                               (from_sequence == nullptr || continues(*from_sequence, token));
    if (!same_sequence) {
      const RunFrequencies run = frequencies_of(static_cast<int64_t>(token));
      const bool same_run = !plan.runs.empty() && plan.runs.back().frequencies == run.to &&
                            plan.runs.back().from == run.from;
      const auto begin = static_cast<int64_t>(token);
      if (!same_run) plan.runs.push_back({begin, begin, run.to, run.from});
    }
    plan.runs.back().end = static_cast<int64_t>(token) + 1;
  }
  const size_t columns = plan.runs.front().frequencies->inv_freq.size();
  for (const TokenRun& run : plan.runs) {
    ROPE_CHECK(run.frequencies->inv_freq.size() == columns);
    ROPE_CHECK(run.from == nullptr || run.from->inv_freq.size() == columns);
  }
  plan.geometry.pairs = static_cast<int64_t>(columns);
}

// Frequencies by length, each made once.
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

void WarnPastLength(const kernels::RopeConfig& config, const TokenPositions& positions,
                    std::vector<std::string>& warnings) {
  if (!config.max_position_embeddings.has_value()) return;
  int64_t largest = -1;
  for (const std::vector<int64_t>& values : positions.values) {
    for (const int64_t position : values) largest = std::max(largest, position);
  }
  if (largest < *config.max_position_embeddings) return;
  warnings.push_back(absl::StrCat("positions: up to ", largest, ", past the model's ",
                                  *config.max_position_embeddings));
}

kernels::Multiplier MultiplierOf(v1::Operation operation, bool applied) {
  if (!applied) return kernels::Multiplier::kOne;
  return operation == v1::OPERATION_INVERSE ? kernels::Multiplier::kInverseAttentionFactor
                                            : kernels::Multiplier::kAttentionFactor;
}

// Tables hold float32, and what divides must leave one.
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
    return InvalidField("reposition.from_rope.pairing", "another one", "that of rope");
  }
  if (resolved_from.rotary_dim() != resolved_to.rotary_dim()) {
    return InvalidField("reposition.from_rope",
                        absl::StrCat("rotary_dim ", resolved_from.rotary_dim()),
                        absl::StrCat(resolved_to.rotary_dim(), ", as rope"));
  }
  return absl::OkStatus();
}

// All rotary_dim / 2 columns, zero frequencies included, without a multiplier.
FrequenciesPtr AllColumns(const kernels::ResolvedRope& resolved, int64_t length) {
  kernels::ResolvedRope::AtSeqLen evaluated = resolved.Evaluate(length);
  kernels::Frequencies frequencies;
  frequencies.key = kernels::TableKey(evaluated.inv_freq, 1);
  frequencies.inv_freq = std::move(evaluated.inv_freq);
  return std::make_shared<const kernels::Frequencies>(std::move(frequencies));
}

// to - from, by axis; three axes where either has them.
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

// Whether every token has the same inverse frequencies here and there, so that the difference of
// its positions says all.
bool SameFrequencies(const kernels::ResolvedRope& resolved_to, const TokenPositions& to,
                     const kernels::ResolvedRope& resolved_from, const TokenPositions& from,
                     int64_t tokens) {
  if (&resolved_to == &resolved_from && !resolved_to.DependsOnSeqLen()) return true;
  if (resolved_to.attention_factor() != resolved_from.attention_factor()) return false;
  if (resolved_to.config().mrope != resolved_from.config().mrope) return false;
  ByLength all_to([&](int64_t length) { return AllColumns(resolved_to, length); });
  ByLength all_from([&](int64_t length) { return AllColumns(resolved_from, length); });
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

}  // namespace

absl::Status PlanRotation(v1::Operation operation, RopeAt rope, Plan& plan) {
  if (!plan.rotates) return absl::OkStatus();
  ROPE_ASSIGN_OR_RETURN(const auto resolved,
                        ResolveFor(rope.entry, plan.tensors.front().layout.head_dim));
  ROPE_ASSIGN_OR_RETURN(plan.geometry, GeometryOf(rope.entry, *resolved));
  plan.attention_factor = resolved->attention_factor();
  plan.conjugate = operation == v1::OPERATION_INVERSE || operation == v1::OPERATION_BACKWARD;
  const kernels::Multiplier multiplier = MultiplierOf(operation, plan.attention_factor_applied);
  if (multiplier == kernels::Multiplier::kInverseAttentionFactor) {
    ROPE_RETURN_IF_ERROR(CheckDivisor(plan.attention_factor, "OPERATION_INVERSE"));
  }
  ByLength frequencies([&](int64_t length) { return resolved->ForSeqLen(length, multiplier); });
  MakeRuns(
      [&](int64_t token) {
        return RunFrequencies{frequencies.At(LengthOf(*resolved, rope.positions, token)), nullptr};
      },
      rope.positions.sequence, nullptr, plan);
  WarnPastLength(resolved->config(), rope.positions, plan.warnings);
  plan.mrope = MropeOf(*resolved, rope.positions.axes);
  plan.positions = std::move(rope.positions.values);
  return absl::OkStatus();
}

absl::Status PlanReposition(RopeAt from, RopeAt to, Plan& plan) {
  if (from.entry.layer().rotates != to.entry.layer().rotates) {
    return InvalidField("reposition.from_rope", "a layer that does not rotate as rope does",
                        "both with rotation, or both without");
  }
  if (!plan.rotates) return absl::OkStatus();
  const int64_t head_dim = plan.tensors.front().layout.head_dim;
  ROPE_ASSIGN_OR_RETURN(const auto resolved_to, ResolveFor(to.entry, head_dim));
  ROPE_ASSIGN_OR_RETURN(const auto resolved_from, ResolveFor(from.entry, head_dim));
  ROPE_ASSIGN_OR_RETURN(plan.geometry, GeometryOf(to.entry, *resolved_to));
  ROPE_RETURN_IF_ERROR(CheckSameGeometry(from.entry, *resolved_from, to.entry, *resolved_to));
  WarnPastLength(resolved_to->config(), to.positions, plan.warnings);
  if (SameFrequencies(*resolved_to, to.positions, *resolved_from, from.positions, plan.tokens)) {
    ByLength frequencies(
        [&](int64_t length) { return resolved_to->ForSeqLen(length, kernels::Multiplier::kOne); });
    MakeRuns(
        [&](int64_t token) {
          return RunFrequencies{frequencies.At(LengthOf(*resolved_to, to.positions, token)),
                                nullptr};
        },
        to.positions.sequence, nullptr, plan);
    SubtractPositions(to.positions, from.positions, plan);
    plan.mrope = MropeOf(*resolved_to, std::max(to.positions.axes, from.positions.axes));
    return absl::OkStatus();
  }
  ROPE_RETURN_IF_ERROR(CheckDivisor(resolved_from->attention_factor(), "OPERATION_REPOSITION"));
  plan.attention_factor = resolved_to->attention_factor() / resolved_from->attention_factor();
  ByLength all_to([&](int64_t length) { return AllColumns(*resolved_to, length); });
  ByLength all_from([&](int64_t length) { return AllColumns(*resolved_from, length); });
  MakeRuns(
      [&](int64_t token) {
        return RunFrequencies{all_to.At(LengthOf(*resolved_to, to.positions, token)),
                              all_from.At(LengthOf(*resolved_from, from.positions, token))};
      },
      to.positions.sequence, &from.positions.sequence, plan);
  plan.positions = std::move(to.positions.values);
  plan.mrope = MropeOf(*resolved_to, to.positions.axes);
  plan.from_positions = std::move(from.positions.values);
  plan.from_mrope = MropeOf(*resolved_from, from.positions.axes);
  return absl::OkStatus();
}

}  // namespace rope::server
