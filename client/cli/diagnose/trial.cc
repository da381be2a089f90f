#include "client/cli/diagnose/trial.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "client/cli/golden.h"
#include "kernels/dtype/element.h"

namespace rope::client {
namespace {

constexpr double kFloat32HalfUnit = 0x1p-24;
constexpr double kAngleSlack = 0x1p-22;  // two units in the last place of a float32 angle, relative
constexpr double kTiny = 1e-37;          // gives a value of 0 a tolerance

struct Turn {
  double cos = 1;
  double sin = 0;
  double multiplier = 1;
  double slack = 0;  // allowed error of the angle
};

class Trial {
 public:
  Trial(const RotatedSample& sample, const Hypothesis& hypothesis, double ratio_max)
      : sample_(sample),
        numbers_(*hypothesis.numbers),
        order_(*hypothesis.order),
        behavior_(hypothesis.behavior),
        plan_(hypothesis.plan),
        ratio_max_(ratio_max) {
    turns_.resize(order_.pairs.size());
  }

  Explanation Run() {
    const auto rows = static_cast<size_t>(sample_.rows);
    const auto head_dim = static_cast<size_t>(sample_.head_dim);
    for (size_t cell = 0; cell < sample_.positions.size() * rows; ++cell) {
      before_ = &sample_.before[cell * head_dim];
      after_ = &sample_.after[cell * head_dim];
      if (!plan_.still.empty() && plan_.still[cell]) {
        for (size_t i = 0; i < head_dim; ++i) AddStill(i, i);
      } else {
        SetTurns(plan_.positions.empty()
                     ? static_cast<double>(sample_.positions[cell / rows] + behavior_.shift)
                     : plan_.positions[cell]);
        for (size_t i = 0; i < turns_.size(); ++i) AddPair(turns_[i], order_.pairs[i]);
        for (const StillChannel& still : order_.still) AddStill(still.before, still.after);
      }
      if (result_.ratio > ratio_max_) break;
    }
    const bool is_whole = result_.ratio <= ratio_max_;
    result_.rms_error = is_whole ? std::sqrt(squares_ / static_cast<double>(sample_.after.size()))
                                 : std::numeric_limits<double>::infinity();
    return result_;
  }

 private:
  void SetTurns(double position) {
    if (has_turns_ && position == position_) return;
    has_turns_ = true;
    position_ = position;
    const auto& row = numbers_.RowAt(position);
    const double sign = behavior_.is_inverse ? -1 : 1;
    for (size_t i = 0; i < turns_.size(); ++i) {
      Turn& turn = turns_[i];
      turn.cos = row[i].cos * behavior_.scale;
      turn.sin = row[i].sin * behavior_.scale * sign;
      turn.multiplier = std::hypot(turn.cos, turn.sin);
      if (behavior_.float32_angles) {
        const auto angle = static_cast<double>(static_cast<float>(position) *
                                               static_cast<float>(numbers_.inv_freq()[i]));
        turn.cos = turn.multiplier * std::cos(angle);
        turn.sin = turn.multiplier * std::sin(angle) * sign;
        turn.slack = kAngleSlack * std::abs(angle);
      }
      if (behavior_.rounded == Step::kTable || behavior_.rounded == Step::kThroughout) {
        turn.cos = RoundedTo(turn.cos, behavior_.rounded_to);
        turn.sin = RoundedTo(turn.sin, behavior_.rounded_to);
      }
    }
  }

  void AddPair(const Turn& turn, const ChannelPair& pair) {
    double a = before_[pair.before_a];
    double b = before_[pair.before_b];
    double earlier = 0;  // norm of what the rotations before the last one may have changed
    for (int i = 1; i < behavior_.times; ++i) {
      const double size = std::abs(a) + std::abs(b);
      const double turned = a * turn.cos - b * turn.sin;
      b = a * turn.sin + b * turn.cos;
      a = turned;
      const double largest = std::max(std::abs(a), std::abs(b));
      const double unit = std::max(kFloat32HalfUnit * largest, HalfUnit(largest, sample_.dtype));
      earlier = earlier * turn.multiplier +
                std::numbers::sqrt2 * (kTrialTolerance * turn.multiplier * size + unit);
    }
    const double size = std::abs(a) + std::abs(b);
    const double tolerance = ((kTrialTolerance + turn.slack) * size + earlier) * turn.multiplier;
    Add(pair.after_a, Sum(a * turn.cos, -b * turn.sin), tolerance);
    Add(pair.after_b, Sum(a * turn.sin, b * turn.cos), tolerance);
  }

  double Sum(double first, double second) const {
    if (behavior_.rounded != Step::kThroughout) return first + second;
    const DType dtype = behavior_.rounded_to;
    return RoundedTo(RoundedTo(first, dtype) + RoundedTo(second, dtype), dtype);
  }

  void AddStill(size_t from, size_t to) {
    Add(to, before_[from], kFloat32HalfUnit * std::abs(before_[from]));
  }

  void Add(size_t channel, double predicted, double tolerance) {
    const double got = after_[channel];
    const bool is_rounded = behavior_.rounded == Step::kResult;
    const bool is_on_grid = is_rounded && RoundedTo(got, behavior_.rounded_to) == got;
    if (is_rounded && !is_on_grid) predicted = RoundedTo(predicted, behavior_.rounded_to);
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
  const RopeNumbers& numbers_;
  const ChannelOrder& order_;
  const Behavior behavior_;
  const CellPlan& plan_;
  const double ratio_max_;
  std::vector<Turn> turns_;  // at position_
  bool has_turns_ = false;
  double position_ = 0;
  const double* before_ = nullptr;  // the head that is compared
  const double* after_ = nullptr;
  double squares_ = 0;
  Explanation result_;
};

}  // namespace

Explanation Try(const RotatedSample& sample, const Hypothesis& hypothesis, double ratio_max) {
  return Trial(sample, hypothesis, ratio_max).Run();
}

double RoundedTo(double value, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<double>(static_cast<float>(value));
    case DType::kFloat16:
      return static_cast<double>(kernels::FromFloat16(kernels::ToFloat16(value)));
    case DType::kBFloat16:
      return static_cast<double>(kernels::FromBFloat16(kernels::ToBFloat16(value)));
    case DType::kFloat64:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      break;  // callers pass none of these
  }
  return value;
}

}  // namespace rope::client
