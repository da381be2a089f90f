#include "server/request/tensor_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "proto/wire/rope_config.h"
#include "server/error.h"
#include "server/models/model_registry.h"
#include "server/request/array_reader.h"

namespace rope::server {
namespace {

constexpr int64_t kNoToken = -1;

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
  std::vector<int64_t> want;  // layers share slots
  for (const TokenAxis& axis : layout.token_axes) {
    if (axis.letter != 'L') want.push_back(axis.length);
  }
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
  return slots.empty() ? kNoToken : std::ranges::max(slots);
}

// Elements from the beginning of a pool to the end of the page of its largest slot.
std::optional<int64_t> ExtentOf(const TensorPlan& tensor, int64_t largest) {
  const PagedPlan& paged = *tensor.paged;
  if (largest == kNoToken || tensor.elements() == 0) return 0;
  std::optional<int64_t> extent = tensor.layout.head_dim;
  for (const auto& [stride, steps] :
       {std::pair(paged.page_stride, largest / paged.block_size),
        std::pair(paged.token_stride, paged.block_size - 1),
        std::pair(paged.head_stride, tensor.layout.heads - 1),
        std::pair(paged.layer_stride, tensor.layout.Length('L') - 1)}) {
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
                                       {paged.layer_stride, tensor.layout.Length('L')}})) {
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

// What stays the same in repeated calls: sizes and strides. REQUIRES: the plan has its layout.
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

// What each call brings: the tokens of tensor `index`, and its pool.
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

}  // namespace

