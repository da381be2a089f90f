#include "client/cli/diagnose/explain_cells.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/diagnose/cell_patterns.h"

namespace rope::client {
namespace {

constexpr int kTimesMax = 8;
constexpr size_t kExplanationsMax = 12;  // of one order and one set of frequencies

// What multiplied cos and sin in place of the attention factor `m`.
struct Magnitude {
  std::string words;  // empty: the attention factor
  double value = 1;
};

std::optional<Magnitude> MagnitudeOf(const Cells& cells, double m) {
  const auto is_within = [&cells](double value) {
    return cells.multiplier_low <= value && value <= cells.multiplier_high;
  };
  const Magnitude named[] = {{"", m},
                             {"attention factor missing", 1},
                             {"attention factor squared", m * m},
                             {"square root of the attention factor", std::sqrt(m)},
                             {"attention factor inverted", 1 / m}};
  for (const Magnitude& magnitude : named) {
    if (is_within(magnitude.value)) return magnitude;
  }
  const double measured = (cells.multiplier_low + cells.multiplier_high) / 2;
  if (!std::isfinite(measured) || measured <= 0) return std::nullopt;
  return Magnitude{absl::StrFormat("attention factor %.7g", measured), measured};
}

struct Arithmetic {
  std::string words;  // empty: exact
  Behavior behavior;
};

std::vector<Arithmetic> Arithmetics(DType dtype) {
  std::vector<Arithmetic> all = {{"", {}}, {"angles in float32", {.float32_angles = true}}};
  for (const auto& [narrow, name] :
       {std::pair(DType::kBFloat16, "bf16"), std::pair(DType::kFloat16, "fp16")}) {
    if (dtype != narrow) {
      all.push_back({absl::StrCat("result rounded to ", name),
                     {.rounded = Step::kResult, .rounded_to = narrow}});
    }
    all.push_back({absl::StrCat("cos and sin rounded to ", name),
                   {.rounded = Step::kTable, .rounded_to = narrow}});
    all.push_back({absl::StrCat("computed in ", name, " throughout"),
                   {.rounded = Step::kThroughout, .rounded_to = narrow}});
  }
  return all;
}

// The changes of one pattern, and the multiplier that goes with them.
struct Named {
  std::vector<std::string> changes;
  double scale = 1;
};

std::optional<Named> NamesOf(const CellPattern& pattern, const Cells& cells, double m) {
  Named named = {.changes = pattern.words, .scale = 1};
  const std::optional<Magnitude> magnitude = MagnitudeOf(cells, m);
  if (!magnitude.has_value()) return std::nullopt;
  named.scale = magnitude->value / m;
  if (pattern.is_inverse && m != 1) {
    if (magnitude->words == "attention factor inverted") return named;
    std::replace(named.changes.begin(), named.changes.end(), std::string(kInverseWords),
                 std::string("transposed rotation (backward)"));
  }
  if (!magnitude->words.empty()) named.changes.push_back(magnitude->words);
  return named;
}

std::vector<std::string> Joined(std::vector<std::string> first,
                                const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

std::vector<Explanation> ExplainCells(const RotatedSample& sample, const RopeNumbers& numbers,
                                      const ChannelOrder& order, Cells cells,
                                      const std::vector<std::string>& changes) {
  const double m = numbers.attention_factor();
  if (!cells.is_possible || cells.all_still || m <= 0) return {};
  if (!SolveCells(sample, numbers, cells)) return {};
  const std::vector<std::string> given = Joined(changes, order.changes);
  std::vector<Explanation> found;
  for (CellPattern& pattern : PatternsOf(sample, cells)) {
    const std::optional<Named> named = NamesOf(pattern, cells, m);
    if (!named.has_value() || found.size() >= kExplanationsMax) continue;
    const std::vector<std::string> all = Joined(given, named->changes);
    if (all.size() > kChangesMax) continue;
    Hypothesis hypothesis = {.numbers = &numbers, .order = &order, .plan = std::move(pattern.plan)};
    for (const Arithmetic& arithmetic : Arithmetics(sample.dtype)) {
      if (!arithmetic.words.empty() && all.size() == kChangesMax) break;
      hypothesis.behavior = arithmetic.behavior;
      hypothesis.behavior.scale = named->scale;
      Explanation explanation = Try(sample, hypothesis, 1);
      if (!explanation.explains()) continue;
      explanation.changes = all;
      if (!arithmetic.words.empty()) explanation.changes.push_back(arithmetic.words);
      explanation.positions = pattern.positions;
      found.push_back(std::move(explanation));
      break;
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const Explanation& a, const Explanation& b) {
    return a.changes.size() < b.changes.size();
  });
  return found;
}

std::vector<Explanation> ExplainRepeated(const RotatedSample& sample, const RopeNumbers& numbers,
                                         const ChannelOrder& order) {
  const bool is_plain =
      std::all_of(order.pairs.begin(), order.pairs.end(), [](const ChannelPair& pair) {
        return pair.before_a == pair.after_a && pair.before_b == pair.after_b;
      });
  if (!is_plain || order.changes.size() >= kChangesMax) return {};
  std::vector<Explanation> found;
  for (int times = 2; times <= kTimesMax; ++times) {
    Explanation explanation =
        Try(sample, {.numbers = &numbers, .order = &order, .behavior = {.times = times}}, 1);
    if (!explanation.explains()) continue;
    explanation.changes = Joined(order.changes, {absl::StrCat("rotated ", times, " times")});
    found.push_back(std::move(explanation));
  }
  return found;
}

}  // namespace rope::client
