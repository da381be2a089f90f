#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/diagnose/cells.h"
#include "client/cli/diagnose/channel_order.h"
#include "client/cli/diagnose/diagnose.h"
#include "client/cli/diagnose/explain_cells.h"

namespace rope::client {
namespace {

using kernels::Pairing;

// A behaviour, and the order of channels that goes with it.
struct Setting {
  Behavior behavior = {};
  bool other_pairing = false;
  std::optional<int64_t> window = {};  // first rotated channel, replaces the config's
};

// One change. Two changes of the same axis exclude each other.
struct Change {
  enum class Axis { kPairing, kPositions, kDirection, kMagnitude, kWindow, kAngles, kRounding };
  Axis axis;
  std::string words;
  Setting setting;  // the given one with this change only
};

// Applies `change` to `to`.
Setting Combined(Setting to, const Change& change) {
  const Behavior& from = change.setting.behavior;
  switch (change.axis) {
    case Change::Axis::kPairing:
      to.other_pairing = true;
      break;
    case Change::Axis::kPositions:
      to.behavior.shift = from.shift;
      break;
    case Change::Axis::kDirection:
      to.behavior.is_inverse = true;
      to.behavior.scale *= from.scale;
      break;
    case Change::Axis::kMagnitude:
      to.behavior.scale *= from.scale;
      break;
    case Change::Axis::kWindow:
      to.window = change.setting.window;
      break;
    case Change::Axis::kAngles:
      to.behavior.float32_angles = true;
      break;
    case Change::Axis::kRounding:
      to.behavior.rounded = from.rounded;
      to.behavior.rounded_to = from.rounded_to;
      break;
  }
  return to;
}

// Positions shifted by one in both directions, and positions that start at 0 or at 1.
std::vector<std::pair<int64_t, std::string>> Shifts(const RotatedSample& sample) {
  std::vector<std::pair<int64_t, std::string>> shifts = {{1, "positions + 1"},
                                                         {-1, "positions - 1"}};
  const int64_t first = *std::min_element(sample.positions.begin(), sample.positions.end());
  for (const int64_t from : {0, 1}) {
    if (std::abs(from - first) > 1) {
      shifts.emplace_back(from - first, absl::StrCat("positions counted from ", from));
    }
  }
  return shifts;
}

// Norm of the rotated channels after the rotation, divided by that before; 0 if undefined.
double Stretch(const RotatedSample& sample, const RopeNumbers& numbers) {
  double before = 0;
  double after = 0;
  const auto head_dim = static_cast<size_t>(sample.head_dim);
  const auto first = static_cast<size_t>(numbers.window());
  for (size_t i = 0; i < sample.before.size(); ++i) {
    if (i % head_dim < first || i % head_dim >= first + 2 * numbers.pairs()) continue;
    before += sample.before[i] * sample.before[i];
    after += sample.after[i] * sample.after[i];
  }
  return before > 0 ? std::sqrt(after / before) : 0;
}

void AddMagnitudes(const RotatedSample& sample, const RopeNumbers& numbers,
                   std::vector<Change>& changes) {
  const double m = numbers.attention_factor();
  std::vector<std::pair<double, std::string>> wanted;
  if (m != 1 && m > 0) {
    wanted = {{1, "attention factor missing"},
              {m * m, "attention factor squared"},
              {std::sqrt(m), "square root of the attention factor"},
              {1 / m, "attention factor inverted"}};
  }
  const double stretch = Stretch(sample, numbers);
  const auto near_stretch = [stretch](double value) {
    return std::abs(value - stretch) <= 1e-3 * stretch;
  };
  const bool is_known = near_stretch(m) || std::any_of(wanted.begin(), wanted.end(), [&](auto& w) {
                          return near_stretch(w.first);
                        });
  if (!is_known && stretch > 0) {
    wanted.emplace_back(stretch, absl::StrFormat("attention factor %.7g", stretch));
  }
  if (m == 0) return;
  for (auto& [value, words] : wanted) {
    changes.push_back(
        {Change::Axis::kMagnitude, std::move(words), {.behavior = {.scale = value / m}}});
  }
}

// Typical errors of rotating code, one at a time, the most frequent first.
std::vector<Change> Changes(const RotatedSample& sample, Pairing pairing,
                            const RopeNumbers& numbers) {
  using Axis = Change::Axis;
  std::vector<Change> changes;
  const Pairing other = pairing == Pairing::kHalf ? Pairing::kInterleaved : Pairing::kHalf;
  changes.push_back({Axis::kPairing,
                     absl::StrCat("pairing ", std::string(Name(other))),
                     {.other_pairing = true}});
  for (auto& [shift, words] : Shifts(sample)) {
    changes.push_back({Axis::kPositions, words, {.behavior = {.shift = shift}}});
  }
  const double m = numbers.attention_factor();
  changes.push_back({Axis::kDirection,
                     m == 1 ? "inverse rotation" : "transposed rotation (backward)",
                     {.behavior = {.is_inverse = true}}});
  if (m != 1 && m > 0) {
    changes.push_back({Axis::kDirection,
                       "inverse rotation",
                       {.behavior = {.is_inverse = true, .scale = 1 / (m * m)}}});
  }
  AddMagnitudes(sample, numbers, changes);
  const int64_t last_window = sample.head_dim - static_cast<int64_t>(2 * numbers.pairs());
  for (const int64_t window : {int64_t{0}, last_window}) {
    if (window == numbers.window() || (window == 0 && last_window == 0)) continue;
    changes.push_back(
        {Axis::kWindow,
         absl::StrCat("rotated channels at the ", window == 0 ? "start" : "end", " of the head"),
         {.window = window}});
  }
  changes.push_back({Axis::kAngles, "angles in float32", {.behavior = {.float32_angles = true}}});
  for (const auto& [narrow, name] :
       {std::pair(DType::kBFloat16, "bf16"), std::pair(DType::kFloat16, "fp16")}) {
    const DType dtype = narrow;  // clang 14 captures no structured binding
    const auto add = [&](Step step, const std::string& words) {
      changes.push_back(
          {Axis::kRounding, words, {.behavior = {.rounded = step, .rounded_to = dtype}}});
    };
    add(Step::kTable, absl::StrCat("cos and sin rounded to ", name));
    // A result of this type is rounded to it in any case.
    if (sample.dtype != dtype) add(Step::kResult, absl::StrCat("result rounded to ", name));
    add(Step::kThroughout, absl::StrCat("computed in ", name, " throughout"));
  }
  return changes;
}

// The orders of channels that the hypotheses need, and whether the pairs of each keep a common
// multiplier: that rules most of them out.
class Orders {
 public:
  explicit Orders(const RotatedSample& sample) : sample_(sample) {}

