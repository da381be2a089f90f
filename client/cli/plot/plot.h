// What a config does, as a page of three panels (SVG): inverse frequencies, wavelengths beside the
// context length, and how the product of q and k decays with their distance.
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

// The lengths of a model, in positions: before scaling, if it says so, and after.
struct ContextLengths {
  std::vector<int64_t> values;  // ascending, one or two; one that nothing says is 8192
  bool known = true;            // the config or the request says them
};
ContextLengths LengthsOf(const DescribeReply& reply);

// The product of q = k = ones at a distance, over that at distance 0. The envelope is the largest
// that q and k with the same turn in every pair could give.
struct Decay {
  double product = 0;
  double envelope = 0;
};
// REQUIRES: inv_freq is not empty.
Decay DecayAt(absl::Span<const double> inv_freq, double distance);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_PLOT_PLOT_H_
