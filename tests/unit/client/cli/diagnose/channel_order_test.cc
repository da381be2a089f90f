#include "client/cli/diagnose/channel_order.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/support/matchers.h"

namespace rope::client {
namespace {

using kernels::Pairing;

const ChannelOrder* Find(const std::vector<ChannelOrder>& orders,
                         const std::vector<std::string>& changes) {
  for (const ChannelOrder& order : orders) {
    if (order.changes == changes) return &order;
  }
  return nullptr;
}

TEST(ChannelOrderTest, PlainOrdersAreThePairings) {
  const ChannelOrder half = PlainOrder(Pairing::kHalf, 2, 2, 8);
  EXPECT_EQ(half.pairs[1], (ChannelPair{.before_a = 3, .before_b = 5, .after_a = 3, .after_b = 5}));
  EXPECT_EQ(half.still.size(), 4u);
  const ChannelOrder interleaved = PlainOrder(Pairing::kInterleaved, 2, 2, 8);
  EXPECT_EQ(interleaved.pairs[1],
            (ChannelPair{.before_a = 4, .before_b = 5, .after_a = 4, .after_b = 5}));
}

// As DeepSeek's code does: pairs are interleaved before the rotation and halves after it.
TEST(ChannelOrderTest, DeInterleavedOutputMovesThePairs) {
  const auto orders = ChannelOrders(Pairing::kInterleaved, 0, 2, 4);
  EXPECT_TRUE(orders.front().changes.empty());
  const ChannelOrder* order = Find(orders, {"output channels de-interleaved"});
  ASSERT_NE(order, nullptr);
  EXPECT_THAT(order->pairs,
              ElementsAre(ChannelPair{.before_a = 0, .before_b = 1, .after_a = 0, .after_b = 2},
                          ChannelPair{.before_a = 2, .before_b = 3, .after_a = 1, .after_b = 3}));
}

TEST(ChannelOrderTest, EveryOrderIsThereOnce) {
  for (const size_t pairs : {4, 8}) {
    std::set<std::string> seen;
    for (const ChannelOrder& order : ChannelOrders(Pairing::kHalf, 0, pairs, 16)) {
      EXPECT_LE(order.changes.size(), 2u);
      std::string key;
      for (const ChannelPair& pair : order.pairs) {
        for (const size_t channel : {pair.before_a, pair.before_b, pair.after_a, pair.after_b}) {
          key += std::to_string(channel) + " ";
        }
      }
      for (const StillChannel& still : order.still) {
        key += std::to_string(still.before) + ">" + std::to_string(still.after) + " ";
      }
      EXPECT_TRUE(seen.insert(key).second);
    }
  }
}

}  // namespace
}  // namespace rope::client
