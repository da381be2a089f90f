#include "client/codec/messages.h"

#include <google/protobuf/util/json_util.h>
#include <google/protobuf/wrappers.pb.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/codec/message_call.h"
#include "client/error.h"
#include "kernels/status_macros.h"
#include "proto/error.h"
#include "proto/wire/rope_config.h"

namespace rope::client {
namespace {

// By DType.
constexpr v1::DType kDTypes[] = {v1::DTYPE_FP32, v1::DTYPE_FP16,     v1::DTYPE_BF16,
                                 v1::DTYPE_FP64, v1::DTYPE_FP8_E4M3, v1::DTYPE_FP8_E5M2};

// By Operation.
constexpr v1::Operation kOperations[] = {v1::OPERATION_ROTATE, v1::OPERATION_INVERSE,
                                         v1::OPERATION_BACKWARD, v1::OPERATION_ADD_SINUSOIDAL,
                                         v1::OPERATION_REPOSITION};

template <typename T, typename Field>
std::vector<T> ToVector(const Field& field) {
  return std::vector<T>(field.begin(), field.end());
}

// An unknown value is unset.
std::optional<Pairing> FromMessage(v1::Pairing pairing) {
  const auto read = proto::ReadPairing(pairing);
  return read.ok() ? *read : std::nullopt;
}

// An empty shape is one axis.
void SetIntegers(const std::vector<int64_t>& values, v1::Array& array,
                 const std::vector<int64_t>& shape = {}) {
  array.set_dtype(v1::DTYPE_INT64);
  SetShape(shape, array);
  if (shape.empty()) array.add_shape(static_cast<int64_t>(values.size()));
  array.set_raw(values.data(), values.size() * sizeof(int64_t));
}

// The error of alternatives of which more than one is given. `given` pairs each alternative's name
// with whether it is set.
Status CheckOneOf(absl::string_view field, absl::Span<const std::pair<const char*, bool>> given) {
  absl::InlinedVector<absl::string_view, 4> set;
  absl::InlinedVector<absl::string_view, 4> all;
  for (const auto& [name, is_set] : given) {
    all.push_back(name);
    if (is_set) set.push_back(name);
  }
  if (set.size() < 2) return {};
  return InvalidField(field, absl::StrJoin(set, " and "),
                      absl::StrCat("exactly one of ", absl::StrJoin(all, ", ")));
}

AttentionScale FromMessage(const v1::AttentionScale& message) {
  return {.softmax = message.softmax(),
          .logits = message.logits(),
          .temperature_beta = message.temperature_beta(),
          .temperature_length = message.temperature_length(),
          .temperature_offset = message.temperature_offset()};
}

Status SetPositions(const TablePositions& positions, absl::string_view field,
                    v1::TablePositions& message) {
  if (positions.position_ids.empty()) {
    message.mutable_range()->set_begin(positions.begin);
    message.mutable_range()->set_end(positions.end);
    return {};
  }
  if (positions.begin != 0 || positions.end != 0) {
    return InvalidField(field, "a range and position_ids", "exactly one of them");
  }
  SetIntegers(positions.position_ids, *message.mutable_position_ids());
  return {};
}

// Errors begin with `field`: the spec has two sources. REQUIRES: `message` is empty.
Status SetRope(const RopeSpec& spec, absl::string_view field, v1::RopeSpec& message) {
  ROPE_RETURN_IF_ERROR(CheckOneOf(field, {{"model", !spec.model.empty()},
                                          {"config_id", !spec.config_id.empty()},
                                          {"config", spec.config.has_value()},
                                          {"config_json", !spec.config_json.empty()}}));
  if (!spec.model.empty()) message.set_model(spec.model);
  if (!spec.config_id.empty()) message.set_config_id(spec.config_id);
  if (!spec.config_json.empty()) message.set_config_json(spec.config_json);
  std::optional<Precision> precision = spec.precision;
  if (spec.config.has_value()) {
    *message.mutable_config() = proto::WriteRopeConfig(*spec.config);
    if (!precision.has_value() && spec.config->precision != Precision::kExact) {
      precision = spec.config->precision;
    }
  }
  if (spec.layer.has_value()) message.set_layer(*spec.layer);
  message.set_layer_type(spec.layer_type);
  if (spec.first_layer.has_value()) message.set_first_layer(*spec.first_layer);
  message.set_sub_config(spec.sub_config);
  message.set_pairing(proto::WritePairing(spec.pairing));
  message.set_compat(proto::WriteCompat(spec.compat));
  message.set_precision(proto::WritePrecision(precision));
  return {};
}

Status SetReposition(const TableReposition& reposition, v1::TableReposition& message) {
  ROPE_RETURN_IF_ERROR(SetPositions(reposition.from, "reposition.from", *message.mutable_from()));
  if (reposition.from_seq_len.has_value()) message.set_from_seq_len(*reposition.from_seq_len);
  if (!reposition.from_rope.has_value()) return {};
  return SetRope(*reposition.from_rope, "reposition.from_rope", *message.mutable_from_rope());
}

Status TooLarge(const char* field) {
  return InvalidField(
      field, absl::StrCat("more than ", std::numeric_limits<int64_t>::max(), " bytes"), "fewer");
}

// Number of elements from the first to the last, inclusive. REQUIRES: one stride per axis.
Result<int64_t> ExtentOf(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                         const char* field) {
  int64_t elements = 1;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (strides[axis] < 0) {
      return InvalidField(absl::StrCat(field, "[", axis, "]"), strides[axis], "a distance >= 0");
    }
    int64_t reach = 0;
    if (__builtin_mul_overflow(shape[axis] - 1, strides[axis], &reach) ||
        __builtin_add_overflow(elements, reach, &elements)) {
      return TooLarge(field);
    }
  }
  return elements;
}

Result<int64_t> CountOf(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t length : shape) {
    if (__builtin_mul_overflow(elements, length, &elements)) return TooLarge("shape");
  }
  return elements;
}

