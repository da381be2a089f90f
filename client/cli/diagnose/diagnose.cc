#include "client/cli/diagnose/diagnose.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/golden.h"
#include "proto/wire/float16.h"

namespace rope::client {
namespace {

constexpr double kTolerance = 1.5e-7;
constexpr double kFloat32HalfUnit = 0x1p-24;
constexpr double kAngleSlack = 0x1p-22;  // two units in the last place of a float32 angle, relative
constexpr size_t kChangesMax = 2;
constexpr double kTiny = 1e-37;  // gives a value of 0 a tolerance

enum class Step { kNone, kTable, kResult, kThroughout };  // the step rounded to a 16-bit type

struct Behavior {
  bool other_pairing = false;
  int64_t shift = 0;                   // added to every position
  bool is_inverse = false;             // true: sin changes its sign
  double scale = 1;                    // in addition to the attention factor
  std::optional<int64_t> window = {};  // first rotated channel, replaces the config's
  bool float32_angles = false;
  Step rounded = Step::kNone;
  DType rounded_to = DType::kFloat32;
};

// One change of behaviour. Two changes of the same axis exclude each other.
struct Change {
  enum class Axis { kPairing, kPositions, kDirection, kMagnitude, kWindow, kAngles, kRounding };
  Axis axis;
  std::string words;
  Behavior behavior;  // the given behaviour with this change only
};

// Applies `change` to `to`.
Behavior Combined(Behavior to, const Change& change) {
  const Behavior& from = change.behavior;
  switch (change.axis) {
    case Change::Axis::kPairing:
      to.other_pairing = true;
      break;
    case Change::Axis::kPositions:
      to.shift = from.shift;
      break;
    case Change::Axis::kDirection:
      to.is_inverse = true;
      to.scale *= from.scale;
      break;
    case Change::Axis::kMagnitude:
      to.scale *= from.scale;
      break;
    case Change::Axis::kWindow:
      to.window = from.window;
      break;
    case Change::Axis::kAngles:
      to.float32_angles = true;
      break;
    case Change::Axis::kRounding:
      to.rounded = from.rounded;
      to.rounded_to = from.rounded_to;
      break;
  }
  return to;
}

double Rounded(double value, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<double>(static_cast<float>(value));
    case DType::kFloat16:
      return static_cast<double>(proto::FloatFromHalf(proto::HalfFromDouble(value)));
    case DType::kBFloat16:
      return static_cast<double>(proto::FloatFromBFloat16(proto::BFloat16FromDouble(value)));
    case DType::kFloat64:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      break;  // the caller does not pass these
  }
  return value;
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

// The first rotated channel.
int64_t WindowOf(const DescribeReply& reply) {
  return reply.config.rotary_offset.value_or(0);
}

// Norm of the rotated channels after the rotation, divided by that before; 0 if undefined.
double Stretch(const RotatedSample& sample, const DescribeReply& reply) {
  double before = 0;
  double after = 0;
  const auto head_dim = static_cast<size_t>(sample.head_dim);
  const auto first = static_cast<size_t>(WindowOf(reply));
  for (size_t i = 0; i < sample.before.size(); ++i) {
    if (i % head_dim < first || i % head_dim >= first + 2 * reply.inv_freq.size()) continue;
    before += sample.before[i] * sample.before[i];
    after += sample.after[i] * sample.after[i];
  }
  return before > 0 ? std::sqrt(after / before) : 0;
}

void AddMagnitudes(const RotatedSample& sample, const DescribeReply& reply,
                   std::vector<Change>& changes) {
  const double m = reply.attention_factor;
  std::vector<std::pair<double, std::string>> wanted;
  if (m != 1 && m > 0) {
    wanted = {{1, "attention factor missing"},
              {m * m, "attention factor squared"},
              {std::sqrt(m), "square root of the attention factor"},
              {1 / m, "attention factor inverted"}};
  }
  const double stretch = Stretch(sample, reply);
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
    changes.push_back({Change::Axis::kMagnitude, std::move(words), {.scale = value / m}});
  }
}

// Typical errors of rotating code, one at a time, the most frequent first.
std::vector<Change> Changes(const RotatedSample& sample, Pairing pairing,
                            const DescribeReply& reply) {
  using Axis = Change::Axis;
  std::vector<Change> changes;
  const Pairing other = pairing == Pairing::kHalf ? Pairing::kInterleaved : Pairing::kHalf;
  changes.push_back(
      {Axis::kPairing, absl::StrCat("pairing ", Name(other)), {.other_pairing = true}});
  for (auto& [shift, words] : Shifts(sample)) {
    changes.push_back({Axis::kPositions, words, {.shift = shift}});
  }
  const double m = reply.attention_factor;
  changes.push_back({Axis::kDirection,
                     m == 1 ? "inverse rotation" : "transposed rotation (backward)",
                     {.is_inverse = true}});
  if (m != 1 && m > 0) {
    changes.push_back(
        {Axis::kDirection, "inverse rotation", {.is_inverse = true, .scale = 1 / (m * m)}});
  }
  AddMagnitudes(sample, reply, changes);
  const int64_t last_window = sample.head_dim - static_cast<int64_t>(2 * reply.inv_freq.size());
  for (const int64_t window : {int64_t{0}, last_window}) {
    if (window == WindowOf(reply) || (window == 0 && last_window == 0)) continue;
    changes.push_back(
        {Axis::kWindow,
         absl::StrCat("rotated channels at the ", window == 0 ? "start" : "end", " of the head"),
         {.window = window}});
  }
  changes.push_back({Axis::kAngles, "angles in float32", {.float32_angles = true}});
  for (const auto& [narrow, name] :
       {std::pair(DType::kBFloat16, "bf16"), std::pair(DType::kFloat16, "fp16")}) {
    const DType dtype = narrow;  // clang 14 captures no structured binding
    const auto add = [&](Step step, const std::string& words) {
      changes.push_back({Axis::kRounding, words, {.rounded = step, .rounded_to = dtype}});
    };
    add(Step::kTable, absl::StrCat("cos and sin rounded to ", name));
    // A result of this type is rounded to it in any case.
    if (sample.dtype != dtype) add(Step::kResult, absl::StrCat("result rounded to ", name));
    add(Step::kThroughout, absl::StrCat("computed in ", name, " throughout"));
  }
  return changes;
}

struct Turn {
  double cos = 1;
  double sin = 0;
  double multiplier = 1;
  double slack = 0;  // allowed error of the angle
};

// Applies one hypothesis to the sample.
class Trial {
 public:
  Trial(const RotatedSample& sample, Pairing pairing, const DescribeReply& reply,
        const Behavior& behavior)
      : sample_(sample), reply_(reply), behavior_(behavior), pairs_(reply.inv_freq.size()) {
    is_half_ = (pairing == Pairing::kHalf) != behavior.other_pairing;
    turns_.resize(pairs_);
  }

