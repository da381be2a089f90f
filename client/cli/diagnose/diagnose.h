// Which deviation from a config explains a rotated tensor. Each hypothesis is a config that the
// server described (variant) and a behaviour of the code that rotated: pairing, positions,
// direction and so on. Every one is applied to the sample and compared with what came out.
//
// Threading:  Pure functions; any thread.
// Precision:  Arithmetic in double on the server's rows. Tolerance of a channel of the pair (a, b):
//             1.5e-7 * multiplier * (|a| + |b|), and half a unit of a 16-bit type; with float32
//             angles two units of the angle more; a channel that does not turn half a unit of its
//             type.
#ifndef ROPE_CLIENT_CLI_DIAGNOSE_DIAGNOSE_H_
#define ROPE_CLIENT_CLI_DIAGNOSE_DIAGNOSE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/diagnose/diagnose_input.h"
#include "rope/describe.h"

namespace rope::client {

// A config in place of the one that is believed.
struct Variant {
  std::vector<std::string> changes;  // in words, at most two; empty: as configured
  DescribeReply reply;
};

// How well one hypothesis does.
struct Explanation {
  std::vector<std::string> changes;  // in words, at most two; empty: as configured
  double max_error = 0;
  double rms_error = 0;
  double ratio = 0;  // largest error / tolerance
  bool explains() const { return ratio <= 1; }
};

// Positions whose rows the variants must have: ascending, none twice.
std::vector<int64_t> PositionsToDescribe(const RotatedSample& sample);

// Hypotheses of at most two changes, best first: those that explain the sample before the others,
// among them those with fewer changes; the others by the error they leave. What only adds a change
// to one that explains is left out. REQUIRES: `variants` begins with the config as it is; each
// reply rotates, has a row for each of PositionsToDescribe and fits in the head.
std::vector<Explanation> Explain(const RotatedSample& sample, Pairing pairing,
                                 const std::vector<Variant>& variants);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_DIAGNOSE_DIAGNOSE_H_
