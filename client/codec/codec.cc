#include "client/codec/codec.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/codec/messages.h"
#include "client/codec/placement.h"
#include "client/codec/preparation.h"
#include "client/error.h"
#include "kernels/status_macros.h"
#include "proto/error.h"
#include "proto/ipc/ring.h"
#include "proto/wire/message_join.h"

namespace rope::client {
namespace {

Status Unreadable(absl::string_view field, const absl::AlphaNum& got,
                  const absl::AlphaNum& want = "") {
  return MakeError(Reason::kInternal, field.empty() ? "reply" : absl::StrCat("reply: ", field), got,
                   want);
}

// Checks that a returned tensor has the shape, type and number of bytes that the request implies.
Status CheckTensor(const v1::Array& array, const proto::SplitMessage& message,
                   const WantedTensor& wanted, size_t index) {
  const bool same_shape =
      array.shape_size() == static_cast<int>(wanted.shape.size()) &&
      std::equal(wanted.shape.begin(), wanted.shape.end(), array.shape().begin());
  if (!same_shape || array.dtype() != ToMessage(wanted.dtype)) {
    return Unreadable(absl::StrCat("tensors[", index, "].array"), "another shape or type",
                      "those of the request");
  }
  const int64_t got = proto::HasPayload(array) ? proto::PayloadOf(array, message).bytes : 0;
  const int64_t want = wanted.in_region ? 0 : wanted.bytes;
  if (got == want) return {};
  return Unreadable(absl::StrCat("tensors[", index, "].array.raw"), absl::StrCat(got, " bytes"),
                    want);
}

// Copies packed elements to places with the strides of `tensor`, a row of D at a time.
void CopyRows(const std::byte* packed, const RotatedTensor& tensor, std::byte* output) {
  const int64_t element_bytes = ElementBytes(tensor.dtype);
  const int64_t row_bytes = tensor.shape.back() * element_bytes;
  const size_t axes = tensor.shape.size() - 1;
  std::vector<int64_t> index(axes, 0);
  for (int64_t done = 0; done < tensor.bytes; done += row_bytes) {
    int64_t offset = 0;
    for (size_t i = 0; i < axes; ++i) offset += index[i] * tensor.strides[i];
    std::memcpy(output + offset * element_bytes, packed + done, static_cast<size_t>(row_bytes));
    for (size_t i = axes; i > 0 && ++index[i - 1] == tensor.shape[i - 1]; --i) index[i - 1] = 0;
  }
}

RotatedTensor ReadTensorInto(const v1::Tensor& head, const proto::SplitMessage& message,
                             WantedTensor wanted, OutputPool& pool) {
  void* out = wanted.output;
  const void* const staged = wanted.staged;
  RotatedTensor tensor = ResultOf(std::move(wanted));
  if (head.fp8_scales_size() > 0) tensor.fp8_scale = head.fp8_scales(0);
  const bool has_payload = proto::HasPayload(head.array());
  if (!has_payload && staged == nullptr) return tensor;
  if (!tensor.strides.empty()) {
    OutputMemory packed;
    const void* from = staged;
    if (has_payload) {
      packed = pool.Allocate(tensor.bytes);
      proto::PayloadOf(head.array(), message).CopyTo(packed.get());
      from = packed.get();
    }
    CopyRows(static_cast<const std::byte*>(from), tensor, static_cast<std::byte*>(out));
    return tensor;
  }
  if (out == nullptr) {
    tensor.owned = pool.Allocate(tensor.bytes);
    out = tensor.owned.get();
    tensor.data = out;
  }
  if (has_payload) {
    proto::PayloadOf(head.array(), message).CopyTo(out);
  } else {
    std::memcpy(out, staged, static_cast<size_t>(tensor.bytes));
  }
  return tensor;
}

void ReadHead(const v1::RotateResponse& head, RotateReply& reply) {
  reply.request_id = head.request_id();
  reply.attention_factor = head.attention_factor();
  reply.attention_factor_applied = head.attention_factor_applied();
  reply.device = head.device();
  reply.stage_times = {.decode_us = head.stage_times().decode_us(),
                       .validate_us = head.stage_times().validate_us(),
                       .queue_us = head.stage_times().queue_us(),
                       .execute_us = head.stage_times().execute_us()};
  reply.warnings.assign(head.warnings().begin(), head.warnings().end());
}

// Whether the reply has no tensor bytes. An empty tensor has none, wherever it lies.
bool StayInRegion(const std::vector<WantedTensor>& wanted) {
  return std::ranges::all_of(
      wanted, [](const WantedTensor& tensor) { return tensor.in_region || tensor.bytes == 0; });
}

// Whether request and reply fit through a ring: neither contains tensor bytes, and the request has
// at most kRingRequestBytes.
bool FitRing(const std::vector<proto::MessagePart>& message,
             const std::vector<WantedTensor>& wanted) {
  return message.size() == 1 && message.front().payload.empty() &&
         message.front().header.size() <= proto::kRingRequestBytes && StayInRegion(wanted);
}

grpc::ByteBuffer BufferOfParts(const std::vector<proto::MessagePart>& message,
                               BorrowedSlices& borrowed) {
  std::vector<grpc::Slice> slices;
  for (const proto::MessagePart& part : message) {
    if (!part.header.empty()) slices.emplace_back(part.header);
    if (part.payload.empty()) continue;
    if (static_cast<int64_t>(part.payload.size()) < kLentBytesMin) {
      slices.emplace_back(part.payload.data(), part.payload.size());
    } else {
      slices.push_back(borrowed.Borrow(part.payload));
    }
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// Whether strides of the result are those of the tensor.
bool HasStridesOf(const TensorView& view, const std::vector<int64_t>& strides) {
  return strides == view.strides ||
         StridesOf(view.shape, strides) == StridesOf(view.shape, view.strides);
}

// A request on its way to bytes: where its tensors are.
struct Draft {
  std::vector<Place> places = {};
  Placement placement = {};
  EncodedRotate encoded = {};

  // Adds a tensor of `bytes` bytes with the data and the output of `memory`.
  Status Add(const TensorView& view, int64_t bytes, WantedTensor wanted, const TensorView& memory) {
    ROPE_RETURN_IF_ERROR(CheckData(memory.data, bytes, places.size()));
    if (!wanted.strides.empty() && memory.output == nullptr && wanted.bytes > 0) {
      return InvalidField(absl::StrCat("tensors[", places.size(), "].output"), "null",
                          "memory with the output_strides");
    }
    wanted.output = memory.output;
    for (size_t i = 0; wanted.output != nullptr && i < encoded.wanted.size(); ++i) {
      if (encoded.wanted[i].output == nullptr || !ShareMemory(encoded.wanted[i], wanted)) continue;
      return InvalidField(absl::StrCat("output of tensors[", places.size(), "]"),
                          absl::StrCat("a place that overlaps the output of tensors[", i, "]"),
                          "one of its own");
    }
    places.push_back({.data = memory.data,
                      .bytes = bytes,
                      .output = memory.output,
                      .output_bytes = wanted.output_bytes,
                      .is_alike = wanted.layout == view.layout && wanted.dtype == view.dtype &&
                                  HasStridesOf(view, wanted.strides),
                      .is_packed = view.strides.empty()});
    encoded.wanted.push_back(std::move(wanted));
    encoded.tensor_bytes += bytes;
    return {};
  }
  // The server writes with strides only to places that the request names, not to staged ones.
  bool writes_strides() const { return placement.has_outputs && encoded.staged.data() == nullptr; }
  bool wants_strides() const {
    return std::ranges::any_of(encoded.wanted,
                               [](const WantedTensor& wanted) { return !wanted.strides.empty(); });
  }
  uint64_t region_id() const { return encoded.region_id == nullptr ? 0 : *encoded.region_id; }
};

// No tensor that the engine takes has a larger result.
constexpr int64_t kOwnedBytesMax = int64_t{1} << 40;

// Gives results without an output memory of the process. The engine refuses those without any.
void OwnOutputs(OutputPool& pool, Draft& draft) {
  for (size_t i = 0; i < draft.places.size(); ++i) {
    OutputMemory& owned = draft.encoded.owned.emplace_back();
    const int64_t bytes = draft.encoded.wanted[i].bytes;
    if (draft.places[i].output != nullptr || bytes > kOwnedBytesMax) continue;
    owned = pool.Allocate(bytes);
    draft.places[i].output = draft.encoded.wanted[i].output = owned.get();
  }
}

// Decides which tensors and results are in the region. The steps depend on each other: staging
// moves the tensors into the region before their ranges are looked up; the id is acquired before
// any message names it, so that a fence waits for this call; and it is released again if nothing
// uses the region. An in-place request is not idempotent, unless it is staged: the caller's tensors
// then stay as they are.
void Settle(const Region& region, Route route, Draft& draft) {
  EncodedRotate& encoded = draft.encoded;
  if (region.process_outputs != nullptr) OwnOutputs(*region.process_outputs, draft);
  if (region.is_staging) {
    const int64_t bytes_min = route == Route::kRing ? 1 : kStagedBytesMin;
    encoded.staged = Stage(region, bytes_min, encoded.wanted, draft.places);
  }
  if (region.ids != nullptr) encoded.region_id = region.ids->Acquire();
  draft.placement = PlacementOf(region, draft.places);
  for (const auto& input : draft.placement.inputs) encoded.uses_region |= input.has_value();
  encoded.uses_region |= !draft.placement.outputs.empty();
  if (!encoded.uses_region) encoded.region_id.reset();
  if (!draft.placement.has_outputs) return;
  const bool is_staged = encoded.staged.data() != nullptr;
  for (size_t i = 0; i < draft.places.size(); ++i) {
    encoded.wanted[i].in_region = true;
    if (is_staged) encoded.wanted[i].staged = draft.places[i].output;
  }
  encoded.idempotent = is_staged || !draft.placement.is_in_place;
}

void SetSpan(const Draft& draft, const RegionRange& range, v1::RegionSpan& span) {
  span.set_region_id(draft.region_id());
  span.set_offset(static_cast<uint64_t>(range.offset));
}

void SetOutputRegions(const Draft& draft, v1::RotateRequest& head) {
  for (const RegionRange& output : draft.placement.outputs) {
    SetSpan(draft, output, *head.mutable_output()->add_regions());
  }
}

// Names the places in the region, and joins the messages with the bytes of the other tensors.
std::vector<proto::MessagePart> JoinWhole(const Draft& draft, v1::RotateRequest& head,
                                          const std::vector<v1::Tensor*>& tensors) {
  std::vector<proto::TensorPart> parts;
  parts.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    parts.push_back({.tensor = tensors[i]});
    const std::optional<RegionRange>& input = draft.placement.inputs[i];
    if (input.has_value()) {
      SetSpan(draft, *input, *tensors[i]->mutable_array()->mutable_region());
    } else {
      parts.back().raw = draft.places[i].raw();
    }
  }
  SetOutputRegions(draft, head);
  if (draft.writes_strides() && draft.wants_strides()) {
    const std::vector<WantedTensor>& wanted = draft.encoded.wanted;
    SetOutputStrides(
        wanted.size(), [&wanted](size_t i) -> const WantedTensor& { return wanted[i]; },
        *head.mutable_output());
  }
  return proto::Join(head, parts);
}

constexpr size_t kBytesUsual = 192;         // of a call with few tensors
constexpr size_t kCallMessageBytes = 2048;  // of its message, parsed

bool HasStartOnly(const Positions& positions) {
  return positions.start.has_value() && positions.starts.empty() &&
         positions.position_ids.empty() && positions.position_ids_shape.empty() &&
         positions.cu_seqlens.empty() && positions.seq_lens.empty() &&
         !positions.cp_size.has_value() && !positions.cp_rank.has_value();
}

// A decode step has a start and nothing else. A start of 0 is written too: it is of a oneof.
Status AppendPositions(int number, const Positions& positions, absl::string_view field,
                       std::string& out) {
  if (HasStartOnly(positions)) {
    std::string body;
    proto::AppendVarint(v1::Positions::kStartFieldNumber, static_cast<uint64_t>(*positions.start),
                        body);
    if (body.empty()) body = {v1::Positions::kStartFieldNumber << 3, '\0'};
    proto::AppendField(number, body, out);
    return {};
  }
  v1::Positions message;
  ROPE_RETURN_IF_ERROR(SetPositions(positions, field, message));
  const std::string body = message.SerializeAsString();
  if (!body.empty()) proto::AppendField(number, body, out);
  return {};
}

void AppendRange(int number, const Draft& draft, const RegionRange& range, std::string& out) {
  proto::AppendSpan(number, draft.region_id(), static_cast<uint64_t>(range.offset), out);
}

void AppendOutput(const Draft& draft, std::string& out) {
  if (draft.placement.outputs.empty()) return;
  std::string body;
  for (const RegionRange& range : draft.placement.outputs) {
    AppendRange(v1::Output::kRegionsFieldNumber, draft, range, body);
  }
  proto::AppendField(v1::RotateRequest::kOutputFieldNumber, body, out);
}

void AppendLabels(const RotateRequest& request, std::string& out) {
  if (request.labels.empty()) return;
  v1::RotateRequest labels;
  labels.mutable_labels()->insert(request.labels.begin(), request.labels.end());
  labels.AppendToString(&out);
}

// Appends a tensor up to the bytes of its elements, if these are sent. `shape` may be null.
void AppendTensor(const Draft& draft, size_t index, const std::vector<int64_t>* shape,
                  std::string& out) {
  std::string array;
  if (shape != nullptr) {
    v1::Array message;
    SetShape(*shape, message);
    message.AppendToString(&array);
  }
  const std::optional<RegionRange>& range = draft.placement.inputs[index];
  if (range.has_value()) AppendRange(v1::Array::kRegionFieldNumber, draft, *range, array);
  const size_t raw_bytes = range.has_value() ? 0 : draft.places[index].raw().size();
  proto::AppendTensor(v1::RotateRequest::kTensorsFieldNumber,
                      {.tensor = {}, .array = array, .raw_bytes = raw_bytes}, out);
}

// A message that names a preparation: its id and the values of one call. It is written field by
// field, because it is short and sent often. INVALID_ARGUMENT: as SetValues.
Result<std::vector<proto::MessagePart>> JoinPrepared(
    const Draft& draft, const RotateRequest& request,
    const std::vector<Preparation::Tensor>& tensors) {
  const PreparedState& state = *PreparedState::Of(*request.prepared);
  std::string header;
  header.reserve(kBytesUsual);
  if (!request.request_id.empty()) {
    proto::AppendField(v1::RotateRequest::kRequestIdFieldNumber, request.request_id, header);
  }
  ROPE_RETURN_IF_ERROR(AppendPositions(v1::RotateRequest::kPositionsFieldNumber, request.positions,
                                       "positions", header));
  if (request.reposition.has_value()) {
    std::string body;
    ROPE_RETURN_IF_ERROR(AppendPositions(v1::Reposition::kFromFieldNumber, request.reposition->from,
                                         "reposition.from", body));
    proto::AppendField(v1::RotateRequest::kRepositionFieldNumber, body, header);
  }
  AppendOutput(draft, header);
  AppendLabels(request, header);
  proto::AppendField(v1::RotateRequest::kPreparedIdFieldNumber, state.id, header);
  std::vector<proto::MessagePart> parts;
  for (size_t i = 0; i < draft.places.size(); ++i) {
    // The server knows the shapes, unless calls differ in the length of an axis.
    const bool has_shape = state.preparation->has_open_axis();
    AppendTensor(draft, i, has_shape ? &tensors[i].view.shape : nullptr, header);
    if (draft.placement.inputs[i].has_value() || draft.places[i].bytes == 0) continue;
    parts.push_back({std::move(header), draft.places[i].raw()});
    header.clear();
  }
  if (!header.empty()) parts.push_back({std::move(header), {}});
  return parts;
}

// Views instead of copies: the caller's request outlives a call in process.
void LendPositions(const Positions& positions, v1::Positions& message, proto::SplitMessage& split) {
  const auto lend = [&split](const std::vector<int64_t>& values, v1::Array& array) {
    if (array.raw().empty()) return;
    proto::SetPayload({reinterpret_cast<const char*>(values.data()), array.raw().size()}, array,
                      split);
  };
  if (message.has_starts()) lend(positions.starts, *message.mutable_starts());
  if (message.has_position_ids()) lend(positions.position_ids, *message.mutable_position_ids());
  if (message.has_cu_seqlens()) lend(positions.cu_seqlens, *message.mutable_cu_seqlens());
}

// What JoinPrepared writes, as a message. INVALID_ARGUMENT: as SetValues.
Result<CallMessage> FillPrepared(const Draft& draft, const RotateRequest& request,
                                 const std::vector<Preparation::Tensor>& tensors) {
  using google::protobuf::Arena;
  google::protobuf::ArenaOptions options;
  options.start_block_size = kCallMessageBytes;
  CallMessage call = {.arena = std::make_unique<Arena>(options)};
  call.head = Arena::CreateMessage<v1::RotateRequest>(call.arena.get());
  v1::RotateRequest& head = *call.head;
  ROPE_RETURN_IF_ERROR(SetValues(request, head));
  if (head.has_positions()) {
    LendPositions(request.positions, *head.mutable_positions(), call.split);
  }
  if (request.reposition.has_value()) {
    LendPositions(request.reposition->from, *head.mutable_reposition()->mutable_from(), call.split);
  }
  SetOutputRegions(draft, head);
  const PreparedState& state = *PreparedState::Of(*request.prepared);
  head.set_prepared_id(state.id);
  for (size_t i = 0; i < tensors.size(); ++i) {
    v1::Array& array = *head.add_tensors()->mutable_array();
    if (state.preparation->has_open_axis()) SetShape(tensors[i].view.shape, array);
    const std::optional<RegionRange>& input = draft.placement.inputs[i];
    if (input.has_value()) SetSpan(draft, *input, *array.mutable_region());
  }
  return call;
}

EncodedRotate Encoded(Draft draft, std::vector<proto::MessagePart> message, Route route,
                      BorrowedSlices& borrowed) {
  if (route == Route::kRing && FitRing(message, draft.encoded.wanted)) {
    draft.encoded.ring_message = std::move(message.front().header);
  } else {
    draft.encoded.message = BufferOfParts(message, borrowed);
  }
  return std::move(draft.encoded);
}

Result<EncodedRotate> EncodePrepared(const RotateRequest& request, const Region& region,
                                     Route route, BorrowedSlices& borrowed) {
  ROPE_ASSIGN_OR_RETURN(const auto found,
                        PreparedState::Of(*request.prepared)->preparation->TensorsOf(request));
  const std::vector<Preparation::Tensor>& tensors = *found;
  Draft draft;
  draft.places.reserve(tensors.size());
  draft.encoded.wanted.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Preparation::Tensor& tensor = tensors[i];
    ROPE_RETURN_IF_ERROR(draft.Add(tensor.view, tensor.bytes, tensor.wanted, request.tensors[i]));
  }
  Settle(region, route, draft);
  // The prepared request has the strides, which say nothing about results in the answer.
  if (draft.wants_strides() && !draft.writes_strides()) {
    draft = {};
    return EncodeWhole(request, region, route, borrowed);
  }
  const bool has_text = !request.request_id.empty() || !request.labels.empty();
  if (route == Route::kInProcess && !has_text && StayInRegion(draft.encoded.wanted)) {
    ROPE_ASSIGN_OR_RETURN(draft.encoded.call, FillPrepared(draft, request, tensors));
    return std::move(draft.encoded);
  }
  ROPE_ASSIGN_OR_RETURN(auto message, JoinPrepared(draft, request, tensors));
  return Encoded(std::move(draft), std::move(message), route, borrowed);
}

// These two fill the message of a whole request, but for places, and a tensor's on `arena`.
Status FillWhole(const RotateRequest& request, google::protobuf::Arena& arena,
                 v1::RotateRequest& head, std::vector<v1::Tensor*>& tensors, Draft& draft) {
  ROPE_RETURN_IF_ERROR(SetConstants(request, head));
  ROPE_RETURN_IF_ERROR(SetValues(request, head));
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorView& view = request.tensors[i];
    ROPE_ASSIGN_OR_RETURN(const int64_t bytes, TensorBytes(view, i));
    ROPE_ASSIGN_OR_RETURN(WantedTensor wanted, WantedOf(view, request.output_dtype, i));
    ROPE_RETURN_IF_ERROR(draft.Add(view, bytes, std::move(wanted), view));
    tensors.push_back(google::protobuf::Arena::CreateMessage<v1::Tensor>(&arena));
    ROPE_RETURN_IF_ERROR(SetTensor(view, i, *tensors.back()));
  }
  return {};
}

// REQUIRES: EncodeRotate has accepted the request.
Status FillWholePrepared(const RotateRequest& request, google::protobuf::Arena& arena,
                         v1::RotateRequest& head, std::vector<v1::Tensor*>& tensors, Draft& draft) {
  const Preparation& preparation = *PreparedState::Of(*request.prepared)->preparation;
  const v1::RotateRequest& prepared = preparation.message().rotate();
  ROPE_ASSIGN_OR_RETURN(const auto found, preparation.TensorsOf(request));
  head = prepared;
  head.clear_tensors();
  if (head.has_output()) head.mutable_output()->clear_strides();  // JoinWhole sets them
  if (head.output().ByteSizeLong() == 0) head.clear_output();
  ROPE_RETURN_IF_ERROR(SetValues(request, head));
  for (size_t i = 0; i < found->size(); ++i) {
    const Preparation::Tensor& tensor = (*found)[i];
    ROPE_RETURN_IF_ERROR(draft.Add(tensor.view, tensor.bytes, tensor.wanted, request.tensors[i]));
    tensors.push_back(google::protobuf::Arena::CreateMessage<v1::Tensor>(&arena));
    *tensors.back() = prepared.tensors(static_cast<int>(i));
    v1::Array& array = *tensors.back()->mutable_array();
    array.clear_shape();
    SetShape(tensor.view.shape, array);
    array.mutable_strides()->Assign(tensor.view.strides.begin(), tensor.view.strides.end());
  }
  return {};
}

}  // namespace

