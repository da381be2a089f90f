// Solves the position of a rotated vector from the angles by which its pairs turned.
//
// Threading:  Pure functions; any thread.
// Precision:  Bounds, not estimates: each angle comes with the error that it may have, and a
//             position that is compatible with every angle is in one of the returned intervals.
// Limits:     kIntervalsMax intervals at any step; the range of positions shrinks to keep them.
#ifndef ROPE_CLIENT_CLI_DIAGNOSE_POSITION_SOLVER_H_
#define ROPE_CLIENT_CLI_DIAGNOSE_POSITION_SOLVER_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace rope::client {

inline constexpr size_t kIntervalsMax = 16384;

// The angle of one pair, after - before.
struct PairAngle {
  double angle = 0;      // radians, -pi to pi
  double slack = 0;      // the largest error of `angle`; pi and more: nothing is known
  double frequency = 0;  // radians per position, >= 0
};

// Positions from `low` to `high`, both included. They need not be integers.
struct Interval {
  double low = 0;
  double high = 0;
};
using Intervals = std::vector<Interval>;  // ascending, without overlaps

// The positions in `range` at which every pair has its angle; empty: there is none, or there are
// more intervals than kIntervalsMax; `range`: nothing is known. Low frequencies decide the coarse
// position, higher ones refine it. `angles` are sorted by frequency, ascending. An angle
// may be off by the slack plus two units in the last place of a float32 angle, because many
// programs compute angles in float32.
Intervals SolvePosition(const std::vector<PairAngle>& angles, const Intervals& range);

// The positions that are in both.
Intervals Common(const Intervals& a, const Intervals& b);

bool Contains(const Intervals& intervals, double position);

// The integer nearest to the middle of the interval with the smallest one; unset: there is none.
std::optional<int64_t> IntegerIn(const Intervals& intervals);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_DIAGNOSE_POSITION_SOLVER_H_