  // Null: no rotation in this order gives the sample.
  const ChannelOrder* Find(Pairing pairing, int64_t window, size_t pairs) {
    const auto key = std::tuple(pairing, window, pairs);
    const auto [it, is_new] = orders_.try_emplace(key);
    if (is_new) {
      ChannelOrder order = PlainOrder(pairing, window, pairs, sample_.head_dim);
      if (CellsOf(sample_, order, kManyRoundings).is_possible) it->second = std::move(order);
    }
    return it->second.has_value() ? &*it->second : nullptr;
  }

 private:
  const RotatedSample& sample_;
  std::map<std::tuple<Pairing, int64_t, size_t>, std::optional<ChannelOrder>> orders_;
};

// Collects hypotheses.
class Explainer {
 public:
  Explainer(const RotatedSample& thin, const RotatedSample& whole, Pairing pairing,
            size_t changes_max)
      : thin_(thin), whole_(whole), pairing_(pairing), changes_max_(changes_max), orders_(thin) {}

  void Add(const Variant& variant, const Setting& setting, std::vector<std::string> changes) {
    const bool is_variant = changes.empty();
    changes.insert(changes.begin(), variant.changes.begin(), variant.changes.end());
    if (changes.size() > changes_max_) return;
    const Pairing other = pairing_ == Pairing::kHalf ? Pairing::kInterleaved : Pairing::kHalf;
    const ChannelOrder* order =
        orders_.Find(setting.other_pairing ? other : pairing_,
                     setting.window.value_or(variant.numbers.window()), variant.numbers.pairs());
    if (order == nullptr) return;
    const Hypothesis hypothesis = {
        .numbers = &variant.numbers, .order = order, .behavior = setting.behavior};
    // Errors serve to rank configs; of everything else the fact that it does not fit is enough.
    const bool is_ranked = is_variant && changes_max_ == kChangesMax;
    Explanation explanation =
        is_ranked ? Try(thin_, hypothesis) : Try(thin_, hypothesis, /*ratio_max=*/1);
    if (explanation.explains() && whole_.after.size() > thin_.after.size()) {
      explanation = Try(whole_, hypothesis, /*ratio_max=*/1);
    }
    if (!is_ranked && !explanation.explains()) return;
    explanation.changes = std::move(changes);
    explanations_.push_back(std::move(explanation));
  }

