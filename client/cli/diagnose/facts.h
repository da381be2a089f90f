// Facts about a rotated tensor that hold whatever rotated it.
//
// Threading:  Pure function; any thread.
#ifndef ROPE_CLIENT_CLI_DIAGNOSE_FACTS_H_
#define ROPE_CLIENT_CLI_DIAGNOSE_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/diagnose/diagnose_input.h"
#include "kernels/dtype/pairing.h"

namespace rope::client {

// A sentence each, without a full stop: whether norms are kept, of heads and of the pairs of an
// order of channels; which channels, tokens and heads changed. `pairs` pairs turn, from channel
// `window` on.
std::vector<std::string> FactsOf(const RotatedSample& sample, kernels::Pairing pairing,
                                 int64_t window, size_t pairs);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_DIAGNOSE_FACTS_H_
