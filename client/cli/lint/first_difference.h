// FindFirstDifference: the first position at which two rotations differ by more than an error.
//
// It does not walk all positions. One column has the rows m e^(i w p) and n e^(i v p), whose
// distance is D(p)^2 = (m - n)^2 + 4 m n sin^2((w - v) p / 2). cos and sin differ by at most D, and
// one of them by at least D / sqrt(2). The search starts where D first reaches the error, and steps
// by what the derivatives of cos and sin allow, until one of the two exceeds the error.
//
// Threading:  Pure function; any thread.
// Limits:     At most 2^20 evaluations, about a second. Published configs need a few hundred.
#ifndef ROPE_CLIENT_CLI_LINT_FIRST_DIFFERENCE_H_
#define ROPE_CLIENT_CLI_LINT_FIRST_DIFFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace rope::client {

// The rows of one rotation, without xPos.
struct Turns {
  std::vector<long double> inv_freq;  // radians per position, >= 0
  double factor = 1;                  // on cos and sin, >= 0
};

struct FirstDifference {
  std::optional<int64_t> position = {};  // unset: none was found
  size_t column = 0;
  // False: the evaluations were used up. The first position is this one or an earlier one; without
  // a position, there may be one.
  bool exact = true;
};

// The first of the positions 0 to `end` - 1 at which cos or sin of a column that both have differ
// by more than `error`. REQUIRES: error > 0; 0 <= end <= 2^30.
FirstDifference FindFirstDifference(const Turns& a, const Turns& b, double error, int64_t end);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LINT_FIRST_DIFFERENCE_H_
