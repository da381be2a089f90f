#include "server/request/region_resolver.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "proto/wire/message_split.h"
#include "server/error.h"
#include "server/request/array_reader.h"

namespace rope::server {

// The arrays of one request, one after the other.
class RegionResolver::Reader {
 public:
  Reader(const RegionResolver& io, Request& request) : io_(io), request_(request) {}

  // The tensors of a request that was recognised: no other array of it lies in a region.
  absl::Status ReadRecognised() {
    const std::vector<std::optional<int64_t>>& region_bytes = request_.prepared->region_bytes;
    auto span = request_.spans.begin();
    for (size_t i = 0; i < region_bytes.size(); ++i) {
      if (!region_bytes[i].has_value()) continue;
      span = std::find_if(span, request_.spans.end(), [](const auto& s) { return !s.is_output; });
      ROPE_CHECK(span != request_.spans.end());
      RegionPart part = {nullptr, span->region_id, span->offset, *region_bytes[i]};
      ++span;
      const std::string field = absl::StrCat("tensors[", i, "].array.region");
      ROPE_ASSIGN_OR_RETURN(part.region, io_.regions_.Find(request_.session, part.id, field));
      ROPE_ASSIGN_OR_RETURN(proto::FragmentedBytes payload, PayloadOf(part, field));
      request_.split.payloads.push_back(std::move(payload));
      request_.inputs.resize(region_bytes.size());
      request_.inputs[i] = std::move(part);
    }
    return absl::OkStatus();
  }