// With any other number of strides than one per axis the array counts as packed: the server rejects
// such a request by field name, so the size does not matter.
Result<int64_t> BytesOf(DType dtype, const std::vector<int64_t>& shape,
                        const std::vector<int64_t>& strides = {}, const char* field = "strides") {
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] >= 0) continue;
    return InvalidField(absl::StrCat("shape[", axis, "]"), shape[axis], "a length >= 0");
  }
  if (std::ranges::find(shape, 0) != shape.end()) return int64_t{0};
  const bool is_packed = strides.size() != shape.size();
  const Result<int64_t> elements = is_packed ? CountOf(shape) : ExtentOf(shape, strides, field);
  if (!elements.ok()) return elements;
  int64_t bytes = 0;
  if (__builtin_mul_overflow(*elements, ElementBytes(dtype), &bytes)) return TooLarge("shape");
  return bytes;
}

// Sets `table` if the message has the array. False: the array does not fit its shape.
bool ReadTable(bool has_array, const v1::Array& array, TableArray& table) {
  if (!has_array) return true;
  const std::optional<DType> dtype = DTypeNumbered(array.dtype());
  if (!dtype.has_value()) return false;
  table.dtype = *dtype;
  table.shape.assign(array.shape().begin(), array.shape().end());
  const Result<int64_t> bytes = BytesOf(table.dtype, table.shape);
  if (!bytes.ok() || *bytes != static_cast<int64_t>(array.raw().size())) return false;
  const auto* const raw = reinterpret_cast<const std::byte*>(array.raw().data());
  table.data.assign(raw, raw + *bytes);
  return true;
}

Status CheckMemory(const void* data, int64_t bytes) {
  if (bytes == 0 || data != nullptr) return {};
  return InvalidField("data", "null", absl::StrCat(bytes, " bytes"));
}

// `view`: an ArrayView or TensorView.
template <typename View>
void SetArrayType(const View& view, v1::Array& array) {
  array.set_dtype(ToMessage(view.dtype));
  SetShape(view.shape, array);
  array.mutable_strides()->Assign(view.strides.begin(), view.strides.end());
}

