#include "client/cli/diagnose/channel_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rope::client {
namespace {

using kernels::Pairing;

constexpr size_t kChangesMax = 2;

// A reordering of a head: element j of the result is element source[j] of the head.
struct Reordering {
  std::string words;  // after "input channels " or "output channels "; empty: none
  std::vector<size_t> source;
};

std::vector<size_t> InOrder(size_t head_dim) {
  std::vector<size_t> source(head_dim);
  std::iota(source.begin(), source.end(), size_t{0});
  return source;
}

std::vector<size_t> DeInterleaved(size_t window, size_t pairs, size_t head_dim) {
  std::vector<size_t> source = InOrder(head_dim);
  for (size_t i = 0; i < pairs; ++i) {
    source[window + i] = window + 2 * i;
    source[window + pairs + i] = window + 2 * i + 1;
  }
  return source;
}

std::vector<size_t> Inverse(const std::vector<size_t>& source) {
  std::vector<size_t> inverse(source.size());
  for (size_t j = 0; j < source.size(); ++j) inverse[source[j]] = j;
  return inverse;
}

std::vector<Reordering> Reorderings(size_t window, size_t pairs, size_t head_dim) {
  const std::vector<size_t> of_window = DeInterleaved(window, pairs, head_dim);
  std::vector<Reordering> all = {
      {"", InOrder(head_dim)}, {"de-interleaved", of_window}, {"interleaved", Inverse(of_window)}};
  if (2 * pairs == head_dim || head_dim % 2 != 0) return all;
  const std::vector<size_t> of_head = DeInterleaved(0, head_dim / 2, head_dim);
  all.push_back({"of the whole head de-interleaved", of_head});
  all.push_back({"of the whole head interleaved", Inverse(of_head)});
  return all;
}

// `plain` on a reordered input, with a reordered output.
ChannelOrder Reordered(const ChannelOrder& plain, const Reordering& input,
                       const Reordering& output) {
  ChannelOrder order = plain;
  const std::vector<size_t> goes_to = Inverse(output.source);
  for (ChannelPair& pair : order.pairs) {
    pair = {.before_a = input.source[pair.before_a],
            .before_b = input.source[pair.before_b],
            .after_a = goes_to[pair.after_a],
            .after_b = goes_to[pair.after_b]};
  }
  for (StillChannel& still : order.still) {
    still = {.before = input.source[still.before], .after = goes_to[still.after]};
  }
  std::sort(order.still.begin(), order.still.end(),
            [](const StillChannel& a, const StillChannel& b) { return a.after < b.after; });
  return order;
}

}  // namespace

ChannelOrder PlainOrder(Pairing pairing, int64_t window, size_t pairs, int64_t head_dim) {
  ChannelOrder order;
  const auto first = static_cast<size_t>(window);
  for (size_t i = 0; i < pairs; ++i) {
    const bool is_half = pairing == Pairing::kHalf;
    const size_t a = first + (is_half ? i : 2 * i);
    const size_t b = a + (is_half ? pairs : 1);
    order.pairs.push_back({.before_a = a, .before_b = b, .after_a = a, .after_b = b});
  }
  for (size_t i = 0; i < static_cast<size_t>(head_dim); ++i) {
    if (i < first || i >= first + 2 * pairs) order.still.push_back({.before = i, .after = i});
  }
  return order;
}

std::vector<ChannelOrder> ChannelOrders(Pairing pairing, int64_t window, size_t pairs,
                                        int64_t head_dim) {
  const Pairing other = pairing == Pairing::kHalf ? Pairing::kInterleaved : Pairing::kHalf;
  const auto reorderings =
      Reorderings(static_cast<size_t>(window), pairs, static_cast<size_t>(head_dim));
  std::vector<ChannelOrder> all;
  for (const Pairing candidate : {pairing, other}) {
    const ChannelOrder plain = PlainOrder(candidate, window, pairs, head_dim);
    for (const Reordering& input : reorderings) {
      for (const Reordering& output : reorderings) {
        ChannelOrder order = Reordered(plain, input, output);
        if (candidate == other) {
          order.changes.push_back(absl::StrCat("pairing ", std::string(Name(other))));
        }
        if (!input.words.empty()) {
          order.changes.push_back(absl::StrCat("input channels ", input.words));
        }
        if (!output.words.empty()) {
          order.changes.push_back(absl::StrCat("output channels ", output.words));
        }
        if (order.changes.size() <= kChangesMax) all.push_back(std::move(order));
      }
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const ChannelOrder& a, const ChannelOrder& b) {
    return a.changes.size() < b.changes.size();
  });
  std::vector<ChannelOrder> different;
  for (ChannelOrder& order : all) {
    const bool is_known =
        std::any_of(different.begin(), different.end(), [&order](const ChannelOrder& known) {
          return known.pairs == order.pairs && known.still == order.still;
        });
    if (!is_known) different.push_back(std::move(order));
  }
  return different;
}

}  // namespace rope::client
