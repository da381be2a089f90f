// Layout: the memory layout of a packed tensor, as the letters of rope.v1.Tensor.layout state it.
//
// For any order of the axes, the rows of D channels lie in memory as [pre][heads][post]: `pre` is
// the product of the token axes before H, `post` the product of those after H. Tokens are numbered
// in memory order, without H. Token t has pre index t / post and post index t % post.
//
// Threading:  Values.
// Errors:     INVALID_ARGUMENT, with the field's path.
#ifndef ROPE_SERVER_REQUEST_LAYOUT_H_
#define ROPE_SERVER_REQUEST_LAYOUT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace rope::server {

inline constexpr size_t kTokenAxesMax = 3;  // L, B and S

struct TokenAxis {
  char letter = 0;  // one of B S T L
  int64_t length = 0;
  bool operator==(const TokenAxis&) const = default;
};

struct Layout {
  std::string letters;                                       // as given
  absl::InlinedVector<TokenAxis, kTokenAxesMax> token_axes;  // outermost first
  int64_t pre = 1;
  int64_t heads = 1;
  int64_t post = 1;
  int64_t head_dim = 0;

  int64_t tokens() const { return pre * post; }
  // The length of an axis of any letter, or 1 if the layout does not have the axis.
  int64_t Length(char letter) const;
  bool Has(char letter) const { return letters.find(letter) != std::string::npos; }
  // The tokens of a run along the last token axis, which are evenly spaced in every layout.
  int64_t run() const { return token_axes.empty() ? 1 : token_axes.back().length; }
};

// The strides of a tensor that is not packed, in elements, all >= 0.
struct LayoutStrides {
  std::vector<int64_t> token_axes;  // in the order of Layout::token_axes
  int64_t head = 0;
  int64_t channel = 0;
  int64_t extent = 0;  // from the first element to the end of the last; 0 for an empty tensor
  bool operator==(const LayoutStrides&) const = default;
};

// The offset of the token's first element in a tensor with these strides, in elements.
int64_t OffsetOf(int64_t token, const Layout& layout, const LayoutStrides& strides);

// The index of the row of D channels of a token and head in a packed tensor.
inline int64_t RowOf(int64_t token, int64_t head, const Layout& layout) {
  return (token / layout.post * layout.heads + head) * layout.post + token % layout.post;
}

// Parses letters and shape together. On success, the product of all lengths and `element_bytes`
// fits 63 bits. `path` names the tensor in errors, for example "tensors[0]".
absl::StatusOr<Layout> ParseLayout(absl::string_view letters, absl::Span<const int64_t> shape,
                                   int64_t element_bytes, absl::string_view path);

// Parses the strides of a tensor of `layout`, one for each letter. INVALID_ARGUMENT: another number
// of strides, a negative stride, an extent that does not fit 63 bits. `field` names the strides.
absl::StatusOr<LayoutStrides> ParseStrides(absl::string_view letters, const Layout& layout,
                                           absl::Span<const int64_t> strides, int64_t element_bytes,
                                           absl::string_view field);

// The strides of a packed tensor that has the axes of `layout` in the order of `letters`.
// INVALID_ARGUMENT: `letters` are not a permutation of the layout's letters with D last. `field`
// names the letters.
absl::StatusOr<LayoutStrides> StridesInOrder(absl::string_view letters, const Layout& layout,
                                             const std::string& field);

inline LayoutStrides PackedStrides(const Layout& layout) {
  return *StridesInOrder(layout.letters, layout, "layout");
}

// Whether no two elements share a place. `axes`: the stride and the length of each axis. REQUIRES:
// the extent fits 63 bits.
bool EachHasItsPlace(std::vector<std::pair<int64_t, int64_t>> axes);

// The lengths of the layout's axes, in the order of `letters`.
absl::InlinedVector<int64_t, 6> ShapeInOrder(absl::string_view letters, const Layout& layout);

// The index of a token along each axis; 0 for axes that the layout does not have.
struct TokenIndex {
  int64_t b = 0;
  int64_t s = 0;
  int64_t t = 0;
  int64_t l = 0;  // unused: layers share positions

  int64_t& Along(const TokenAxis& axis) {
    return axis.letter == 'B' ? b : axis.letter == 'S' ? s : axis.letter == 'T' ? t : l;
  }
};

// Calls `visit(token, index)` for every token in memory order.
template <typename Visit>
void ForEachToken(const Layout& layout, const Visit& visit) {
  TokenIndex index;
  absl::InlinedVector<int64_t*, kTokenAxesMax> counters;  // into `index`
  for (const TokenAxis& axis : layout.token_axes) counters.push_back(&index.Along(axis));
  const int64_t tokens = layout.tokens();
  const int64_t run = layout.run();
  int64_t& last = counters.empty() ? index.l : *counters.back();
  for (int64_t token = 0; token < tokens;) {
    for (last = 0; last < run; ++last) visit(token++, index);
    for (size_t i = counters.size(); i-- > 1;) {
      *counters[i] = 0;
      if (++*counters[i - 1] < layout.token_axes[i - 1].length) break;
    }
  }
}

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_LAYOUT_H_