RotatedTensor ResultOf(WantedTensor wanted) {
  RotatedTensor tensor;
  tensor.role = wanted.role;
  tensor.layout = std::move(wanted.layout);
  tensor.dtype = wanted.dtype;
  tensor.shape = std::move(wanted.shape);
  tensor.strides = std::move(wanted.strides);
  tensor.data = wanted.output;
  tensor.bytes = wanted.bytes;
  return tensor;
}

Result<EncodedRotate> EncodeWhole(const RotateRequest& request, const Region& region, Route route,
                                  BorrowedSlices& borrowed) {
  google::protobuf::Arena arena;
  auto& head = *google::protobuf::Arena::CreateMessage<v1::RotateRequest>(&arena);
  std::vector<v1::Tensor*> tensors;
  Draft draft;
  const auto fill = request.prepared.has_value() ? &FillWholePrepared : &FillWhole;
  ROPE_RETURN_IF_ERROR(fill(request, arena, head, tensors, draft));
  Settle(region, route, draft);
  std::vector<proto::MessagePart> message = JoinWhole(draft, head, tensors);
  return Encoded(std::move(draft), std::move(message), route, borrowed);
}

Result<EncodedRotate> EncodeRotate(const RotateRequest& request, const Region& region, Route route,
                                   BorrowedSlices& borrowed) {
  if (!request.prepared.has_value()) return EncodeWhole(request, region, route, borrowed);
  ROPE_RETURN_IF_ERROR(CheckPreparedCall(request));
  if (std::ranges::any_of(request.tensors, HasStrides)) {
    return EncodeWhole(request, region, route, borrowed);
  }
  return EncodePrepared(request, region, route, borrowed);
}

