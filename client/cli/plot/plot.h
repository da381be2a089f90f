// Plots a config as a page of three panels (SVG): inverse frequencies, wavelengths with the context
// length, and the decay of the product of q and k with their distance.
//
// Ids in the document: inv-freq-original, inv-freq-scaled, inv-freq-result, wavelength-original,
// wavelength-result, decay-original, decay-result, decay-envelope (polylines); lengths, ramp-edges
// and ramp-indices (groups, with their numbers in data attributes).
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_CLIENT_CLI_PLOT_PLOT_H_
#define ROPE_CLIENT_CLI_PLOT_PLOT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "rope/describe.h"

namespace rope::client {

// REQUIRES: reply.rotates.
std::string PlotSvg(const DescribeReply& reply);

// The lengths of a model, in positions: before scaling (if the config has it) and after.
struct ContextLengths {
  std::vector<int64_t> values;  // ascending, one or two; 8192 if none is known
  bool known = true;            // true: from the config or the request
};
ContextLengths LengthsOf(const DescribeReply& reply);

// The product of q = k = ones at a distance, divided by that at distance 0. The envelope is the
// largest value for any q and k that rotate by the same angle in every pair.
struct Decay {
  double product = 0;
  double envelope = 0;
};
// REQUIRES: inv_freq is not empty.
Decay DecayAt(absl::Span<const double> inv_freq, double distance);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_PLOT_PLOT_H_