// The shape of `count` pages, or slots, for the tokens of `view`. The server rejects a wrong count.
std::vector<int64_t> SlotShape(const TensorView& view, int64_t count, bool is_pages) {
  const auto length = [&view](char axis) {
    const size_t at = view.layout.find(axis);
    return at < view.shape.size() ? view.shape[at] : 1;
  };
  const auto has = [&view](char axis) { return view.layout.find(axis) != std::string::npos; };
  const int64_t sequences = length('B');
  const bool is_flat = is_pages ? has('T') : !has('B');
  if (is_flat || sequences < 1 || count % sequences != 0) return {count};
  if (!is_pages && count / sequences != length('S')) return {count};
  return {sequences, count / sequences};
}

struct SlotArray {
  std::vector<int64_t> PagedTokens::*slots;
  v1::Array* (v1::PagedTokens::*mutable_array)();
};
constexpr SlotArray kSlotArrays[] = {
    {&PagedTokens::pages, &v1::PagedTokens::mutable_pages},
    {&PagedTokens::slots, &v1::PagedTokens::mutable_slots},
    {&PagedTokens::target_slots, &v1::PagedTokens::mutable_target_slots}};

// Reorders `shape` from the letters of `from` to those of `to`. Returns it unchanged if the letters
// differ: the server rejects such a request.
std::vector<int64_t> InOrder(const std::vector<int64_t>& shape, std::string_view from,
                             std::string_view to) {
  if (from.size() != shape.size() || to.size() != shape.size()) return shape;
  std::vector<int64_t> ordered;
  ordered.reserve(shape.size());
  for (const char letter : to) {
    const size_t axis = from.find(letter);
    if (axis == std::string_view::npos) return shape;
    ordered.push_back(shape[axis]);
  }
  return ordered;
}

// Whether every element has a place of its own: each axis steps past all that is inside it.
bool EachHasItsPlace(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  std::vector<std::pair<int64_t, int64_t>> axes;  // stride, length
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] > 1) axes.emplace_back(strides[i], shape[i]);
  }
  std::sort(axes.begin(), axes.end());
  int64_t inside = 1;
  for (const auto& [stride, length] : axes) {
    if (stride < inside) return false;
    inside += (length - 1) * stride;
  }
  return true;
}

// REQUIRES: `wanted` has the shape of the result.
Status CheckOutputStrides(const WantedTensor& wanted) {
  const std::vector<int64_t>& strides = wanted.strides;
  if (strides.size() != wanted.shape.size()) {
    return InvalidField("output_strides", absl::StrCat(strides.size(), " strides"),
                        absl::StrCat(wanted.shape.size(), ", one for each axis"));
  }
  if (wanted.bytes == 0) return {};
  if (wanted.shape.back() > 1 && strides.back() != 1) {
    return InvalidField("output_strides", absl::StrCat(strides.back(), " for D"), "1");
  }
  // ExtentOf has checked that nothing overflows.
  if (EachHasItsPlace(wanted.shape, strides)) return {};
  return InvalidField("output_strides", "elements that share a place", "one for each");
}

}  // namespace

v1::DType ToMessage(DType dtype) {
  return kDTypes[static_cast<size_t>(dtype)];
}

std::optional<DType> DTypeNumbered(v1::DType number) {
  const auto* const found = std::find(std::begin(kDTypes), std::end(kDTypes), number);
  if (found == std::end(kDTypes)) return std::nullopt;
  return static_cast<DType>(found - std::begin(kDTypes));
}

v1::Role ToMessage(Role role) {
  return role == Role::kQ ? v1::ROLE_Q : v1::ROLE_K;
}

Result<v1::DescribeRequest> ToMessage(const DescribeRequest& request) {
  v1::DescribeRequest message;
  ROPE_RETURN_IF_ERROR(SetRope(request.rope, "rope", *message.mutable_rope()));
  if (request.seq_len.has_value()) message.set_seq_len(*request.seq_len);
  message.mutable_positions()->Add(request.positions.begin(), request.positions.end());
  if (request.head_dim.has_value()) message.set_head_dim(*request.head_dim);
  if (request.dtype.has_value()) message.set_dtype(ToMessage(*request.dtype));
  message.set_sinusoidal(request.sinusoidal);
  return message;
}

