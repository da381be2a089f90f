#include "server/request/layout.h"

#include <algorithm>
#include <optional>
#include <string>

#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "server/error.h"

namespace rope::server {
namespace {

constexpr absl::string_view kWantLetters =
    "letters of L B S T H D, each at most once, D last, T without B and S (for example BSHD or "
    "THD)";

bool LettersAreLegal(absl::string_view letters) {
  if (letters.empty() || letters.back() != 'D') return false;
  for (size_t i = 0; i < letters.size(); ++i) {
    if (absl::string_view("LBSTHD").find(letters[i]) == absl::string_view::npos) return false;
    if (letters.find(letters[i], i + 1) != absl::string_view::npos) return false;
  }
  const bool packed = letters.find('T') != absl::string_view::npos;
  const bool padded =
      letters.find('B') != absl::string_view::npos || letters.find('S') != absl::string_view::npos;
  return !(packed && padded);
}

absl::Status CheckProduct(absl::Span<const int64_t> shape, int64_t element_bytes,
                          absl::string_view path) {
  const auto field = [path] { return absl::StrCat(path, ".array.shape"); };
  int64_t product = element_bytes;
  for (const int64_t length : shape) {
    if (length < 0) return InvalidField(field(), length, "lengths >= 0");
  }
  for (const int64_t length : shape) {
    // An axis of length 0 makes the tensor empty, but the product of the others must still fit.
    const auto next = kernels::CheckedMultiply(product, length == 0 ? 1 : length);
    if (!next.has_value()) {
      return InvalidField(field(), Brackets(shape), "a product that fits 63 bits");
    }
    product = *next;
  }
  return absl::OkStatus();
}

}  // namespace

int64_t Layout::Length(char letter) const {
  if (letter == 'D') return head_dim;
  if (letter == 'H') return heads;
  for (const TokenAxis& axis : token_axes) {
    if (axis.letter == letter) return axis.length;
  }
  return 1;
}

absl::StatusOr<LayoutStrides> ParseStrides(absl::string_view letters, const Layout& layout,
                                           absl::Span<const int64_t> strides, int64_t element_bytes,
                                           absl::string_view field) {
  if (strides.size() != letters.size()) {
    return InvalidField(field, absl::StrCat(strides.size(), " strides"),
                        absl::StrCat(letters.size(), " for layout ", letters));
  }
  LayoutStrides result;
  std::optional<int64_t> extent = element_bytes;
  bool empty = layout.head_dim == 0 || layout.heads == 0;
  for (size_t i = 0; i < letters.size(); ++i) {
    if (strides[i] < 0) return InvalidField(field, strides[i], "strides >= 0");
    const int64_t length = layout.Length(letters[i]);
    // The stride of an axis of one element is never used: any value is legal and is stored as 0.
    const int64_t stride = length <= 1 ? 0 : strides[i];
    const auto steps = kernels::CheckedMultiply(std::max<int64_t>(length - 1, 0), stride);
    const auto bytes = steps ? kernels::CheckedMultiply(*steps, element_bytes) : std::nullopt;
    extent = extent && bytes ? kernels::CheckedAdd(*extent, *bytes) : std::nullopt;
    empty = empty || length == 0;
    (letters[i] == 'D'   ? result.channel
     : letters[i] == 'H' ? result.head
                         : result.token_axes.emplace_back()) = stride;
  }
  if (!extent.has_value()) {
    return InvalidField(field, Brackets(strides), "an extent in bytes that fits 63 bits");
  }
  result.extent = empty ? 0 : *extent / element_bytes;
  return result;
}

int64_t OffsetOf(int64_t token, const Layout& layout, const LayoutStrides& strides) {
  int64_t offset = 0;
  for (size_t axis = layout.token_axes.size(); axis-- > 0;) {
    const int64_t length = layout.token_axes[axis].length;
    offset += token % length * strides.token_axes[axis];
    token /= length;
  }
  return offset;
}

bool EachHasItsPlace(std::vector<std::pair<int64_t, int64_t>> axes) {
  std::sort(axes.begin(), axes.end());
  int64_t inside = 1;
  for (const auto& [stride, length] : axes) {
    if (length <= 1) continue;
    if (stride < inside) return false;
    inside += (length - 1) * stride;
  }
  return true;
}

absl::InlinedVector<int64_t, 6> ShapeInOrder(absl::string_view letters, const Layout& layout) {
  absl::InlinedVector<int64_t, 6> shape;
  shape.reserve(letters.size());
  for (const char letter : letters) shape.push_back(layout.Length(letter));
  return shape;
}

absl::StatusOr<LayoutStrides> StridesInOrder(absl::string_view letters, const Layout& layout,
                                             const std::string& field) {
  std::string sorted(letters);
  std::string wanted = layout.letters;
  std::ranges::sort(sorted);
  std::ranges::sort(wanted);
  if (sorted != wanted || letters.back() != 'D') {
    return InvalidField(field, absl::StrCat("\"", letters, "\""),
                        absl::StrCat("the letters of ", layout.letters, " in any order, D last"));
  }
  const auto shape = ShapeInOrder(letters, layout);
  std::vector<int64_t> strides;  // in the order of the layout
  for (const char letter : layout.letters) {
    int64_t& stride = strides.emplace_back(1);
    for (size_t i = letters.find(letter) + 1; i < letters.size(); ++i) stride *= shape[i];
  }
  return ParseStrides(layout.letters, layout, strides, /*element_bytes=*/1, field);
}

absl::StatusOr<Layout> ParseLayout(absl::string_view letters, absl::Span<const int64_t> shape,
                                   int64_t element_bytes, absl::string_view path) {
  if (!LettersAreLegal(letters)) {
    return InvalidField(absl::StrCat(path, ".layout"), absl::StrCat("\"", letters, "\""),
                        kWantLetters);
  }
  if (shape.size() != letters.size()) {
    return InvalidField(absl::StrCat(path, ".array.shape"), absl::StrCat(shape.size(), " axes"),
                        absl::StrCat(letters.size(), " for layout ", letters));
  }
  ROPE_RETURN_IF_ERROR(CheckProduct(shape, element_bytes, path));
  Layout layout;
  layout.letters = std::string(letters);
  layout.head_dim = shape.back();
  bool past_heads = false;
  for (size_t i = 0; i + 1 < letters.size(); ++i) {
    if (letters[i] == 'H') {
      layout.heads = shape[i];
      past_heads = true;
      continue;
    }
    layout.token_axes.push_back({letters[i], shape[i]});
    (past_heads ? layout.post : layout.pre) *= shape[i];
  }
  return layout;
}

}  // namespace rope::server
