// Explains a sample vector by vector: which were rotated, and to which positions.
//
// Threading:  Pure functions; one thread for a RopeNumbers.
#ifndef ROPE_CLIENT_CLI_DIAGNOSE_EXPLAIN_CELLS_H_
#define ROPE_CLIENT_CLI_DIAGNOSE_EXPLAIN_CELLS_H_

#include <string>
#include <vector>

#include "client/cli/diagnose/cells.h"
#include "client/cli/diagnose/channel_order.h"
#include "client/cli/diagnose/diagnose_input.h"
#include "client/cli/diagnose/rope_numbers.h"
#include "client/cli/diagnose/trial.h"

namespace rope::client {

inline constexpr size_t kChangesMax = 2;  // of one explanation

// Explanations of the sample with these frequencies and this order of channels, of at most
// kChangesMax changes together with `changes`, which are those of the frequencies. Each explains
// the sample; those with fewer changes come first, then the more plausible ones. They concern
// positions (rules and single ones), heads and tokens that were not rotated, swapped axes, the
// direction and the multiplier. With `more` (see CellsOf) positions are solved although the program
// computed in a 16-bit type, which is then one of the changes. `cells` are those of the order.
std::vector<Explanation> ExplainCells(const RotatedSample& sample, const RopeNumbers& numbers,
                                      const ChannelOrder& order, Cells cells,
                                      const std::vector<std::string>& changes);

// "rotated 2 times" and so on, up to 8, with an order of channels that it has before and after.
std::vector<Explanation> ExplainRepeated(const RotatedSample& sample, const RopeNumbers& numbers,
                                         const ChannelOrder& order);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_DIAGNOSE_EXPLAIN_CELLS_H_