Result<DescribeReply> FromMessage(const v1::DescribeResponse& message) {
  absl::StatusOr<RopeConfig> config = proto::ReadRopeConfig(message.config());
  if (!config.ok()) {
    const proto::ErrorParts parts = proto::PartsOf(config.status());
    return MakeError(Reason::kInternal, absl::StrCat("reply: config.", parts.field), parts.got,
                     parts.want);
  }
  DescribeReply reply;
  reply.config_id = message.config_id();
  reply.config = *std::move(config);
  if (message.precision() == v1::PRECISION_HF) reply.config.precision = Precision::kHf;
  reply.pairing = FromMessage(message.pairing());
  reply.channel_order = FromMessage(message.channel_order());
  reply.layer_type = message.layer_type();
  reply.rotates = message.rotates();
  reply.seq_len = message.seq_len();
  reply.depends_on_seq_len = message.depends_on_seq_len();
  reply.attention_factor = message.attention_factor();
  reply.inv_freq = ToVector<double>(message.inv_freq());
  reply.wavelengths = ToVector<double>(message.wavelengths());
  reply.warnings = ToVector<std::string>(message.warnings());
  for (const v1::Reading& reading : message.readings()) {
    reply.readings.push_back({.engine = reading.implementation(),
                              .version = reading.version(),
                              .executed = reading.executed(),
                              .difference = reading.difference(),
                              .attention_factor = reading.attention_factor(),
                              .inv_freq_max_relative = reading.inv_freq_max_relative()});
  }
  if (message.has_scale()) reply.scale = FromMessage(message.scale());
  for (const v1::ScaleReading& reading : message.scale_readings()) {
    reply.scale_readings.push_back({.engine = reading.implementation(),
                                    .version = reading.version(),
                                    .executed = reading.executed(),
                                    .difference = reading.difference(),
                                    .scale = FromMessage(reading.scale())});
  }
  if (message.has_ramp()) {
    reply.ramp = {.low_index = message.ramp().low_index(),
                  .high_index = message.ramp().high_index(),
                  .low_wavelength = message.ramp().low_wavelength(),
                  .high_wavelength = message.ramp().high_wavelength()};
  }
  for (const int scaling : message.scaling()) {
    reply.scaling.push_back(static_cast<FrequencyScaling>(scaling));
  }
  reply.float32_angle_error = message.float32_angle_error();
  reply.float32_angle_position = message.float32_angle_position();
  for (const v1::Row& row : message.rows()) {
    reply.rows.push_back({.position = row.position(),
                          .cos = ToVector<double>(row.cos()),
                          .sin = ToVector<double>(row.sin()),
                          .sinusoid = ToVector<double>(row.sinusoid())});
  }
  return reply;
}

// A HealthCheckRequest has the bytes of a BytesValue, and a HealthCheckResponse those of an
// Int32Value: one field with the number 1.
grpc::ByteBuffer HealthRequestOf(const std::string& service) {
  google::protobuf::BytesValue message;
  message.set_value(service);
  return BytesOf(message);
}

Result<ServingStatus> ServingStatusOf(const Result<grpc::ByteBuffer>& reply) {
  if (!reply.ok()) return reply.status();
  const auto number = MessageOf<google::protobuf::Int32Value>(reply);
  if (!number.ok()) {
    return MakeError(Reason::kInternal, "reply", "malformed bytes",
                     "grpc.health.v1.HealthCheckResponse");
  }
  if (number->value() == 1) return ServingStatus::kServing;  // as in grpc/health/v1/health.proto
  return number->value() == 2 ? ServingStatus::kNotServing : ServingStatus::kUnknown;
}

Result<v1::GetTablesRequest> ToMessage(const TablesRequest& request) {
  v1::GetTablesRequest message;
  ROPE_RETURN_IF_ERROR(SetRope(request.rope, "rope", *message.mutable_rope()));
  ROPE_RETURN_IF_ERROR(SetPositions(request.positions, "positions", *message.mutable_positions()));
  if (request.reposition.has_value()) {
    ROPE_RETURN_IF_ERROR(SetReposition(*request.reposition, *message.mutable_reposition()));
  }
  message.set_dtype(ToMessage(request.dtype));
  // The client's enumerators begin at 0, those of the schema at 1.
  message.set_layout(static_cast<v1::TableLayout>(static_cast<int>(request.layout) + 1));
  if (request.seq_len.has_value()) message.set_seq_len(*request.seq_len);
  if (request.head_dim.has_value()) message.set_head_dim(*request.head_dim);
  message.set_skip_attention_factor(request.skip_attention_factor);
  if (request.role.has_value()) message.set_role(ToMessage(*request.role));
  return message;
}

