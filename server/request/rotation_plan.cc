#include "server/request/rotation_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "server/error.h"

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

constexpr char kLayers[] = "rope.first_layer";

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

// The config's division of the pairs between three axes. Null: it has none, or `axes` is not 3.
std::shared_ptr<const kernels::Mrope> MropeOf(const kernels::ResolvedRope& resolved, int axes) {
  const std::optional<kernels::Mrope>& mrope = resolved.config().mrope;
  return axes == 3 && mrope.has_value() ? std::make_shared<const kernels::Mrope>(*mrope) : nullptr;
}

// With SeqLenPolicy::kBatch, all sequences use the length of the longest one.
void ApplyPolicy(const kernels::ResolvedRope& resolved, TokenPositions& positions) {
  if (resolved.config().seq_len_policy != kernels::SeqLenPolicy::kBatch) return;
  if (positions.seq_len.empty()) return;
  const int64_t longest = *std::ranges::max_element(positions.seq_len);
  std::ranges::fill(positions.seq_len, longest);
}

// The sequence length that the token's frequencies depend on; 1 if they do not depend on it.
int64_t LengthOf(const kernels::ResolvedRope& resolved, const TokenPositions& positions,
                 int64_t token) {
  if (!resolved.DependsOnSeqLen()) return 1;
  const int64_t sequence = positions.sequence[static_cast<size_t>(token)];
  return positions.seq_len[static_cast<size_t>(sequence)];
}

// Tables hold float32, so that the inverse of the attention factor must be a finite float32.
// `operation` for the error.
absl::Status CheckDivisor(double attention_factor, absl::string_view operation) {
  if (std::isfinite(static_cast<float>(1 / attention_factor))) return absl::OkStatus();
  return InvalidField("operation",
                      absl::StrCat(operation, " with attention factor ", attention_factor),
                      "an attention factor that can be divided by");
}

// Adds a warning if a position is past the model's own length. `positions` are by axis and token.
void WarnPastLength(const kernels::RopeConfig& config,
                    const std::array<std::vector<int64_t>, 3>& positions, Plan& plan) {
  auto warning = WarningPastLength(config.max_position_embeddings, positions);
  if (warning.has_value()) plan.warnings.push_back(*std::move(warning));
}

using TokenRuns = absl::InlinedVector<TokenRun, 1>;

