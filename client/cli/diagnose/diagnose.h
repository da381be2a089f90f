// Finds the deviation from a config that explains a rotated tensor.
//
// A hypothesis is a config described by the server (variant) with a behaviour of the rotating code:
// pairing, positions, direction and so on. Each hypothesis is applied to the sample's input and
// compared with its output.
//
// Threading:  Pure functions; any thread.
// Precision:  Arithmetic in double on the server's rows. The tolerance of a channel of the pair
//             (a, b) is 1.5e-7 * multiplier * (|a| + |b|), plus half a unit of a 16-bit type; with
//             float32 angles plus two units of the angle. For a channel that does not rotate it is
//             half a unit of its type.
#ifndef ROPE_CLIENT_CLI_DIAGNOSE_DIAGNOSE_H_
#define ROPE_CLIENT_CLI_DIAGNOSE_DIAGNOSE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/diagnose/diagnose_input.h"
#include "rope/describe.h"

namespace rope::client {

// A config to try instead of the given one.
struct Variant {
  std::vector<std::string> changes;  // in words, at most two; empty: the given config
  DescribeReply reply;
};

// How well one hypothesis fits.
struct Explanation {
  std::vector<std::string> changes;  // in words, at most two; empty: the given config
  double max_error = 0;
  double rms_error = 0;
  double ratio = 0;  // largest error / tolerance
  bool explains() const { return ratio <= 1; }
};

// Positions for which the variants must have rows: ascending, without duplicates.
std::vector<int64_t> PositionsToDescribe(const RotatedSample& sample);

// Hypotheses with at most two changes, best first: those that explain the sample, ordered by the
// number of changes; then the others, ordered by error. A hypothesis that only adds a change to one
// that explains the sample is omitted. REQUIRES: `variants` begins with the given config; each
// reply rotates, has a row for each of PositionsToDescribe, and fits into the head.
std::vector<Explanation> Explain(const RotatedSample& sample, Pairing pairing,
                                 const std::vector<Variant>& variants);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_DIAGNOSE_DIAGNOSE_H_