Result<TablesReply> FromMessage(const v1::GetTablesResponse& message) {
  TablesReply reply = {.config_id = message.config_id(),
                       .attention_factor = message.attention_factor(),
                       .attention_factor_applied = message.attention_factor_applied(),
                       .seq_len = message.seq_len(),
                       .depends_on_seq_len = message.depends_on_seq_len(),
                       .warnings = {message.warnings().begin(), message.warnings().end()}};
  if (ReadTable(message.has_table(), message.table(), reply.table) &&
      ReadTable(message.has_cos(), message.cos(), reply.cos) &&
      ReadTable(message.has_sin(), message.sin(), reply.sin)) {
    return reply;
  }
  return MakeError(Reason::kInternal, "reply", "an array without its elements", "a table");
}

Result<int64_t> ArrayBytes(const std::string& field, const ArrayView& view) {
  const Result<int64_t> bytes = BytesOf(view.dtype, view.shape, view.strides);
  if (!bytes.ok()) return Within(field, bytes.status());
  if (Status status = CheckMemory(view.data, *bytes); !status.ok()) return Within(field, status);
  return bytes;
}

Status SetArray(const std::string& field, const ArrayView& view, v1::Array& array) {
  ROPE_ASSIGN_OR_RETURN(const int64_t bytes, ArrayBytes(field, view));
  SetArrayType(view, array);
  array.set_raw(view.data, static_cast<size_t>(bytes));
  return {};
}

Status SetPositions(const Positions& positions, absl::string_view field, v1::Positions& message) {
  const bool on_device = positions.device_ids != nullptr;
  const bool has_ids =
      !positions.position_ids.empty() || (!on_device && !positions.position_ids_shape.empty());
  ROPE_RETURN_IF_ERROR(CheckOneOf(field, {{"start", positions.start.has_value()},
                                          {"starts", !positions.starts.empty()},
                                          {"position_ids", has_ids},
                                          {"device_ids", on_device}}));
  if (positions.start.has_value()) message.set_start(*positions.start);
  if (!positions.starts.empty()) SetIntegers(positions.starts, *message.mutable_starts());
  if (has_ids) {
    SetIntegers(positions.position_ids, *message.mutable_position_ids(),
                positions.position_ids_shape);
  }
  if (on_device) {
    const int32_t bytes = positions.device_id_bytes;
    if (bytes != 4 && bytes != 8) {
      return InvalidField(absl::StrCat(field, ".device_id_bytes"), bytes, "4 or 8");
    }
    v1::Array& ids = *message.mutable_position_ids();
    ids.set_dtype(bytes == 4 ? v1::DTYPE_INT32 : v1::DTYPE_INT64);
    SetShape(positions.position_ids_shape, ids);
  }
  if (!positions.cu_seqlens.empty()) {
    SetIntegers(positions.cu_seqlens, *message.mutable_cu_seqlens());
  }
  message.mutable_seq_lens()->Add(positions.seq_lens.begin(), positions.seq_lens.end());
  if (positions.cp_size.has_value()) message.set_cp_size(*positions.cp_size);
  if (positions.cp_rank.has_value()) message.set_cp_rank(*positions.cp_rank);
  return {};
}

Status SetValues(const RotateRequest& request, v1::RotateRequest& head) {
  if (!request.request_id.empty()) head.set_request_id(request.request_id);
  if (!request.labels.empty()) {
    head.mutable_labels()->insert(request.labels.begin(), request.labels.end());
  }
  ROPE_RETURN_IF_ERROR(SetPositions(request.positions, "positions", *head.mutable_positions()));
  if (head.positions().ByteSizeLong() == 0) head.clear_positions();
  if (!request.reposition.has_value()) return {};
  return SetReposition(*request.reposition, *head.mutable_reposition());
}