  Explanation Run() {
    const auto head_dim = static_cast<size_t>(sample_.head_dim);
    const auto window = static_cast<size_t>(behavior_.window.value_or(WindowOf(reply_)));
    for (size_t token = 0; token < sample_.positions.size(); ++token) {
      SetTurns(sample_.positions[token] + behavior_.shift);
      for (size_t row = 0; row < static_cast<size_t>(sample_.rows); ++row) {
        const size_t begin = (token * static_cast<size_t>(sample_.rows) + row) * head_dim;
        for (size_t i = begin; i < begin + window; ++i) AddStill(i);
        for (size_t pair = 0; pair < pairs_; ++pair) {
          const size_t first = begin + window + (is_half_ ? pair : 2 * pair);
          AddPair(turns_[pair], first, first + (is_half_ ? pairs_ : 1));
        }
        for (size_t i = begin + window + 2 * pairs_; i < begin + head_dim; ++i) AddStill(i);
      }
    }
    result_.rms_error = std::sqrt(squares_ / static_cast<double>(sample_.after.size()));
    return result_;
  }

 private:
  void SetTurns(int64_t position) {
    const auto row = std::lower_bound(
        reply_.rows.begin(), reply_.rows.end(), std::abs(position),
        [](const Row& candidate, int64_t wanted) { return candidate.position < wanted; });
    const double sign = (position < 0) != behavior_.is_inverse ? -1 : 1;
    for (size_t i = 0; i < pairs_; ++i) {
      Turn& turn = turns_[i];
      turn.cos = row->cos[i] * behavior_.scale;
      turn.sin = row->sin[i] * behavior_.scale * sign;
      turn.multiplier = std::hypot(turn.cos, turn.sin);
      if (behavior_.float32_angles) {
        const float angle = static_cast<float>(position) * static_cast<float>(reply_.inv_freq[i]);
        turn.cos = turn.multiplier * std::cos(static_cast<double>(angle));
        turn.sin = turn.multiplier * std::sin(static_cast<double>(angle)) *
                   (behavior_.is_inverse ? -1 : 1);
        turn.slack = kAngleSlack * std::abs(static_cast<double>(angle));
      }
      if (behavior_.rounded == Step::kTable || behavior_.rounded == Step::kThroughout) {
        turn.cos = Rounded(turn.cos, behavior_.rounded_to);
        turn.sin = Rounded(turn.sin, behavior_.rounded_to);
      }
    }
  }