// Cuts the tokens into runs of equal frequencies. `sequence`: LayerRopes::Groups. All tokens of
// a group have the same frequencies, so `run_of(token)`, of that token, is called when the group
// changes.
// Runs are compared by pointer, because ByLength makes each Frequencies once. `from_sequence` may
// be null. A plan without bytes needs no frequencies.
TokenRuns MakeRuns(absl::FunctionRef<TokenRun(int64_t token)> run_of,
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
      TokenRun run = run_of(static_cast<int64_t>(token));
      const bool same_run = !runs.empty() && runs.back().frequencies == run.frequencies &&
                            runs.back().from == run.from;
      if (!same_run) runs.push_back(std::move(run));
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

// One run of all tokens.
TokenRuns OneRun(FrequenciesPtr frequencies, Plan& plan) {
  if (plan.bytes() == 0) return {};
  plan.geometry.pairs = static_cast<int64_t>(frequencies->inv_freq.size());
  return {{0, plan.tokens, std::move(frequencies), nullptr}};
}

// Memoizes the frequencies of embeddings by sequence length. Plan::frequency_bytes counts the
// frequencies made for this plan. Past a bound it makes no more and returns any: the caller must
// then refuse the plan (CheckFrequencyBytes).
class ByLength {
 public:
  using Make = std::function<FrequenciesPtr(const kernels::ResolvedRope& rope, int64_t length)>;
  // `plan` must outlive it.
  ByLength(Make make, Plan& plan) : make_(std::move(make)), plan_(plan) {}

  // An embedding keeps most of its frequencies and shares them; others are made for this length.
  FrequenciesPtr At(const kernels::ResolvedRope& rope, int64_t length) {
    if (plan_.frequency_bytes > FrequencyBytesMax(plan_) && last_ != nullptr) return last_;
    FrequenciesPtr& slot = made_[{&rope, length}];
    if (slot != nullptr) return slot;
    slot = make_(rope, length);
    if (slot.use_count() == 1) plan_.frequency_bytes += BytesOf(*slot);
    last_ = slot;
    return slot;
  }

 private:
  const Make make_;
  Plan& plan_;
  FrequenciesPtr last_;  // made last
  absl::flat_hash_map<std::pair<const kernels::ResolvedRope*, int64_t>, FrequenciesPtr> made_;
};

// The runs of tokens by their embedding and the length of their sequence.
TokenRuns RunsByLength(ByLength::Make make, const LayerRopes& layers,
                       const TokenPositions& positions, Plan& plan) {
  ByLength frequencies(std::move(make), plan);
  std::vector<int64_t> groups;
  return MakeRuns(
      [&](int64_t token) {
        const kernels::ResolvedRope& of = layers.Of(token);
        return TokenRun{token, token, frequencies.At(of, LengthOf(of, positions, token)), nullptr};
      },
      layers.Groups(positions.sequence, groups), nullptr, plan);
}

// RESOURCE_EXHAUSTED: the plan's sequences have too many different lengths. NeedsSideThread: more
// than the receiving thread may make frequencies for.
absl::Status CheckFrequencyBytes(const Plan& plan) {
  if (plan.frequency_bytes <= FrequencyBytesMax(plan)) return absl::OkStatus();
  if (!plan.may_take_long) return NeedsSideThread();
  return MakeError(Reason::kLimitExceeded, "positions.seq_lens",
                   "so many different lengths, given or from the positions",
                   absl::StrCat("frequencies of at most ", limits::kFrequencyBytesMax,
                                " bytes, 16 for each channel that rotates and each length"));
}

// Gives each group of heads its row set, made by `runs_of(use)`. Makes at least one set.
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

// The row sets of frequencies of one length, each one run of all tokens.
void MakeRowSetsOf(const kernels::ResolvedRope& resolved, v1::Operation operation, int64_t length,
                   Plan& plan) {
  const auto runs_of = [&](const kernels::RowUse& use) {
    return OneRun(FrequenciesOf(operation, use, plan)(resolved, length), plan);
  };
  MakeRowSets(resolved, operation, runs_of, plan);
}

// The embedding for the plan's tensors. Their heads may be wider than the config's head_dim only if
// a rotary_offset, the tensor's or the config's, says which channels rotate. NeedsSideThread,
// unless the plan may take long: wide heads resolve a config without head_dim.
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

// Resolves the embeddings, which fit the plan's tensors and each other.
absl::Status ResolveRopes(Ropes& ropes, Plan& plan) {
  ROPE_ASSIGN_OR_RETURN(ropes.resolved, ResolveFor(*ropes.entry, plan));
  if (ropes.from_entry != nullptr) {
    ROPE_ASSIGN_OR_RETURN(ropes.from_resolved, ResolveFor(*ropes.from_entry, plan));
  }
  ROPE_ASSIGN_OR_RETURN(ropes.layers,
                        LayerRopes::Resolve(ropes.resolved, ropes.entries, ChannelsOf(plan),
                                            plan.tensors.front().layout));
  if (!ropes.entry->pairing().has_value()) {
    return InvalidField("rope.pairing", "nothing",
                        "PAIRING_HALF or PAIRING_INTERLEAVED: this config does not say");
  }
  plan.geometry.pairing = *ropes.entry->pairing();
  plan.geometry.offset = ropes.resolved->rotary_offset();
  plan.geometry.partner = ropes.resolved->rotary_dim() / 2;
  return absl::OkStatus();
}

absl::Status CheckOneLayer(const Ropes& ropes) {
  if (!ropes.layers.differ()) return absl::OkStatus();
  return RefuseOnDevice("rope.first_layer", "it", "a request for each layer");
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

absl::StatusOr<RopeEntries> FindLayers(const v1::RotateRequest& message, const Layout& layout,
                                       ModelRegistry& registry) {
  if (!layout.Has('L')) return InvalidField(kLayers, "it without an L axis", "it unset");
  if (message.reposition().has_from_rope()) {
    return InvalidField(kLayers, "it together with reposition.from_rope", "one of them");
  }
  const int64_t layers = layout.Length('L');
  if (layers > limits::kLayersMax) {
    return InvalidField(kLayers, absl::StrCat("it with ", layers, " layers"),
                        absl::StrCat("at most ", limits::kLayersMax));
  }
  const v1::RopeSpec& spec = message.rope();
  if (spec.has_layer() || !spec.layer_type().empty() || spec.has_config_id()) {
    return InvalidField(kLayers, "it together with layer, layer_type or config_id", "it alone");
  }
  if (spec.first_layer() < 0) {
    return InvalidField(kLayers, spec.first_layer(), "a layer of the config");
  }
  return registry.FindLayers(spec, std::max<int64_t>(layers, 1));
}

absl::StatusOr<LayerRopes> LayerRopes::Resolve(const ResolvedPtr& first, const RopeEntries& entries,
                                               int64_t channels, const Layout& layout) {
  LayerRopes ropes;
  // Layers share entries. Each entry is resolved and compared once.
  absl::flat_hash_map<const RopeEntry*, ResolvedPtr> by_entry;
  int64_t bytes = entries.size() > 1 ? first->KeptBytes() : 0;
  ropes.by_layer_.push_back(first);
  for (size_t i = 1; i < entries.size(); ++i) {
    const RopeEntry& entry = *entries[i];
    ResolvedPtr& rope = by_entry[&entry];
    if (rope == nullptr) {
      if (entries[i] == entries.front()) {
        rope = first;
      } else {
        ROPE_ASSIGN_OR_RETURN(rope, entry.Resolve(channels));
        bytes += rope->KeptBytes();
        ROPE_RETURN_IF_ERROR(CheckLayersBytes(kLayers, bytes));
      }
      const absl::string_view difference = DifferenceOf(*first, *entries.front(), *rope, entry);
      if (!difference.empty()) {
        return InvalidField(kLayers, absl::StrCat("index ", i, " of the L axis with ", difference),
                            "layers that differ from the first one in their frequencies only");
      }
    }
    ropes.by_layer_.push_back(rope);
  }
  bool is_inside = false;
  for (const TokenAxis& axis : layout.token_axes) {
    if (is_inside) ropes.inner_ *= std::max<int64_t>(axis.length, 1);
    is_inside |= axis.letter == 'L';
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
  return InvalidField(kLayers, absl::StrCat("it with ", with),
                      "it unset, or a request for each layer");
}

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

absl::Status PrepareRotation(v1::Operation operation, Ropes& ropes, Plan& plan) {
  if (!plan.rotates) return absl::OkStatus();
  ROPE_RETURN_IF_ERROR(ResolveRopes(ropes, plan));
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
  MakeRowSetsOf(resolved, operation, 1, plan);
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
    ApplyPolicy(resolved, positions);
    const auto runs_of = [&](const kernels::RowUse& use) {
      return RunsByLength(FrequenciesOf(operation, use, plan), ropes.layers, positions, plan);
    };
    MakeRowSets(resolved, operation, runs_of, plan);
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
  const auto runs_of = [&](const kernels::RowUse& use) {
    const auto make = [&](const kernels::ResolvedRope& of, int64_t length) {
      return of.ForDifferences(length, use.side);
    };
    return RunsByLength(make, layers, to, plan);
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

absl::Status PrepareReposition(Ropes& ropes, Plan& plan) {
  if (ropes.from_entry->layer().rotates != ropes.entry->layer().rotates) {
    return InvalidField("reposition.from_rope", "rotation in only one of the two layers",
                        "both with rotation, or both without");
  }
  if (!plan.rotates) return absl::OkStatus();
  ROPE_RETURN_IF_ERROR(ResolveRopes(ropes, plan));
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
  ROPE_RETURN_IF_ERROR(CheckOneLayer(ropes));
  if (resolved.DependsOnSide()) return RefuseOnDevice("rope", "xpos", "an embedding without it");
  if (!plan.row_sets.empty()) return absl::OkStatus();
  if (!length.has_value()) {
    return RefuseOnDevice("positions.seq_lens", "nothing for frequencies that follow the length",
                          "one length for all sequences");
  }
  MakeRowSetsOf(resolved, operation, *length, plan);
  for (const RowSet& set : plan.row_sets) {
    if (set.runs.empty() || set.runs.front().frequencies->cacheable) continue;
    return RefuseOnDevice("rope", "frequencies of this length alone",
                          "a length within the model's own");
  }
  return absl::OkStatus();
}

absl::Status PlanDeviceMove(const Ropes& ropes, int64_t difference, Plan& plan) {
  const kernels::ResolvedRope& resolved = *ropes.resolved;
  ROPE_RETURN_IF_ERROR(CheckOneLayer(ropes));
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
        return TokenRun{token, token, all.At(resolved_to, LengthOf(resolved_to, to, token)),
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