Status SetReposition(const Reposition& reposition, v1::Reposition& message) {
  const bool has_by = !reposition.by.empty() || !reposition.by_shape.empty();
  if (has_by) SetIntegers(reposition.by, *message.mutable_by(), reposition.by_shape);
  Status status = SetPositions(reposition.from, "reposition.from", *message.mutable_from());
  if (has_by && message.from().ByteSizeLong() == 0) message.clear_from();
  return status;
}

Status SetConstants(const RotateRequest& request, v1::RotateRequest& head) {
  ROPE_RETURN_IF_ERROR(SetRope(request.rope, "rope", *head.mutable_rope()));
  head.set_operation(kOperations[static_cast<size_t>(request.operation)]);
  head.set_skip_attention_factor(request.skip_attention_factor);
  if (request.reposition.has_value()) {
    v1::Reposition& reposition = *head.mutable_reposition();
    if (const auto& rope = request.reposition->from_rope; rope.has_value()) {
      ROPE_RETURN_IF_ERROR(SetRope(*rope, "reposition.from_rope", *reposition.mutable_from_rope()));
    }
  }
  if (request.rows.has_value()) {
    v1::Rows& rows = *head.mutable_rows();
    for (const RowArray& each : kRowArrays) {
      const std::optional<ArrayView>& view = *request.rows.*each.view;
      if (view.has_value()) SetArrayType(*view, *(rows.*each.mutable_array)());
    }
  }
  if (request.output_dtype.has_value()) {
    head.mutable_output()->set_dtype(ToMessage(*request.output_dtype));
  }
  if (request.channel_order.has_value()) {
    head.mutable_output()->set_channel_order(proto::WritePairing(request.channel_order));
  }
  const auto is_alike = [](const TensorView& view) { return view.output_layout.empty(); };
  if (std::ranges::all_of(request.tensors, is_alike)) return {};
  for (const TensorView& view : request.tensors) {
    head.mutable_output()->add_layouts(view.output_layout.empty() ? view.layout
                                                                  : view.output_layout);
  }
  return {};
}

std::vector<int64_t> StridesOf(const std::vector<int64_t>& shape,
                               const std::vector<int64_t>& strides) {
  if (!strides.empty()) return strides;
  std::vector<int64_t> packed(shape.size(), 1);
  for (size_t i = shape.size(); i > 1; --i) {
    static_cast<void>(__builtin_mul_overflow(packed[i - 1], shape[i - 1], &packed[i - 2]));
  }
  return packed;
}

Result<int64_t> TensorBytes(const TensorView& view, size_t index) {
  if (view.paged.has_value() && view.paged->pool_elements < 1) {
    return InvalidField(absl::StrCat("tensors[", index, "].paged_tokens.pool_elements"),
                        view.paged->pool_elements, "those of the whole pool");
  }
  const Result<int64_t> bytes = view.paged.has_value()
                                    ? BytesOf(view.dtype, {view.paged->pool_elements})
                                    : BytesOf(view.dtype, view.shape, view.strides);
  if (!bytes.ok()) return Within(absl::StrCat("tensors[", index, "].array"), bytes.status());
  return bytes;
}

Status CheckData(const void* data, int64_t bytes, size_t index) {
  const Status status = CheckMemory(data, bytes);
  return status.ok() ? status : Within(absl::StrCat("tensors[", index, "]"), status);
}

void SetShape(const std::vector<int64_t>& shape, v1::Array& array) {
  array.mutable_shape()->Assign(shape.begin(), shape.end());
}

void SetSlots(const TensorView& view, const std::optional<PagedTokens>& paged,
              const SlotParts& parts, v1::Tensor& head) {
  if (!paged.has_value()) return;
  v1::PagedTokens& message = *head.mutable_paged_tokens();
  for (const SlotArray& each : kSlotArrays) {
    const std::vector<int64_t>& slots = *paged.*each.slots;
    if (slots.empty()) continue;
    v1::Array& array = *(message.*each.mutable_array)();
    if (parts.dtype) array.set_dtype(v1::DTYPE_INT64);
    if (parts.shape) {
      const bool is_pages = each.slots == &PagedTokens::pages;
      SetShape(SlotShape(view, static_cast<int64_t>(slots.size()), is_pages), array);
    }
    if (parts.elements) array.set_raw(slots.data(), slots.size() * sizeof(int64_t));
  }
}

