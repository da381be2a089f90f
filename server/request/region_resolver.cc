#include "server/request/region_resolver.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/request/tensor_reader.h"

namespace rope::server {
namespace {

// Strides that output.strides gives for each letter of the answer, in the order of the layout.
absl::StatusOr<LayoutStrides> ReadOutputStrides(const v1::Strides& strides,
                                                const TensorPlan& tensor,
                                                const std::string& field) {
  const std::string& letters = tensor.layout.letters;
  if (strides.values_size() != static_cast<int>(letters.size())) {
    return InvalidField(field, absl::StrCat(strides.values_size(), " strides"),
                        absl::StrCat(letters.size(), " for layout ", tensor.output_letters));
  }
  std::vector<int64_t> ordered;
  for (const char letter : letters) {
    ordered.push_back(strides.values(static_cast<int>(tensor.output_letters.find(letter))));
  }
  return ParseStrides(letters, tensor.layout, ordered, kernels::ElementBytes(tensor.output_dtype),
                      field);
}

absl::Status CheckStrides(const TensorPlan& tensor, const std::string& field) {
  const LayoutStrides& strides = *tensor.output_strides;
  if (strides.extent == 0) return absl::OkStatus();
  if (strides.channel != 1 && tensor.layout.head_dim > 1) {
    return InvalidField(field, absl::StrCat(strides.channel, " for D"), "1");
  }
  std::vector<std::pair<int64_t, int64_t>> axes = {{strides.channel, tensor.layout.head_dim},
                                                   {strides.head, tensor.layout.heads}};
  for (size_t i = 0; i < tensor.layout.token_axes.size(); ++i) {
    axes.emplace_back(strides.token_axes[i], tensor.layout.token_axes[i].length);
  }
  if (EachHasItsPlace(std::move(axes))) return absl::OkStatus();
  return InvalidField(field, "elements that share a place", "one for each");
}

// Bytes from the first element of the output to the end of the last.
int64_t PlaceBytes(const TensorPlan& tensor) {
  if (tensor.paged.has_value()) return TargetBytes(tensor);
  const int64_t extent =
      tensor.output_strides.has_value() ? tensor.output_strides->extent : tensor.elements();
  return extent * kernels::ElementBytes(tensor.output_dtype);
}

absl::Status PlaceOnInput(size_t index, TensorPlan& tensor) {
  const std::string path = absl::StrCat("tensors[", index, "]");
  if (tensor.source.region == nullptr) {
    return InvalidField("output.in_place", absl::StrCat(path, " outside a region"),
                        "array.region for each tensor");
  }
  if (tensor.output_dtype != tensor.dtype) {
    return InvalidField("output.in_place", "another output.dtype than that of " + path, "the same");
  }
  if (tensor.output_letters != tensor.layout.letters) {
    return InvalidField("output.in_place", "another layout than that of " + path, "the same");
  }
  tensor.place = tensor.source;
  if (tensor.paged.has_value()) {  // the targets may lie past the tokens
    tensor.place.bytes = TargetBytes(tensor);
    ROPE_RETURN_IF_ERROR(tensor.place.region->CheckSpan(
        tensor.place.offset, static_cast<uint64_t>(tensor.place.bytes), path + ".array.region"));
  }
  tensor.output_strides = tensor.strides;
  return tensor.strides.has_value() ? CheckStrides(tensor, path + ".array.strides")
                                    : absl::OkStatus();
}

// Whether the output takes exactly the place of the input.
bool InPlace(const TensorPlan& tensor) {
  if (tensor.place.offset != tensor.source.offset) return false;
  if (tensor.dtype != tensor.output_dtype) return false;
  if (tensor.paged.has_value() || tensor.strides == tensor.output_strides) return true;
  const LayoutStrides packed = PackedStrides(tensor.layout);
  return tensor.strides.value_or(packed) == tensor.output_strides.value_or(packed);
}

// Whether parts in which two paged tensors lie share no element.
bool TakeTurns(const TensorPlan& a, const RegionPart& of_a, const TensorPlan& b,
               const RegionPart& of_b) {
  if (!a.paged.has_value() || !b.paged.has_value() || a.output_dtype != a.dtype) return false;
  const auto bytes = static_cast<int64_t>(of_b.offset) - static_cast<int64_t>(of_a.offset);
  const int64_t element_bytes = kernels::ElementBytes(a.dtype);
  return bytes % element_bytes == 0 && AreInterleaved(a, b, bytes / element_bytes);
}

absl::Status CheckOverlaps(const std::vector<TensorPlan>& tensors) {
  const auto name = [](size_t i) { return absl::StrCat("output of tensors[", i, "]"); };
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].place.region == nullptr) continue;
    for (size_t other = 0; other < i; ++other) {
      if (!Overlap(tensors[i].place, tensors[other].place)) continue;
      if (TakeTurns(tensors[i], tensors[i].place, tensors[other], tensors[other].place)) continue;
      return InvalidField(name(i), absl::StrCat("a place that overlaps the ", name(other)),
                          "one of its own");
    }
    for (size_t j = 0; j < tensors.size(); ++j) {
      if (!Overlap(tensors[i].place, tensors[j].source)) continue;
      if (i == j && tensors[i].paged.has_value() && InPlace(tensors[i])) {
        ROPE_RETURN_IF_ERROR(CheckTargets(tensors[i], absl::StrCat("tensors[", i, "]")));
        continue;
      }
      if (i == j && InPlace(tensors[i])) continue;
      if (TakeTurns(tensors[i], tensors[i].place, tensors[j], tensors[j].source)) continue;
      return InvalidField(name(i), absl::StrCat("a place that overlaps the input tensors[", j, "]"),
                          "exactly that of its own input, or none of any");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<proto::FragmentedBytes> RegionResolver::Find(RegionPart& part,
                                                            absl::string_view field) {
  ROPE_ASSIGN_OR_RETURN(part.region, request_.arrival.connection->regions().Find(part.id, field));
  ROPE_RETURN_IF_ERROR(
      part.region->CheckSpan(part.offset, static_cast<uint64_t>(part.bytes), field));
  if (part.IsOnDevice() && !part.may_lie_on_device) {
    return InvalidField(field, "memory of a device", "host memory");
  }
  proto::FragmentedBytes found;
  found.bytes = part.bytes;
  if (part.bytes > 0 && !part.IsOnDevice())
    found.fragments.emplace_back(part.mapped(), static_cast<size_t>(part.bytes));
  return found;
}

absl::Status RegionResolver::Place() {
  const v1::Output& output = request_.fixed().output();
  const auto& regions = request_.call().output().regions();
  std::vector<TensorPlan>& tensors = request_.plan.tensors;
  const int count = static_cast<int>(tensors.size());
  if (regions.empty()) {
    if (output.strides_size() > 0) {
      return InvalidField("output.strides", "strides without output.regions", "both or none");
    }
    const auto is_paged = [](const TensorPlan& tensor) { return tensor.paged.has_value(); };
    if (!output.in_place() && std::ranges::any_of(tensors, is_paged)) {
      return InvalidField("output", "neither in_place nor regions", "one of them, for pages");
    }
    if (!output.in_place()) return absl::OkStatus();
    for (size_t i = 0; i < tensors.size(); ++i) ROPE_RETURN_IF_ERROR(PlaceOnInput(i, tensors[i]));
    return CheckOverlaps(tensors);
  }
  if (output.in_place()) return InvalidField("output", "in_place and regions", "one of them");
  const bool wrong_regions = regions.size() != count;
  if (wrong_regions || (output.strides_size() > 0 && output.strides_size() != count)) {
    return InvalidField(wrong_regions ? "output.regions" : "output.strides",
                        absl::StrCat(wrong_regions ? regions.size() : output.strides_size()),
                        absl::StrCat(count, ", one for each tensor"));
  }
  for (int i = 0; i < count; ++i) {
    TensorPlan& tensor = tensors[static_cast<size_t>(i)];
    if (i < output.strides_size() && output.strides(i).values_size() > 0) {
      const std::string field = absl::StrCat("output.strides[", i, "]");
      ROPE_ASSIGN_OR_RETURN(tensor.output_strides,
                            ReadOutputStrides(output.strides(i), tensor, field));
      ROPE_RETURN_IF_ERROR(CheckStrides(tensor, field));
    }
    tensor.place = {nullptr, regions[i].region_id(), regions[i].offset(), PlaceBytes(tensor),
                    /*may_lie_on_device=*/true};
    if (const auto found = Find(tensor.place, "output.regions"); !found.ok()) {
      return proto::WithField(absl::StrCat("output.regions[", i, "]"), found.status());
    }
  }
  return CheckOverlaps(tensors);
}

void SetDestinations(ReceivedBytes& received, int64_t overwritten_min, Plan& plan) {
  for (TensorPlan& tensor : plan.tensors) {
    if (!tensor.IsInReply() || tensor.output_bytes() < overwritten_min) continue;
    const bool is_received = tensor.source.region == nullptr && tensor.typed.empty();
    if (!is_received || tensor.dtype != tensor.output_dtype || tensor.strides.has_value() ||
        tensor.output_strides.has_value()) {
      continue;
    }
    for (const std::string_view fragment : tensor.input.fragments) {
      tensor.overwritten.push_back(received.Overwritable(fragment));
    }
    if (absl::c_linear_search(tensor.overwritten, nullptr)) tensor.overwritten.clear();
  }
}

}  // namespace rope::server
