// ChannelOrder: which channels of a head turn together, where they come from and where they go.
//
// Half and interleaved code order the channels of a head differently. De-interleaving puts the
// even channels before the odd ones (0, 2, 4, ..., 1, 3, 5, ...); interleaving is the way back.
// A program may do so before it rotates, or leave its result that way.
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_CLIENT_CLI_DIAGNOSE_CHANNEL_ORDER_H_
#define ROPE_CLIENT_CLI_DIAGNOSE_CHANNEL_ORDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/dtype/pairing.h"

namespace rope::client {

// The channels of one pair in the tensor before the rotation and in the one after it.
struct ChannelPair {
  size_t before_a = 0;
  size_t before_b = 0;
  size_t after_a = 0;
  size_t after_b = 0;
  bool operator==(const ChannelPair&) const = default;
};

// A channel that does not turn.
struct StillChannel {
  size_t before = 0;
  size_t after = 0;
  bool operator==(const StillChannel&) const = default;
};

struct ChannelOrder {
  std::vector<std::string> changes;  // in words, at most two; empty: the given pairing alone
  std::vector<ChannelPair> pairs;    // by frequency
  std::vector<StillChannel> still;   // the other channels of a head
};

// The 2 * `pairs` channels from `window` on turn in `pairing`. REQUIRES of all functions here:
// window + 2 * pairs <= head_dim.
ChannelOrder PlainOrder(kernels::Pairing pairing, int64_t window, size_t pairs, int64_t head_dim);

// Every order of at most two changes (pairing, order of the input, order of the output), those
// with fewer changes first. No two are equal; PlainOrder(pairing, ...) is the first.
std::vector<ChannelOrder> ChannelOrders(kernels::Pairing pairing, int64_t window, size_t pairs,
                                        int64_t head_dim);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_DIAGNOSE_CHANNEL_ORDER_H_