int64_t PagesBytes(const v1::RotateRequest& values, const Plan& plan) {
  int64_t lists = 0;
  for (const v1::Tensor& tensor : values.tensors()) {
    const v1::PagedTokens& paged = tensor.paged_tokens();
    lists += paged.has_pages() + paged.has_slots() + paged.has_target_slots();
  }
  const Layout& layout = plan.tensors.front().layout;
  const int64_t slots = layout.tokens() == 0 ? 0 : layout.tokens() / layout.Length('L');
  return 2 * lists * slots * static_cast<int64_t>(sizeof(int64_t));  // as read, and sorted
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

namespace {

// Converts `value` for the kernels, which require 0 or a normal float32. Any other value would
// change: it would overflow, or become subnormal or 0.
absl::StatusOr<float> ToFloat(double value, const std::string& field, absl::string_view want) {
  const auto narrow = static_cast<float>(value);
  const float magnitude = std::fabs(narrow);
  const bool holds = value == 0 || (magnitude >= std::numeric_limits<float>::min() &&
                                    magnitude <= std::numeric_limits<float>::max());
  if (holds) return narrow;
  return InvalidField(field, value, want);
}

absl::StatusOr<float> ToPositiveFloat(double value, const std::string& field) {
  constexpr absl::string_view kWant = "a finite number above 0 that float32 holds";
  if (!(value > 0)) return InvalidField(field, value, kWant);
  return ToFloat(value, field, kWant);
}

absl::StatusOr<float> ToFiniteFloat(double value, const std::string& field) {
  return ToFloat(value, field, "a finite number that float32 holds");
}

// Norm and scales apply to a whole tensor. Their meaning for packed q, k and v is not defined, so
// that a tensor with head_ranges may have neither.
absl::Status CheckOneRole(const v1::Tensor& tensor, const std::string& field) {
  if (tensor.head_ranges_size() == 0) return absl::OkStatus();
  return InvalidField(field, "it together with head_ranges", "a tensor of one role");
}

absl::Status CheckOperation(v1::Operation operation, bool linear, const std::string& field) {
  const bool rotates = operation == v1::OPERATION_UNSPECIFIED || operation == v1::OPERATION_ROTATE;
  if (rotates || (linear && operation == v1::OPERATION_BACKWARD)) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("it together with ", v1::Operation_Name(operation)),
                      linear ? "OPERATION_ROTATE or OPERATION_BACKWARD" : "OPERATION_ROTATE");
}

absl::Status ReadNorm(const v1::Tensor& tensor, v1::Operation operation, ArraySource& source,
                      const std::string& field, TensorPlan& plan) {
  ROPE_RETURN_IF_ERROR(CheckOneRole(tensor, field));
  ROPE_RETURN_IF_ERROR(CheckOperation(operation, /*linear=*/false, field));
  ROPE_ASSIGN_OR_RETURN(plan.norm_eps, ToPositiveFloat(tensor.norm().eps(), field + ".eps"));
  if (!tensor.norm().has_weight()) return absl::OkStatus();
  const std::string weight_field = field + ".weight";
  const int64_t head_dim = plan.layout.head_dim;
  ROPE_ASSIGN_OR_RETURN(const FloatElements weight,
                        FloatElements::Of(tensor.norm().weight(), source, weight_field));
  if (weight.shape() != std::vector<int64_t>{head_dim} || head_dim > kernels::kHeadDimMax) {
    return InvalidField(
        weight_field + ".shape", Brackets(weight.shape()),
        absl::StrCat("[", head_dim, "], one for each channel, at most ", kernels::kHeadDimMax));
  }
  std::vector<double> numbers(static_cast<size_t>(weight.count()));
  ROPE_RETURN_IF_ERROR(weight.Read(0, absl::MakeSpan(numbers)));
  std::vector<float> values;
  values.reserve(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    ROPE_ASSIGN_OR_RETURN(const float value,
                          ToFiniteFloat(numbers[i], absl::StrCat(weight_field, " element ", i)));
    values.push_back(value);
  }
  plan.norm_weight = std::make_shared<const std::vector<float>>(std::move(values));
  return absl::OkStatus();
}

absl::Status ReadFp8Scales(const v1::Tensor& tensor, const std::string& field, TensorPlan& plan) {
  if (!kernels::IsFloat8(plan.output_dtype)) {
    return InvalidField(
        field, absl::StrCat("it with output of ", v1::DType_Name(MessageDType(plan.output_dtype))),
        "output.dtype DTYPE_FP8_E4M3 or DTYPE_FP8_E5M2 as well");
  }
  if (kernels::IsFloat8(plan.dtype)) {
    return MakeError(Reason::kNotBuilt, field, "a scale of the result of an FP8 input",
                     "none: the result has the scale of its input");
  }
  if (tensor.fp8_scales_size() > 1) {
    return MakeError(Reason::kNotBuilt, field, absl::StrCat(tensor.fp8_scales_size(), " scales"),
                     "one: others are not built yet");
  }
  ROPE_ASSIGN_OR_RETURN(plan.output_scale, ToPositiveFloat(tensor.fp8_scales(0), field));
  return absl::OkStatus();
}

// Fills norm, scale and output_scale of a tensor whose dtypes and layout are set.
absl::Status ReadFusedOps(const v1::Tensor& tensor, v1::Operation operation, ArraySource& source,
                          const std::string& path, TensorPlan& plan) {
  if (tensor.has_norm()) {
    ROPE_RETURN_IF_ERROR(ReadNorm(tensor, operation, source, path + ".norm", plan));
  }
  if (tensor.has_scale()) {
    ROPE_RETURN_IF_ERROR(CheckOneRole(tensor, path + ".scale"));
    ROPE_ASSIGN_OR_RETURN(plan.scale, ToFiniteFloat(tensor.scale(), path + ".scale"));
  }
  if (tensor.fp8_scales_size() > 0) {
    ROPE_RETURN_IF_ERROR(ReadFp8Scales(tensor, path + ".fp8_scales", plan));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadTokenScaling(const v1::RotateRequest& message,
                              std::optional<int64_t> original_length, Plan& plan) {
  for (int i = 0; i < message.tensors_size(); ++i) {
    const v1::Tensor& tensor = message.tensors(i);
    if (!tensor.has_llama4_scaling_beta()) continue;
    std::string field = absl::StrCat("tensors[", i, "].llama4_scaling_beta");
    const double beta = tensor.llama4_scaling_beta();
    ROPE_RETURN_IF_ERROR(CheckOneRole(tensor, field));
    if (tensor.role() != v1::ROLE_Q) {
      return InvalidField(field, "it on ROLE_K", "it on ROLE_Q only");
    }
    ROPE_RETURN_IF_ERROR(CheckOperation(message.operation(), /*linear=*/true, field));
    if (!original_length.has_value()) {
      return InvalidField(field, "it without original_max_position_embeddings",
                          "a config that has it: scales count in it");
    }
    if (!plan.token_scaling.has_value()) {
      plan.token_scaling = {beta, *original_length, std::move(field)};
    } else if (!(plan.token_scaling->beta == beta)) {
      return InvalidField(
          field, beta,
          absl::StrCat(plan.token_scaling->beta, ", as the tensor before it that has one"));
    }
    plan.tensors[static_cast<size_t>(i)].token_scaled = true;
  }
  return absl::OkStatus();
}

absl::Status PlanTokenScales(absl::Span<const int64_t> positions, Plan& plan) {
  if (!plan.token_scaling.has_value()) return absl::OkStatus();
  const auto& [beta, length, field] = *plan.token_scaling;
  plan.token_scales.reserve(positions.size());
  for (const int64_t position : positions) {
    const int64_t passed = position / length;
    const auto scale = static_cast<float>(1 + beta * std::log1p(static_cast<double>(passed)));
    if (!std::isfinite(scale)) {
      return InvalidField(field, beta, "a finite number whose scales float32 holds");
    }
    plan.token_scales.push_back(scale);
  }
  return absl::OkStatus();
}

namespace {

// How a tensor is read: dtype, layout and shape, heads and their roles, strides, then the elements.
// Each step may use only what earlier steps have checked. In particular, the product of the shape
// and the element size fits 63 bits after ParseLayout, and the extent of a strided tensor after
// ParseStrides, so that later arithmetic cannot overflow.
//
// PrepareTensors takes all steps but the last, ReadElements the last one. No element is read or
// copied here, except elements that came as numbers and strided payloads in several fragments. The
// number of bytes is compared with the shape, so that the kernels never read past them.

absl::Status CheckRole(v1::Role role, const std::string& path) {
  if (role == v1::ROLE_Q || role == v1::ROLE_K) return absl::OkStatus();
  if (role == v1::ROLE_V) {
    return MakeError(Reason::kNotBuilt, absl::StrCat(path, ".role"), "ROLE_V",
                     "ROLE_Q or ROLE_K: tensors of v are not built yet");
  }
  return InvalidField(
      path + ".role",
      role == v1::ROLE_UNSPECIFIED ? std::string("nothing") : absl::StrCat(static_cast<int>(role)),
      "ROLE_Q or ROLE_K");
}

// Spans that cover all heads in order. Heads outside the ranges, and ranges without a role, pass
// through unchanged.
absl::StatusOr<absl::InlinedVector<HeadSpan, 1>> ReadHeads(const v1::Tensor& tensor, int64_t heads,
                                                           const std::string& path) {
  if (tensor.head_ranges_size() == 0) {
    ROPE_RETURN_IF_ERROR(CheckRole(tensor.role(), path));
    return absl::InlinedVector<HeadSpan, 1>{{0, heads, true, tensor.role() == v1::ROLE_K}};
  }
  if (tensor.role() != v1::ROLE_UNSPECIFIED) {
    return InvalidField(path + ".role", "it together with head_ranges",
                        "only the roles of the ranges");
  }
  absl::InlinedVector<HeadSpan, 1> spans;
  int64_t next = 0;
  for (int i = 0; i < tensor.head_ranges_size(); ++i) {
    const v1::HeadRange& range = tensor.head_ranges(i);
    const std::string field = absl::StrCat(path, ".head_ranges[", i, "]");
    const bool passes = range.role() == v1::ROLE_UNSPECIFIED;
    if (!passes) ROPE_RETURN_IF_ERROR(CheckRole(range.role(), field));
    if (range.begin() < next || range.end() < range.begin() || range.end() > heads) {
      return InvalidField(field, absl::StrCat("heads ", range.begin(), " to ", range.end()),
                          absl::StrCat("ranges in order, from head ", next, " to at most ", heads));
    }
    if (range.begin() > next) spans.push_back({next, range.begin(), false});
    spans.push_back({range.begin(), range.end(), !passes, range.role() == v1::ROLE_K});
    next = range.end();
  }
  if (next < heads) spans.push_back({next, heads, false});
  return spans;
}

// Sets everything of a tensor's plan that its shape decides.
absl::Status ReadLayout(const v1::Tensor& tensor, absl::Span<const int64_t> shape,
                        const std::string& path, TensorPlan& plan) {
  ROPE_ASSIGN_OR_RETURN(plan.layout,
                        ParseLayout(tensor.layout(), shape, plan.larger_element_bytes(), path));
  plan.output_letters = plan.layout.letters;
  if (tensor.array().strides_size() == 0) return absl::OkStatus();
  ROPE_ASSIGN_OR_RETURN(plan.strides,
                        ParseStrides(tensor.layout(), plan.layout, tensor.array().strides(),
                                     kernels::ElementBytes(plan.dtype), path + ".array.strides"));
  return absl::OkStatus();
}

absl::StatusOr<TensorPlan> ReadTensor(const v1::Tensor& tensor, const v1::Output& output,
                                      const std::string& path) {
  TensorPlan plan;
  ROPE_ASSIGN_OR_RETURN(plan.dtype, ReadOutputDType(tensor.array().dtype(), path + ".array.dtype"));
  plan.output_dtype = plan.dtype;
  if (output.dtype() != v1::DTYPE_UNSPECIFIED) {
    ROPE_ASSIGN_OR_RETURN(plan.output_dtype, ReadOutputDType(output.dtype(), "output.dtype"));
  }
  ROPE_RETURN_IF_ERROR(ReadLayout(tensor, tensor.array().shape(), path, plan));
  if (tensor.has_rotary_offset()) {
    if (tensor.rotary_offset() < 0) {
      return InvalidField(path + ".rotary_offset", tensor.rotary_offset(), "a channel >= 0");
    }
    plan.rotary_offset = tensor.rotary_offset();
  }
  ROPE_ASSIGN_OR_RETURN(plan.heads, ReadHeads(tensor, plan.layout.heads, path));
  if (tensor.has_paged_tokens()) ROPE_RETURN_IF_ERROR(ReadPaging(tensor, path, plan));
  return plan;
}

// Bounds the number of tokens. Each token costs memory in addition to its elements, and a tensor
// with an axis of length 0 has no elements but may state any number of tokens.
absl::Status CheckTokens(const Layout& layout, const std::string& path) {
  int64_t tokens = 1;
  for (const TokenAxis& axis : layout.token_axes) tokens *= std::max<int64_t>(axis.length, 1);
  if (tokens <= limits::kTokensMax) return absl::OkStatus();
  return MakeError(Reason::kLimitExceeded, absl::StrCat(path, ".array.shape"),
                   absl::StrCat(tokens, " tokens"), absl::StrCat("at most ", limits::kTokensMax));
}

// Tensors without a rotary_offset have the same D.
absl::Status CheckChannels(const TensorPlan& tensor, const Plan& plan, const std::string& path) {
  if (tensor.rotary_offset.has_value()) return absl::OkStatus();
  const auto plain = [](const TensorPlan& before) { return !before.rotary_offset.has_value(); };
  const auto first = std::ranges::find_if(plan.tensors, plain);
  if (first == plan.tensors.end() || first->layout.head_dim == tensor.layout.head_dim) {
    return absl::OkStatus();
  }
  return InvalidField(
      path + ".array.shape", absl::StrCat("D ", tensor.layout.head_dim),
      absl::StrCat(first->layout.head_dim, ", as tensors[", first - plan.tensors.begin(), "]"));
}

// Reads output.layouts: the order of the axes of each tensor in the reply.
absl::Status ReadOutputLayouts(const v1::Output& output, Plan& plan) {
  if (output.layouts_size() == 0) return absl::OkStatus();
  if (output.layouts_size() != static_cast<int>(plan.tensors.size())) {
    return InvalidField("output.layouts", absl::StrCat(output.layouts_size()),
                        absl::StrCat(plan.tensors.size(), ", one for each tensor"));
  }
  for (int i = 0; i < output.layouts_size(); ++i) {
    TensorPlan& tensor = plan.tensors[static_cast<size_t>(i)];
    const std::string& letters = output.layouts(i);
    if (letters.empty() || letters == tensor.layout.letters) continue;
    ROPE_ASSIGN_OR_RETURN(
        tensor.output_strides,
        StridesInOrder(letters, tensor.layout, absl::StrCat("output.layouts[", i, "]")));
    tensor.output_letters = letters;
  }
  return absl::OkStatus();
}

// Sets `tokens` and `bytes_per_token`, whose product fits 63 bits afterwards. The bytes of each
// tensor do (ParseLayout), but those of all tensors together may not.
absl::Status CountBytes(Plan& plan) {
  plan.tokens = plan.tensors.front().layout.tokens();
  for (const TensorPlan& tensor : plan.tensors) {
    const auto sum = kernels::CheckedAdd(plan.bytes_per_token, tensor.token_bytes());
    if (!sum.has_value()) return InvalidField("tensors", "heads past 63 bits", "smaller ones");
    plan.bytes_per_token = *sum;
  }
  if (!kernels::CheckedMultiply(plan.tokens, plan.bytes_per_token).has_value()) {
    return InvalidField("tensors", "bytes past 63 bits", "smaller ones");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PrepareTensors(const v1::RotateRequest& message, ArraySource& source, Plan& plan) {
  const int64_t count = message.tensors_size();
  if (count == 0 || count > limits::kTensorsMax) {
    return InvalidField("tensors", count == 0 ? "nothing" : absl::StrCat(count),
                        absl::StrCat("1 to ", limits::kTensorsMax, " tensors"));
  }
  for (int i = 0; i < message.tensors_size(); ++i) {
    const std::string path = absl::StrCat("tensors[", i, "]");
    ROPE_ASSIGN_OR_RETURN(TensorPlan tensor,
                          ReadTensor(message.tensors(i), message.output(), path));
    if (message.tensors(i).norm().has_weight() && tensor.layout.head_dim > kWidthHereMax &&
        !plan.may_take_long) {
      return NeedsSideThread();
    }
    ROPE_RETURN_IF_ERROR(
        ReadFusedOps(message.tensors(i), message.operation(), source, path, tensor));
    ROPE_RETURN_IF_ERROR(CheckTokens(tensor.layout, path));
    const Layout& first = i == 0 ? tensor.layout : plan.tensors.front().layout;
    if (tensor.layout.token_axes != first.token_axes) {
      const auto& shape = message.tensors(i).array().shape();
      return InvalidField(path + ".layout",
                          absl::StrCat(tensor.layout.letters, " of ", Brackets(shape)),
                          "the axes B, S, T and L of tensors[0], in its order and lengths");
    }
    ROPE_RETURN_IF_ERROR(CheckChannels(tensor, plan, path));
    plan.tensors.push_back(std::move(tensor));
  }
  ROPE_RETURN_IF_ERROR(ReadOutputLayouts(message.output(), plan));
  auto order = proto::ReadPairing(message.output().channel_order());
  if (!order.ok()) {
    return InvalidField("output.channel_order",
                        absl::StrCat(static_cast<int>(message.output().channel_order())),
                        "PAIRING_HALF or PAIRING_INTERLEAVED");
  }
  plan.channel_order = *order;
  return CountBytes(plan);
}

absl::Status Resize(const v1::RotateRequest& message, char axis, int64_t length, Plan& plan) {
  for (int i = 0; i < message.tensors_size(); ++i) {
    const v1::Tensor& tensor = message.tensors(i);
    std::vector<int64_t> shape(tensor.array().shape().begin(), tensor.array().shape().end());
    shape[tensor.layout().find(axis)] = length;
    ROPE_RETURN_IF_ERROR(ReadLayout(tensor, shape, absl::StrCat("tensors[", i, "]"),
                                    plan.tensors[static_cast<size_t>(i)]));
  }
  plan.tokens = plan.tensors.front().layout.tokens();
  return ReadOutputLayouts(message.output(), plan);
}

// The job of a strided tensor is addressed from one base pointer, so that its elements must be
// contiguous: several fragments are copied together.
absl::Status ReadElements(const v1::RotateRequest& values, ArraySource& source, Plan& plan) {
  int64_t copied = 0;
  for (int i = 0; i < values.tensors_size(); ++i) {
    TensorPlan& tensor = plan.tensors[static_cast<size_t>(i)];
    const absl::Status status =
        tensor.paged.has_value()
            ? ReadPages(values.tensors(i), source, static_cast<size_t>(i), plan)
            : ReadTensorElements(values.tensors(i).array(), source, tensor);
    if (!status.ok()) return Prefixed(absl::StrCat("tensors[", i, "]."), status);
    if (tensor.paged.has_value()) continue;
    if (!tensor.strides.has_value() || tensor.input.fragments.size() <= 1) continue;
    copied += tensor.input.bytes;
    if (!plan.may_take_long && copied > limits::kPlanHereBytesMax) return NeedsSideThread();
    tensor.typed.resize(static_cast<size_t>(tensor.input.bytes));
    tensor.input.CopyTo(tensor.typed.data());
    tensor.input.fragments = {{tensor.typed.data(), tensor.typed.size()}};
  }
  return absl::OkStatus();
}

}  // namespace rope::server