Status SetTensor(const TensorView& view, size_t index, v1::Tensor& head) {
  if (view.head_ranges.empty()) head.set_role(ToMessage(view.role));
  for (const HeadRange& range : view.head_ranges) {
    v1::HeadRange& item = *head.add_head_ranges();
    if (range.role.has_value()) item.set_role(ToMessage(*range.role));
    item.set_begin(range.begin);
    item.set_end(range.end);
  }
  head.set_layout(view.layout);
  if (view.norm.has_value()) {
    head.mutable_norm()->set_eps(view.norm->eps);
    ROPE_RETURN_IF_ERROR(SetArray(absl::StrCat("tensors[", index, "].norm.weight"),
                                  view.norm->weight, *head.mutable_norm()->mutable_weight()));
  }
  if (view.scale.has_value()) head.set_scale(*view.scale);
  if (view.llama4_scaling_beta.has_value()) {
    head.set_llama4_scaling_beta(*view.llama4_scaling_beta);
  }
  if (view.fp8_scale.has_value()) head.add_fp8_scales(*view.fp8_scale);
  if (view.rotary_offset.has_value()) head.set_rotary_offset(*view.rotary_offset);
  if (view.paged.has_value()) {
    v1::PagedTokens& paged = *head.mutable_paged_tokens();
    paged.set_block_size(view.paged->block_size);
    paged.set_page_stride(view.paged->page_stride);
    paged.set_token_stride(view.paged->token_stride);
    paged.set_head_stride(view.paged->head_stride);
    paged.set_layer_stride(view.paged->layer_stride);
    paged.set_pool_elements(view.paged->pool_elements);
    SetSlots(view, view.paged, {.dtype = true, .shape = true}, head);
  }
  SetArrayType(view, *head.mutable_array());
  return {};
}

Result<WantedTensor> WantedOf(const TensorView& view, std::optional<DType> output_dtype,
                              size_t index) {
  WantedTensor wanted{.role = view.role,
                      .layout = view.output_layout.empty() ? view.layout : view.output_layout,
                      .dtype = output_dtype.value_or(view.dtype),
                      .output = view.output};
  wanted.shape = InOrder(view.shape, view.layout, wanted.layout);
  const Result<int64_t> bytes = BytesOf(wanted.dtype, wanted.shape);
  // Strides of 0 can describe a result that is too large to exist; the server rejects it.
  wanted.bytes = bytes.ok() ? *bytes : std::numeric_limits<int64_t>::max();
  wanted.output_bytes = wanted.bytes;
  if (view.paged.has_value()) {
    const Result<int64_t> pool = BytesOf(wanted.dtype, {view.paged->pool_elements});
    if (!pool.ok()) return Within(absl::StrCat("tensors[", index, "].output"), pool.status());
    wanted.output_bytes = *pool;
  }
  if (view.output_strides.empty()) return wanted;
  const std::string path = absl::StrCat("tensors[", index, "]");
  const Result<int64_t> extent =
      BytesOf(wanted.dtype, wanted.shape, view.output_strides, "output_strides");
  if (!extent.ok()) return Within(path, extent.status());
  wanted.output_bytes = *extent;
  wanted.strides = view.output_strides;
  if (Status status = CheckOutputStrides(wanted); !status.ok()) return Within(path, status);
  return wanted;
}

Status FromJson(const std::string& json, google::protobuf::Message& message) {
  const auto status = google::protobuf::util::JsonStringToMessage(json, &message);
  if (status.ok()) return {};
  return InvalidField("request", std::string(status.message()),
                      absl::StrCat("the JSON of ", message.GetTypeName()));
}

Result<std::string> ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions print;
  print.add_whitespace = true;
  print.preserve_proto_field_names = true;
  print.always_print_primitive_fields = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json, print).ok()) {
    return Status(StatusCode::kInternal, "reply: got text that is not UTF-8");
  }
  return json;
}

}  // namespace rope::client