Result<ReceivedReply> ReceivedReply::Parse(const grpc::ByteBuffer& buffer) {
  static const proto::Schema& schema = proto::Schema::Of(v1::RotateResponse::descriptor());
  ReceivedReply reply;
  if (!buffer.Dump(&reply.slices_).ok()) {
    return Unreadable("", "compressed bytes that cannot be read");
  }
  std::vector<std::string_view> fragments;
  fragments.reserve(reply.slices_.size());
  for (const grpc::Slice& slice : reply.slices_) {
    fragments.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  auto message = proto::Split(schema, fragments, {.unknown_fields = proto::UnknownFields::kSkip});
  if (!message.ok()) {
    const proto::ErrorParts parts = proto::PartsOf(message.status());
    return Unreadable(parts.field, parts.got, parts.want);
  }
  reply.message_ = *std::move(message);
  if (!reply.head_->ParseFromString(reply.message_.skeleton)) {
    return Unreadable("", "malformed bytes");
  }
  return reply;
}

Result<ReceivedReply> ReceivedReply::ParseSmall(std::string_view bytes) {
  ReceivedReply reply;
  if (!reply.head_->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Unreadable("", "malformed bytes");
  }
  for (const v1::Tensor& tensor : reply.head().tensors()) {
    // In a parsed skeleton `raw` holds a payload index; here it would be actual tensor bytes.
    if (proto::HasPayload(tensor.array())) return Unreadable("", "bytes of a tensor in a ring");
  }
  return reply;
}

Status ReceivedReply::error() const {
  const v1::Error& error = head().error();
  if (error.code() == 0) return {};
  return Status(static_cast<StatusCode>(error.code()), error.message(), DetailOf(error));
}

// Checks every tensor before it writes any: a reply that is not valid leaves all outputs untouched.
Result<RotateReply> ReceivedReply::ToReply(std::vector<WantedTensor> wanted,
                                           OutputPool& pool) const {
  ROPE_RETURN_IF_ERROR(error());
  const auto count = static_cast<size_t>(head().tensors_size());
  if (count != wanted.size()) {
    return Unreadable("tensors", count, wanted.size());
  }
  for (size_t i = 0; i < count; ++i) {
    const v1::Array& array = head().tensors(static_cast<int>(i)).array();
    ROPE_RETURN_IF_ERROR(CheckTensor(array, message_, wanted[i], i));
  }
  RotateReply reply;
  ReadHead(head(), reply);
  reply.tensors.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const v1::Tensor& tensor = head().tensors(static_cast<int>(i));
    reply.tensors.push_back(ReadTensorInto(tensor, message_, std::move(wanted[i]), pool));
  }
  return reply;
}

}  // namespace rope::client