  void AddPair(const Turn& turn, size_t first, size_t second) {
    const double a = sample_.before[first];
    const double b = sample_.before[second];
    const double size = std::abs(a) + std::abs(b);
    const double tolerance = (kTolerance + turn.slack) * turn.multiplier * size;
    Add(first, Sum(a * turn.cos, -b * turn.sin), tolerance);
    Add(second, Sum(a * turn.sin, b * turn.cos), tolerance);
  }

  double Sum(double first, double second) const {
    if (behavior_.rounded != Step::kThroughout) return first + second;
    const DType dtype = behavior_.rounded_to;
    return Rounded(Rounded(first, dtype) + Rounded(second, dtype), dtype);
  }

  void AddStill(size_t index) {
    Add(index, sample_.before[index], kFloat32HalfUnit * std::abs(sample_.before[index]));
  }

  void Add(size_t index, double predicted, double tolerance) {
    const double got = sample_.after[index];
    const bool is_rounded = behavior_.rounded == Step::kResult;
    const bool is_on_grid = is_rounded && Rounded(got, behavior_.rounded_to) == got;
    if (is_rounded && !is_on_grid) predicted = Rounded(predicted, behavior_.rounded_to);
    const double error = std::abs(got - predicted);
    squares_ += error * error;
    result_.max_error = std::max(result_.max_error, error);
    if (error <= result_.ratio * tolerance) return;  // cannot exceed the largest ratio
    tolerance += HalfUnit(got, sample_.dtype) + kTiny;
    // A value that the rounded type can represent may be off by half a unit of that type.
    if (is_on_grid) tolerance += HalfUnit(got, behavior_.rounded_to);
    result_.ratio = std::max(result_.ratio, error / tolerance);
  }

  const RotatedSample& sample_;
  const DescribeReply& reply_;
  const Behavior behavior_;
  const size_t pairs_;
  bool is_half_ = true;
  std::vector<Turn> turns_;
  double squares_ = 0;
  Explanation result_;
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

std::vector<int64_t> PositionsToDescribe(const RotatedSample& sample) {
  std::vector<int64_t> positions = sample.positions;
  for (const auto& [shift, words] : Shifts(sample)) {
    for (const int64_t position : sample.positions) positions.push_back(std::abs(position + shift));
  }
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

std::vector<Explanation> Explain(const RotatedSample& sample, Pairing pairing,
                                 const std::vector<Variant>& variants) {
  std::vector<Explanation> explanations;
  const auto try_one = [&](const Variant& variant, const Behavior& behavior,
                           std::vector<std::string> changes) {
    changes.insert(changes.begin(), variant.changes.begin(), variant.changes.end());
    explanations.push_back(Trial(sample, pairing, variant.reply, behavior).Run());
    explanations.back().changes = std::move(changes);
  };
  for (const Variant& variant : variants) {
    const std::vector<Change> changes = Changes(sample, pairing, variant.reply);
    try_one(variant, {}, {});
    if (variant.changes.size() >= kChangesMax) continue;
    for (size_t i = 0; i < changes.size(); ++i) {
      try_one(variant, changes[i].behavior, {changes[i].words});
      if (variant.changes.size() + 1 >= kChangesMax) continue;
      for (size_t j = i + 1; j < changes.size(); ++j) {
        if (changes[j].axis == changes[i].axis) continue;
        try_one(variant, Combined(changes[i].behavior, changes[j]),
                {changes[i].words, changes[j].words});
      }
    }
  }
  std::stable_sort(explanations.begin(), explanations.end(), IsBetter);
  DropNeedless(explanations);
  return explanations;
}

}  // namespace rope::client
