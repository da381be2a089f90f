#include "server/request/pages.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/request/array_reader.h"

namespace rope::server {
namespace {

constexpr int64_t kNoToken = -1;

int64_t LayersOf(const Layout& layout) {
  return layout.Length('L');
}

// Tokens of one layer; 0 if the tensor has none.
int64_t SlotsOf(const Layout& layout) {
  return layout.tokens() == 0 ? 0 : layout.tokens() / LayersOf(layout);
}

// The lengths of the axes that have slots.
std::vector<int64_t> SlotsShape(const Layout& layout) {
  std::vector<int64_t> shape;
  for (const TokenAxis& axis : layout.token_axes) {
    if (axis.letter != 'L') shape.push_back(axis.length);
  }
  return shape;
}

// Page ids in the order of the tokens become a slot for each.
absl::StatusOr<std::vector<int64_t>> SlotsOfPages(const v1::Array& pages, ArraySource& source,
                                                  const Layout& layout, absl::string_view path,
                                                  PagedPlan& paged) {
  const int64_t sequences = layout.Length('B');
  const int64_t tokens = layout.Has('T') ? layout.Length('T') : layout.Length('S');
  const int64_t each = tokens / paged.block_size + (tokens % paged.block_size > 0 ? 1 : 0);
  const auto check = [&](absl::Span<const int64_t> shape) {
    const bool flat = !layout.Has('B') && shape == absl::Span<const int64_t>({each});
    if (flat || shape == absl::Span<const int64_t>({sequences, each})) return absl::OkStatus();
    return InvalidField(absl::StrCat(path, ".shape"), Brackets(shape),
                        layout.Has('B') ? absl::StrCat("[", sequences, ", ", each, "]")
                                        : absl::StrCat("[", each, "]"));
  };
  ROPE_ASSIGN_OR_RETURN(IntegerArray ids, ReadIntegers(pages, source, path, check));
  std::vector<int64_t> slots;
  slots.reserve(static_cast<size_t>(sequences * tokens));
  for (size_t i = 0; i < ids.values.size(); ++i) {
    const int64_t id = ids.values[i];
    const int64_t token = static_cast<int64_t>(i) % each * paged.block_size;
    const int64_t count = std::min(paged.block_size, tokens - token);
    const auto first = id < 0 ? std::nullopt : kernels::CheckedMultiply(id, paged.block_size);
    if (!first.has_value() || !kernels::CheckedAdd(*first, count).has_value()) {
      return InvalidField(path, id, "pages >= 0, whose slots have 63 bits");
    }
    for (int64_t k = 0; k < count; ++k) slots.push_back(*first + k);
  }
  paged.pages_shape = std::move(ids.shape);
  return slots;
}

absl::StatusOr<std::vector<int64_t>> ReadSlots(const v1::Array& array, ArraySource& source,
                                               const Layout& layout, absl::string_view path) {
  const std::vector<int64_t> want = SlotsShape(layout);
  const auto check = [&](absl::Span<const int64_t> shape) {
    if (shape == absl::Span<const int64_t>(want)) return absl::OkStatus();
    return InvalidField(absl::StrCat(path, ".shape"), Brackets(shape), Brackets(want));
  };
  ROPE_ASSIGN_OR_RETURN(IntegerArray slots, ReadIntegers(array, source, path, check));
  for (const int64_t slot : slots.values) {
    if (slot < kNoToken) return InvalidField(path, slot, "slots >= 0, or -1 for no token");
  }
  return std::move(slots.values);
}

int64_t LargestOf(const std::vector<int64_t>& slots) {
  return slots.empty() ? kNoToken : *std::max_element(slots.begin(), slots.end());
}

// Elements from the beginning of a pool to the end of the page of its largest slot.
std::optional<int64_t> ExtentOf(const TensorPlan& tensor, int64_t largest) {
  const PagedPlan& paged = *tensor.paged;
  if (largest == kNoToken || tensor.elements() == 0) return 0;
  std::optional<int64_t> extent = tensor.layout.head_dim;
  for (const auto& [stride, steps] : {std::pair(paged.page_stride, largest / paged.block_size),
                                      std::pair(paged.token_stride, paged.block_size - 1),
                                      std::pair(paged.head_stride, tensor.layout.heads - 1),
                                      std::pair(paged.layer_stride, LayersOf(tensor.layout) - 1)}) {
    const auto reach = kernels::CheckedMultiply(stride, steps);
    extent = extent && reach ? kernels::CheckedAdd(*extent, *reach) : std::nullopt;
  }
  return extent;
}

// The extent, which is in the pool, and by which no two elements share a place.
absl::StatusOr<int64_t> CheckedExtent(const TensorPlan& tensor, const std::vector<int64_t>& slots,
                                      absl::string_view path) {
  const PagedPlan& paged = *tensor.paged;
  const int64_t largest = LargestOf(slots);
  const std::optional<int64_t> extent = ExtentOf(tensor, largest);
  const auto bytes = extent ? kernels::CheckedMultiply(*extent, 8) : std::nullopt;
  const bool is_past = paged.pool_elements > 0 && extent.value_or(0) > paged.pool_elements;
  if (!bytes.has_value() || is_past) {
    return MakeError(Reason::kRegionOutOfRange, path, absl::StrCat("slot ", largest),
                     is_past ? absl::StrCat("slots within ", paged.pool_elements, " elements")
                             : "slots within 63 bits");
  }
  if (*extent == 0 || EachHasItsPlace({{1, tensor.layout.head_dim},
                                       {paged.head_stride, tensor.layout.heads},
                                       {paged.token_stride, paged.block_size},
                                       {paged.page_stride, largest / paged.block_size + 1},
                                       {paged.layer_stride, LayersOf(tensor.layout)}})) {
    return *extent;
  }
  return InvalidField(path, "strides by which elements share a place", "one for each");
}

// No token may be written by two.
absl::Status CheckOnce(const std::vector<int64_t>& slots, absl::string_view path) {
  std::vector<int64_t> copy;
  if (!std::is_sorted(slots.begin(), slots.end())) {
    copy = slots;
    std::sort(copy.begin(), copy.end());
  }
  const std::vector<int64_t>& sorted = copy.empty() ? slots : copy;
  const auto first = std::upper_bound(sorted.begin(), sorted.end(), kNoToken);
  const auto twice = std::adjacent_find(first, sorted.end());
  if (twice == sorted.end()) return absl::OkStatus();
  return InvalidField(path, absl::StrCat("slot ", *twice, " twice"), "each slot once");
}

}  // namespace

absl::Status ReadPaging(const v1::Tensor& tensor, const std::string& path, TensorPlan& plan) {
  const v1::PagedTokens& message = tensor.paged_tokens();
  const std::string field = path + ".paged_tokens";
  const bool has_layers = plan.layout.Has('L');
  for (const auto& [name, value, needed] :
       {std::tuple(".block_size", message.block_size(), true),
        std::tuple(".page_stride", message.page_stride(), true),
        std::tuple(".token_stride", message.token_stride(), true),
        std::tuple(".head_stride", message.head_stride(), plan.layout.heads > 1),
        std::tuple(".layer_stride", message.layer_stride(), has_layers),
        std::tuple(".pool_elements", message.pool_elements(), false)}) {
    if (value < (needed ? 1 : 0)) {
      return InvalidField(field + name, value, needed ? "1 or more" : "0 or more");
    }
  }
  if (has_layers && plan.layout.token_axes.front().letter != 'L') {
    return InvalidField(path + ".layout", plan.layout.letters, "L first, for pages");
  }
  if (plan.strides.has_value()) {
    return InvalidField(path + ".array.strides", "strides of a paged tensor", "none");
  }
  plan.paged = {.block_size = message.block_size(),
                .page_stride = message.page_stride(),
                .token_stride = message.token_stride(),
                .head_stride = message.head_stride(),
                .layer_stride = message.layer_stride(),
                .pool_elements = message.pool_elements()};
  return absl::OkStatus();
}

absl::Status ReadPages(const v1::Tensor& values, ArraySource& source, size_t index, Plan& plan) {
  TensorPlan& tensor = plan.tensors[index];
  PagedPlan& paged = *tensor.paged;
  const v1::PagedTokens& message = values.paged_tokens();
  constexpr absl::string_view kField = "paged_tokens";
  if (message.has_pages() && message.has_slots()) {
    return InvalidField(kField, "pages and slots", "one of them");
  }
  if (message.has_pages() || message.has_slots()) {
    ROPE_ASSIGN_OR_RETURN(
        std::vector<int64_t> slots,
        message.has_pages()
            ? SlotsOfPages(message.pages(), source, tensor.layout, "paged_tokens.pages", paged)
            : ReadSlots(message.slots(), source, tensor.layout, "paged_tokens.slots"));
    paged.slots = std::make_shared<const std::vector<int64_t>>(std::move(slots));
    paged.targets = paged.slots;
  } else {
    const std::optional<PagedPlan>& first = plan.tensors.front().paged;
    if (index == 0 || !first.has_value() || first->block_size != paged.block_size) {
      return InvalidField(kField, "neither pages nor slots",
                          "one of them, or those of tensors[0] with its block_size");
    }
    paged.pages_shape = first->pages_shape;
    paged.slots = first->slots;
    paged.targets = first->targets;
  }
  if (message.has_target_slots()) {
    ROPE_ASSIGN_OR_RETURN(
        std::vector<int64_t> targets,
        ReadSlots(message.target_slots(), source, tensor.layout, "paged_tokens.target_slots"));
    paged.targets = std::make_shared<const std::vector<int64_t>>(std::move(targets));
  }
  if (index == 0 || paged.targets != plan.tensors.front().paged->targets) {
    ROPE_RETURN_IF_ERROR(CheckOnce(*paged.targets, kField));
  }
  ROPE_ASSIGN_OR_RETURN(const int64_t extent, CheckedExtent(tensor, *paged.slots, kField));
  if (paged.targets != paged.slots) {
    ROPE_RETURN_IF_ERROR(
        CheckedExtent(tensor, *paged.targets, "paged_tokens.target_slots").status());
  }
  if (!values.array().has_region()) {
    return InvalidField("array", "elements in the message",
                        "a region: a paged tensor is rotated where it is");
  }
  tensor.source = {nullptr, values.array().region().region_id(), values.array().region().offset(),
                   extent * kernels::ElementBytes(tensor.dtype)};
  ROPE_ASSIGN_OR_RETURN(tensor.input, source.Find(tensor.source, "array.region"));
  return absl::OkStatus();
}

int64_t PagesBytes(const v1::RotateRequest& values, const Plan& plan) {
  int64_t lists = 0;
  for (const v1::Tensor& tensor : values.tensors()) {
    const v1::PagedTokens& paged = tensor.paged_tokens();
    lists += paged.has_pages() + paged.has_slots() + paged.has_target_slots();
  }
  // As read, and sorted.
  return 2 * lists * SlotsOf(plan.tensors.front().layout) * static_cast<int64_t>(sizeof(int64_t));
}

int64_t TargetBytes(const TensorPlan& tensor) {
  return *ExtentOf(tensor, LargestOf(*tensor.paged->targets)) *
         kernels::ElementBytes(tensor.output_dtype);
}

absl::Status CheckTargets(const TensorPlan& tensor, const std::string& path) {
  const PagedPlan& paged = *tensor.paged;
  if (paged.targets == paged.slots) return absl::OkStatus();
  std::vector<int64_t> read = *paged.slots;
  std::sort(read.begin(), read.end());
  for (size_t i = 0; i < read.size(); ++i) {
    const int64_t target = (*paged.targets)[i];
    if (target == kNoToken || target == (*paged.slots)[i]) continue;
    if (!std::binary_search(read.begin(), read.end(), target)) continue;
    return InvalidField(path + ".paged_tokens.target_slots",
                        absl::StrCat("slot ", target, ", which another token reads"),
                        "slots that no other token of the call reads");
  }
  return absl::OkStatus();
}

bool AreInterleaved(const TensorPlan& a, const TensorPlan& b, int64_t distance) {
  const PagedPlan& pages = *a.paged;
  const PagedPlan& other = *b.paged;
  if (pages.block_size != other.block_size || pages.page_stride != other.page_stride ||
      pages.token_stride != other.token_stride || pages.head_stride != other.head_stride ||
      a.layout.Has('L') || b.layout.Has('L') || a.dtype != b.dtype) {
    return false;
  }
  const auto take_turns = [distance](int64_t stride, int64_t first, int64_t second) {
    // `first` elements of a, from 0 on, and `second` of b, from `distance` on, in each stride.
    const int64_t at = (distance % stride + stride) % stride;
    return first <= at && at + second <= stride;
  };
  const auto head_extent = [&pages](const TensorPlan& tensor) {
    return (tensor.layout.heads - 1) * pages.head_stride + tensor.layout.head_dim;
  };
  const int64_t block = (pages.block_size - 1) * pages.token_stride;
  if (take_turns(pages.page_stride, block + head_extent(a), block + head_extent(b))) return true;
  return pages.page_stride % pages.token_stride == 0 &&
         take_turns(pages.token_stride, head_extent(a), head_extent(b));
}

}  // namespace rope::server
