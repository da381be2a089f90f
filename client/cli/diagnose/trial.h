// Applies one hypothesis to a sample and says how well it fits.
//
// Threading:  Pure functions; one thread for a RopeNumbers.
// Precision:  Arithmetic in double on the kernels' rows. The tolerance of a channel of the pair
//             (a, b) is 1.5e-7 * multiplier * (|a| + |b|), plus half a unit of a 16-bit type; with
//             float32 angles plus two units of the angle; with repeated rotations as much for each
//             of them. For a channel that does not rotate it is half a unit of its type.
#ifndef ROPE_CLIENT_CLI_DIAGNOSE_TRIAL_H_
#define ROPE_CLIENT_CLI_DIAGNOSE_TRIAL_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "client/cli/diagnose/channel_order.h"
#include "client/cli/diagnose/diagnose_input.h"
#include "client/cli/diagnose/rope_numbers.h"

namespace rope::client {

inline constexpr double kTrialTolerance = 1.5e-7;

enum class Step { kNone, kTable, kResult, kThroughout };  // the step rounded to a 16-bit type

// What a program does differently from the rotation, apart from its config and channel order.
struct Behavior {
  int64_t shift = 0;        // added to every position
  bool is_inverse = false;  // true: sin changes its sign
  double scale = 1;         // of each rotation, in addition to the attention factor
  int times = 1;            // rotations, one after the other, >= 1
  bool float32_angles = false;
  Step rounded = Step::kNone;
  DType rounded_to = DType::kFloat32;
};

// What happened to each vector: [tokens, rows], or empty lists.
struct CellPlan {
  std::vector<double> positions;  // instead of the sample's
  std::vector<bool> still;        // true: not rotated
};

// How well one hypothesis fits.
struct Explanation {
  std::vector<std::string> changes;  // in words, at most two; empty: the given config
  std::string positions;             // in short form; empty: no solved ones
  double max_error = 0;
  double rms_error = 0;  // infinity: not measured to the end
  double ratio = 0;      // largest error / tolerance
  bool explains() const { return ratio <= 1; }
};

struct Hypothesis {
  const RopeNumbers* numbers = nullptr;
  const ChannelOrder* order = nullptr;
  Behavior behavior = {};
  CellPlan plan = {};
};

// Compares the sample with what the hypothesis computes. Stops once the ratio exceeds `ratio_max`;
// the reply then has the largest error and ratio of the elements before. REQUIRES: `order` and
// `numbers` have the same number of pairs.
Explanation Try(const RotatedSample& sample, const Hypothesis& hypothesis,
                double ratio_max = std::numeric_limits<double>::infinity());

// The nearest number of the type, which has 16 or 32 bits.
double RoundedTo(double value, DType dtype);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_DIAGNOSE_TRIAL_H_
