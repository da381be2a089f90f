#include "client/cli/diagnose/position_solver.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace rope::client {
namespace {

constexpr double kPi = std::numbers::pi;
constexpr double kTwoPi = 2 * kPi;
constexpr double kAngleSlack = 0x1p-22;  // two units in the last place of a float32 angle, relative
constexpr double kSmallest = 1e-10;      // of a slack, for the arithmetic here

double LargestIn(const Interval& interval) {
  return std::max(std::abs(interval.low), std::abs(interval.high));
}

// Adds the parts of `from` at which a pair of this angle is.
void AddParts(const PairAngle& pair, const Interval& from, Intervals& parts) {
  const double frequency = pair.frequency;
  const double slack = pair.slack + kSmallest + kAngleSlack * LargestIn(from) * frequency;
  if (slack >= kPi) {
    parts.push_back(from);
    return;
  }
  const double first = std::ceil((from.low * frequency - pair.angle - slack) / kTwoPi);
  const double last = std::floor((from.high * frequency - pair.angle + slack) / kTwoPi);
  for (double turn = first; turn <= last && parts.size() <= kIntervalsMax; ++turn) {
    const double middle = pair.angle + turn * kTwoPi;
    const Interval part = {.low = std::max(from.low, (middle - slack) / frequency),
                           .high = std::min(from.high, (middle + slack) / frequency)};
    if (part.low <= part.high) parts.push_back(part);
  }
}

// `range` with at most kIntervalsMax / 2 turns of the slowest pair that says anything.
Intervals Bounded(const Intervals& range, const std::vector<PairAngle>& angles) {
  const auto slowest = std::find_if(angles.begin(), angles.end(), [](const PairAngle& pair) {
    return pair.frequency > 0 && pair.slack < kPi;
  });
  if (slowest == angles.end()) return range;
  const double most = kPi * static_cast<double>(kIntervalsMax) / 2 / slowest->frequency;
  return Common(range, {{-most, most}});
}

}  // namespace

Intervals SolvePosition(const std::vector<PairAngle>& angles, const Intervals& range) {
  Intervals intervals = Bounded(range, angles);
  for (const PairAngle& pair : angles) {
    if (pair.slack >= kPi) continue;
    if (pair.frequency == 0) {
      if (std::abs(pair.angle) > pair.slack + kSmallest) return {};
      continue;
    }
    Intervals parts;
    for (const Interval& interval : intervals) AddParts(pair, interval, parts);
    if (parts.size() > kIntervalsMax) return {};
    intervals = std::move(parts);
  }
  return intervals;
}

Intervals Common(const Intervals& a, const Intervals& b) {
  Intervals common;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Interval part = {.low = std::max(a[i].low, b[j].low),
                           .high = std::min(a[i].high, b[j].high)};
    if (part.low <= part.high) common.push_back(part);
    (a[i].high < b[j].high ? i : j)++;
  }
  return common;
}

bool Contains(const Intervals& intervals, double position) {
  return std::any_of(intervals.begin(), intervals.end(), [position](const Interval& interval) {
    return interval.low <= position && position <= interval.high;
  });
}

std::optional<int64_t> IntegerIn(const Intervals& intervals) {
  std::optional<int64_t> best;
  for (const Interval& interval : intervals) {
    const double middle = std::round((interval.low + interval.high) / 2);
    if (middle < interval.low || middle > interval.high) continue;
    const auto position = static_cast<int64_t>(middle);
    if (!best.has_value() || std::abs(position) < std::abs(*best)) best = position;
  }
  return best;
}

}  // namespace rope::client