  absl::Status Read() {
    v1::RotateRequest& message = request_.parsed->message;
    for (int i = 0; i < message.tensors_size(); ++i) {
      v1::Tensor& tensor = *message.mutable_tensors(i);
      if (tensor.array().has_region()) {
        const std::string path = absl::StrCat("tensors[", i, "].array");
        ROPE_ASSIGN_OR_RETURN(RegionPart part, Take(*tensor.mutable_array(), path));
        request_.inputs.resize(static_cast<size_t>(message.tensors_size()));
        request_.inputs[static_cast<size_t>(i)] = std::move(part);
      }
      if (tensor.norm().weight().has_region()) {
        ROPE_RETURN_IF_ERROR(ReadSmall(*tensor.mutable_norm()->mutable_weight(),
                                       absl::StrCat("tensors[", i, "].norm.weight")));
      }
    }
    if (message.has_positions()) {
      ROPE_RETURN_IF_ERROR(ReadPositions(*message.mutable_positions(), "positions"));
    }
    if (message.has_reposition() && message.reposition().has_from()) {
      ROPE_RETURN_IF_ERROR(
          ReadPositions(*message.mutable_reposition()->mutable_from(), "reposition.from"));
    }
    if (!message.has_rows()) return absl::OkStatus();
    v1::Rows& rows = *message.mutable_rows();
    if (rows.angles().has_region()) {
      ROPE_RETURN_IF_ERROR(ReadSmall(*rows.mutable_angles(), "rows.angles"));
    }
    if (rows.cos().has_region()) {
      ROPE_RETURN_IF_ERROR(ReadSmall(*rows.mutable_cos(), "rows.cos"));
    }
    if (rows.sin().has_region()) {
      ROPE_RETURN_IF_ERROR(ReadSmall(*rows.mutable_sin(), "rows.sin"));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ReadPositions(v1::Positions& positions, absl::string_view path) {
    if (positions.starts().has_region()) {
      ROPE_RETURN_IF_ERROR(ReadSmall(*positions.mutable_starts(), absl::StrCat(path, ".starts")));
    }
    if (positions.position_ids().has_region()) {
      ROPE_RETURN_IF_ERROR(
          ReadSmall(*positions.mutable_position_ids(), absl::StrCat(path, ".position_ids")));
    }
    if (positions.cu_seqlens().has_region()) {
      ROPE_RETURN_IF_ERROR(
          ReadSmall(*positions.mutable_cu_seqlens(), absl::StrCat(path, ".cu_seqlens")));
    }
    return absl::OkStatus();
  }

  // Validation copies these before it looks at them; the request need not know where they were.
  absl::Status ReadSmall(v1::Array& array, const std::string& path) {
    ROPE_ASSIGN_OR_RETURN(const RegionPart part, Take(array, path));
    request_.held_regions.push_back(part.region);
    return absl::OkStatus();
  }

  // Turns the array's region into a payload.
  absl::StatusOr<RegionPart> Take(v1::Array& array, const std::string& path) {
    if (proto::HasPayload(array) || array.numbers_size() > 0) {
      return InvalidField(path, "a region beside raw or numbers", "exactly one of them");
    }
    const std::string field = absl::StrCat(path, ".region");
    RegionPart part = {nullptr, array.region().region_id(), array.region().offset(), 0};
    ROPE_ASSIGN_OR_RETURN(part.region, io_.regions_.Find(request_.session, part.id, field));
    ROPE_ASSIGN_OR_RETURN(part.bytes, ExtentBytes(array, path));
    ROPE_ASSIGN_OR_RETURN(proto::FragmentedBytes payload, PayloadOf(part, field));
    proto::AttachPayload(std::move(payload), array, request_.split);
    array.clear_region();
    return part;
  }

  // The elements of a part, whose region was found.
  absl::StatusOr<proto::FragmentedBytes> PayloadOf(const RegionPart& part,
                                                   absl::string_view field) {
    ROPE_RETURN_IF_ERROR(
        part.region->CheckSpan(part.offset, static_cast<uint64_t>(part.bytes), field));
    ROPE_ASSIGN_OR_RETURN(const char* const bytes, BytesOf(part, field));
    proto::FragmentedBytes payload;
    payload.bytes = part.bytes;
    if (part.bytes > 0) payload.fragments.emplace_back(bytes, static_cast<size_t>(part.bytes));
    return payload;
  }

  // Where the bytes of a part are, or a copy of them.
  absl::StatusOr<const char*> BytesOf(const RegionPart& part, absl::string_view field) {
    if (const char* const mapped = part.mapped(); mapped != nullptr) return mapped;
    if (part.bytes > io_.copied_bytes_max_ - copied_) {
      return MakeError(Reason::kLimitExceeded, field,
                       absl::StrCat(part.bytes, " bytes to copy beside ", copied_),
                       absl::StrCat("at most ", io_.copied_bytes_max_, " (--max_message_bytes)"));
    }
    ROPE_RETURN_IF_ERROR(request_.permit.Grow(part.bytes, field));
    copied_ += part.bytes;
    PooledBuffer& copy = request_.region_copies.emplace_back(io_.pool_.Allocate(part.bytes));
    if (copy.size() != part.bytes) return OutOfMemory();
    const absl::Status read =
        part.region->Read(part.offset, {copy.data(), static_cast<size_t>(part.bytes)});
    return read.ok() ? absl::StatusOr<const char*>(copy.data()) : proto::WithField(field, read);
  }

  const RegionResolver& io_;
  Request& request_;
  int64_t copied_ = 0;
};

namespace {

bool Overlap(const RegionPart& a, const RegionPart& b) {
  if (a.region != b.region || a.bytes == 0 || b.bytes == 0) return false;
  return a.offset < b.offset + static_cast<uint64_t>(b.bytes) &&
         b.offset < a.offset + static_cast<uint64_t>(a.bytes);
}

LayoutStrides PackedStrides(const Layout& layout) {
  return *StridesInOrder(layout.letters, layout, "layout");
}

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

// Whether every element has a place of its own: each axis steps past all that is inside it.
bool EachHasItsPlace(const Layout& layout, const LayoutStrides& strides) {
  std::vector<std::pair<int64_t, int64_t>> axes = {{strides.channel, layout.head_dim},
                                                   {strides.head, layout.heads}};
  for (size_t i = 0; i < layout.token_axes.size(); ++i) {
    axes.emplace_back(strides.token_axes[i], layout.token_axes[i].length);
  }
  std::sort(axes.begin(), axes.end());
  int64_t inside = 1;
  for (const auto& [stride, length] : axes) {
    if (length <= 1) continue;
    if (stride < inside) return false;
    inside += (length - 1) * stride;
  }
  return true;
}

absl::Status CheckStrides(const TensorPlan& tensor, const std::string& field) {
  const LayoutStrides& strides = *tensor.output_strides;
  if (strides.extent == 0) return absl::OkStatus();
  if (strides.channel != 1 && tensor.layout.head_dim > 1) {
    return InvalidField(field, absl::StrCat(strides.channel, " for D"), "1");
  }
  if (EachHasItsPlace(tensor.layout, strides)) return absl::OkStatus();
  return InvalidField(field, "elements that share a place", "one for each");
}

// Bytes from the first element of the output to the end of the last.
int64_t PlaceBytes(const TensorPlan& tensor) {
  const int64_t extent =
      tensor.output_strides.has_value() ? tensor.output_strides->extent : tensor.elements();
  return extent * kernels::ElementBytes(tensor.output_dtype);
}

absl::Status PlaceOnInput(const Request& request, size_t index, TensorPlan& tensor) {
  const std::string path = absl::StrCat("tensors[", index, "]");
  if (request.inputs.empty() || request.inputs[index].region == nullptr) {
    return InvalidField("output.in_place", absl::StrCat(path, " outside a region"),
                        "array.region for each tensor");
  }
  if (tensor.output_dtype != tensor.dtype) {
    return InvalidField("output.in_place", "another output.dtype than that of " + path, "the same");
  }
  if (tensor.output_letters != tensor.layout.letters) {
    return InvalidField("output.in_place", "another layout than that of " + path, "the same");
  }
  tensor.place = request.inputs[index];
  tensor.output_strides = tensor.strides;
  return tensor.strides.has_value() ? CheckStrides(tensor, path + ".array.strides")
                                    : absl::OkStatus();
}

// What is copied to a POSIX object comes from packed memory, however far apart it goes.
void PackWhatIsCopied(std::vector<TensorPlan>& tensors) {
  for (TensorPlan& tensor : tensors) {
    const bool copied = tensor.place.region != nullptr && tensor.place.mapped() == nullptr;
    if (!copied || !tensor.output_strides.has_value()) continue;
    tensor.store_strides = std::exchange(tensor.output_strides, std::nullopt);
  }
}

// Copies to a region, bytes that follow each other there at once.
class RunWriter {
 public:
  explicit RunWriter(const RegionPart& place) : place_(place) {}

  absl::Status Add(int64_t offset, const char* bytes, int64_t count) {
    if (bytes == bytes_ + count_ && offset == offset_ + count_) {
      count_ += count;
      return absl::OkStatus();
    }
    ROPE_RETURN_IF_ERROR(Flush());
    offset_ = offset;
    bytes_ = bytes;
    count_ = count;
    return absl::OkStatus();
  }

  absl::Status Flush() {
    if (count_ == 0) return absl::OkStatus();
    return place_.region->Write(place_.offset + static_cast<uint64_t>(offset_),
                                {bytes_, static_cast<size_t>(std::exchange(count_, 0))});
  }

 private:
  const RegionPart& place_;
  int64_t offset_ = 0;
  const char* bytes_ = nullptr;
  int64_t count_ = 0;
};

absl::Status StoreRows(const TensorPlan& tensor, const char* rows) {
  const Layout& layout = tensor.layout;
  const LayoutStrides& strides = *tensor.store_strides;
  const int64_t element_bytes = kernels::ElementBytes(tensor.output_dtype);
  const int64_t row_bytes = layout.head_dim * element_bytes;
  RunWriter writer(tensor.place);
  for (int64_t token = 0; token < layout.tokens(); ++token) {
    const int64_t offset = OffsetOf(token, layout, strides);
    for (int64_t head = 0; head < layout.heads; ++head) {
      ROPE_RETURN_IF_ERROR(writer.Add((offset + head * strides.head) * element_bytes,
                                      rows + RowOf(token, head, layout) * row_bytes, row_bytes));
    }
  }
  return writer.Flush();
}

using OutputSpans = absl::InlinedVector<proto::RequestOutline::Span, 2>;

// output.regions, of a request that was recognised as its own message says.
OutputSpans OutputSpansOf(const Request& request) {
  OutputSpans spans;
  std::ranges::copy_if(request.spans, std::back_inserter(spans),
                       [](auto& s) { return s.is_output; });
  if (request.prepared != nullptr) return spans;
  for (const v1::RegionSpan& span : request.asked().output().regions()) {
    spans.push_back({.is_output = true, .region_id = span.region_id(), .offset = span.offset()});
  }
  return spans;
}

// Whether the output takes exactly the place of the input.
bool InPlace(const TensorPlan& tensor, const RegionPart& input) {
  if (tensor.place.offset != input.offset || tensor.dtype != tensor.output_dtype) return false;
  const LayoutStrides packed = PackedStrides(tensor.layout);
  return tensor.strides.value_or(packed) == tensor.output_strides.value_or(packed);
}

absl::Status CheckOverlaps(Request& request) {
  std::vector<TensorPlan>& tensors = request.plan.tensors;
  const auto name = [](size_t i) { return absl::StrCat("output of tensors[", i, "]"); };
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].place.region == nullptr) continue;
    for (size_t other = 0; other < i; ++other) {
      if (!Overlap(tensors[i].place, tensors[other].place)) continue;
      return InvalidField(name(i), absl::StrCat("a place that overlaps the ", name(other)),
                          "one of its own");
    }
    for (size_t j = 0; j < request.inputs.size(); ++j) {
      if (!Overlap(tensors[i].place, request.inputs[j])) continue;
      if (i == j && InPlace(tensors[i], request.inputs[j])) {
        request.in_place = true;
        continue;
      }
      return InvalidField(name(i), absl::StrCat("a place that overlaps the input tensors[", j, "]"),
                          "exactly that of its own input, or none of any");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RegionResolver::Read(Request& request) const {
  Reader reader(*this, request);
  return request.prepared != nullptr ? reader.ReadRecognised() : reader.Read();
}

absl::Status RegionResolver::Place(Request& request) const {
  const v1::Output& output = request.asked().output();
  std::vector<TensorPlan>& tensors = request.plan.tensors;
  const int count = static_cast<int>(tensors.size());
  if (output.regions_size() == 0) {
    if (output.strides_size() > 0) {
      return InvalidField("output.strides", "strides without output.regions", "both or none");
    }
    if (!output.in_place()) return absl::OkStatus();
    for (size_t i = 0; i < tensors.size(); ++i) {
      ROPE_RETURN_IF_ERROR(PlaceOnInput(request, i, tensors[i]));
    }
    ROPE_RETURN_IF_ERROR(CheckOverlaps(request));
    PackWhatIsCopied(tensors);
    return absl::OkStatus();
  }
  if (output.in_place()) return InvalidField("output", "in_place and regions", "one of them");
  const bool wrong_regions = output.regions_size() != count;
  if (wrong_regions || (output.strides_size() > 0 && output.strides_size() != count)) {
    return InvalidField(wrong_regions ? "output.regions" : "output.strides",
                        absl::StrCat(wrong_regions ? output.regions_size() : output.strides_size()),
                        absl::StrCat(count, ", one for each tensor"));
  }
  const OutputSpans spans = OutputSpansOf(request);
  for (int i = 0; i < count; ++i) {
    TensorPlan& tensor = tensors[static_cast<size_t>(i)];
    if (i < output.strides_size() && output.strides(i).values_size() > 0) {
      const std::string field = absl::StrCat("output.strides[", i, "]");
      ROPE_ASSIGN_OR_RETURN(tensor.output_strides,
                            ReadOutputStrides(output.strides(i), tensor, field));
      ROPE_RETURN_IF_ERROR(CheckStrides(tensor, field));
    }
    const std::string field = absl::StrCat("output.regions[", i, "]");
    RegionPart& place = tensor.place;
    place.id = spans[static_cast<size_t>(i)].region_id;
    place.offset = spans[static_cast<size_t>(i)].offset;
    place.bytes = PlaceBytes(tensor);
    ROPE_ASSIGN_OR_RETURN(place.region, regions_.Find(request.session, place.id, field));
    ROPE_RETURN_IF_ERROR(
        place.region->CheckSpan(place.offset, static_cast<uint64_t>(place.bytes), field));
  }
  ROPE_RETURN_IF_ERROR(CheckOverlaps(request));
  PackWhatIsCopied(tensors);
  return absl::OkStatus();
}

absl::Status StoreOutputs(const Request& request) {
  for (size_t i = 0; i < request.plan.tensors.size(); ++i) {
    const TensorPlan& tensor = request.plan.tensors[i];
    const RegionPart& place = tensor.place;
    if (place.region == nullptr || place.mapped() != nullptr || place.bytes == 0) continue;
    const char* const bytes = request.outputs[i].data();
    ROPE_RETURN_IF_ERROR(
        tensor.store_strides.has_value()
            ? StoreRows(tensor, bytes)
            : place.region->Write(place.offset, {bytes, static_cast<size_t>(place.bytes)}));
  }
  return absl::OkStatus();
}

}  // namespace rope::server