  std::vector<Explanation> Take() { return std::move(explanations_); }

 private:
  const RotatedSample& thin_;
  const RotatedSample& whole_;
  const Pairing pairing_;
  const size_t changes_max_;
  Orders orders_;
  std::vector<Explanation> explanations_;
};

// Removes explanations that contain all changes of a better one that explains the sample.
// REQUIRES: best first.
void DropNeedless(std::vector<Explanation>& explanations) {
  std::vector<Explanation> kept;
  const auto contains = [](const Explanation& more, const Explanation& fewer) {
    return std::all_of(fewer.changes.begin(), fewer.changes.end(), [&more](const auto& change) {
      return std::find(more.changes.begin(), more.changes.end(), change) != more.changes.end();
    });
  };
  for (Explanation& explanation : explanations) {
    const bool is_needless = std::any_of(kept.begin(), kept.end(), [&](const Explanation& better) {
      return better.explains() && contains(explanation, better);
    });
    // The given config is always reported.
    if (!is_needless || explanation.changes.empty()) kept.push_back(std::move(explanation));
  }
  explanations = std::move(kept);
}

bool IsBetter(const Explanation& a, const Explanation& b) {
  if (a.explains() != b.explains()) return a.explains();
  if (a.explains()) return a.changes.size() < b.changes.size();
  return a.rms_error < b.rms_error;
}

}  // namespace

std::vector<Explanation> Explain(const RotatedSample& thin, const RotatedSample& whole,
                                 Pairing pairing, const std::vector<Variant>& variants,
                                 size_t changes_max) {
  Explainer explainer(thin, whole, pairing, changes_max);
  for (const Variant& variant : variants) {
    const std::vector<Change> changes = Changes(thin, pairing, variant.numbers);
    explainer.Add(variant, {}, {});
    if (variant.changes.size() >= changes_max) continue;
    for (size_t i = 0; i < changes.size(); ++i) {
      explainer.Add(variant, changes[i].setting, {changes[i].words});
      if (variant.changes.size() + 1 >= changes_max) continue;
      for (size_t j = i + 1; j < changes.size(); ++j) {
        if (changes[j].axis == changes[i].axis) continue;
        explainer.Add(variant, Combined(changes[i].setting, changes[j]),
                      {changes[i].words, changes[j].words});
      }
    }
  }
  std::vector<Explanation> explanations = explainer.Take();
  std::stable_sort(explanations.begin(), explanations.end(), IsBetter);
  DropNeedless(explanations);
  return explanations;
}

}  // namespace rope::client
