#include "client/codec/codec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/codec/placement.h"
#include "client/codec/preparation.h"
#include "client/error.h"
#include "kernels/status_macros.h"
#include "proto/error.h"
#include "proto/ipc/process_memory.h"
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
  if (!std::ranges::equal(array.shape(), wanted.shape) ||
      array.dtype() != ToMessage(wanted.dtype)) {
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

void CopyResult(const void* packed, const RotatedTensor& tensor, void* output) {
  if (tensor.strides.empty()) {
    std::memcpy(output, packed, static_cast<size_t>(tensor.bytes));
  } else {
    CopyRows(static_cast<const std::byte*>(packed), tensor, static_cast<std::byte*>(output));
  }
}

RotatedTensor ReadTensorInto(const v1::Tensor& head, const proto::SplitMessage& message,
                             WantedTensor wanted, OutputPool& pool) {
  void* out = wanted.output;
  const bool has_payload = proto::HasPayload(head.array());
  OutputMemory owned;
  if (out == nullptr && (has_payload || wanted.staged != nullptr)) {
    owned = pool.Allocate(wanted.bytes);
    wanted.output = out = owned.get();
  }
  RotatedTensor tensor = ResultOf(std::move(wanted));
  tensor.owned = std::move(owned);
  if (head.fp8_scales_size() > 0) tensor.fp8_scale = head.fp8_scales(0);
  tensor.saturated = head.saturated();
  if (!has_payload) return tensor;
  if (tensor.strides.empty()) {
    proto::PayloadOf(head.array(), message).CopyTo(out);
  } else {
    const OutputMemory packed = pool.Allocate(tensor.bytes);
    proto::PayloadOf(head.array(), message).CopyTo(packed.get());
    CopyResult(packed.get(), tensor, out);
  }
  return tensor;
}

// Whether request and reply fit through a ring: neither contains tensor bytes, and the request has
// at most kRingRequestBytes. An empty tensor has no bytes, wherever it lies.
bool FitRing(const std::vector<proto::MessagePart>& message,
             const std::vector<WantedTensor>& wanted) {
  return message.size() == 1 && message.front().payload.empty() &&
         message.front().header.size() <= proto::kRingRequestBytes &&
         std::ranges::all_of(wanted, [](const WantedTensor& tensor) {
           return tensor.in_region || tensor.bytes == 0;
         });
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

struct RowPlace {
  const RowArray* array = nullptr;
  const ArrayView* view = nullptr;
  std::string_view raw = {};
  std::optional<RegionRange> range = {};  // set: named, not sent
};

// A request on its way to its receiver: where its tensors and rows are.
struct Encoding {
  Places places = {};
  absl::InlinedVector<RowPlace, 2> rows = {};
  Placement placement = {};
  EncodedRotate encoded = {};

  // Adds a tensor of `bytes` bytes with the data and the output of `memory`.
  Status Add(const TensorView& view, int64_t bytes, WantedTensor wanted, const TensorView& memory) {
    ROPE_RETURN_IF_ERROR(CheckData(memory.data, bytes, places.size()));
    const bool is_paged = view.paged.has_value();
    const bool is_strided = !wanted.strides.empty() && wanted.bytes > 0;
    if (memory.output == nullptr && (is_strided || is_paged)) {
      return InvalidField(
          absl::StrCat("tensors[", places.size(), "].output"), "null",
          is_strided ? "memory with the output_strides" : "the pool of pages, or another one");
    }
    wanted.output = memory.output;
    for (size_t i = 0; wanted.output != nullptr && i < encoded.wanted.size(); ++i) {
      if (is_paged || places[i].is_paged) continue;  // the server compares slots
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
                      .is_packed = view.strides.empty(),
                      .is_paged = is_paged});
    encoded.tensor_bytes += is_paged ? std::min(bytes, wanted.bytes) : bytes;
    encoded.wanted.push_back(std::move(wanted));
    return {};
  }
  // `given` outlives the encoding.
  Status AddRows(const std::optional<Rows>& given) {
    if (!given.has_value()) return {};
    for (const RowArray& each : kRowArrays) {
      const std::optional<ArrayView>& view = *given.*each.view;
      if (!view.has_value()) continue;
      ROPE_ASSIGN_OR_RETURN(const int64_t bytes, ArrayBytes(each.field, *view));
      rows.push_back(
          {&each, &*view, {static_cast<const char*>(view->data), static_cast<size_t>(bytes)}});
    }
    return {};
  }
  // The server writes with strides only to places that the request names, not to staged ones.
  bool writes_strides() const {
    return placement.has_outputs &&
           std::ranges::none_of(
               encoded.wanted, [](const WantedTensor& wanted) { return wanted.staged != nullptr; });
  }
  bool wants_strides() const {
    return std::ranges::any_of(encoded.wanted,
                               [](const WantedTensor& wanted) { return !wanted.strides.empty(); });
  }
  uint64_t region_id() const { return encoded.region_id == nullptr ? 0 : *encoded.region_id; }
};

// No tensor that the engine takes has a larger result.
constexpr int64_t kOwnedBytesMax = int64_t{1} << 40;

// Gives results without an output memory of the process; and, if `is_staged`, all others, which
// come to their outputs when all are there. The engine refuses those without any.
void OwnOutputs(OutputPool& pool, bool is_staged, Encoding& encoding) {
  encoding.encoded.owned.resize(encoding.places.size());
  for (size_t i = 0; i < encoding.places.size(); ++i) {
    OutputMemory& owned = encoding.encoded.owned[i];
    WantedTensor& wanted = encoding.encoded.wanted[i];
    Place& place = encoding.places[i];
    if (place.output != nullptr && (!is_staged || owned != nullptr || place.is_paged)) continue;
    if (wanted.bytes > kOwnedBytesMax) continue;
    owned = pool.Allocate(wanted.bytes);
    if (place.output == nullptr) {
      wanted.output = owned.get();
    } else {
      wanted.staged = owned.get();
    }
    place.output = owned.get();
    place.output_bytes = wanted.bytes;
  }
}

// A tensor of pages is in the region, and so are then all results.
Status CheckPages(const Region& region, const Encoding& encoding) {
  const Places& places = encoding.places;
  if (std::ranges::none_of(places, &Place::is_paged)) return {};
  for (size_t i = 0; i < places.size(); ++i) {
    const bool has_data = !places[i].is_paged || encoding.placement.inputs[i].has_value();
    if (has_data && RangeIn(region, places[i].output, places[i].output_bytes).has_value()) continue;
    return InvalidField(
        absl::StrCat("tensors[", i, "].", has_data ? "output" : "data"),
        absl::StrCat(places[i].is_paged ? "pages" : "a result beside pages", " in other memory"),
        "memory that the server shares (arena, imported memory or in process)");
  }
  if (encoding.placement.has_outputs) return {};
  return InvalidField("tensors", "a result that overlaps a tensor, beside one of pages", "none");
}

// Decides which tensors, rows and results are in the region. The steps depend on each other:
// staging moves the tensors into the region before their ranges are looked up; the id is acquired
// before any message names it, so that a fence waits for this call; and it is released again if
// nothing uses the region. An in-place request is not idempotent, unless it is staged: the caller's
// tensors then stay as they are.
Status PlaceTensors(const Region& region, Route route, Encoding& encoding) {
  EncodedRotate& encoded = encoding.encoded;
  OutputPool* const pool = region.process_outputs.get();
  if (pool != nullptr) OwnOutputs(*pool, /*is_staged=*/false, encoding);
  if (region.is_staging && std::ranges::none_of(encoding.places, &Place::is_paged)) {
    const int64_t bytes_min = route == Route::kRing ? 1 : kStagedBytesMin;
    encoded.staged = Stage(region, bytes_min, encoded.wanted, encoding.places);
  }
  if (region.ids != nullptr) encoded.region_id = region.ids->Acquire();
  encoding.placement = PlacementOf(region, encoding.places);
  if (region.is_device && !encoding.placement.has_outputs) {
    return InvalidField("tensors", "an output that overlaps another tensor on the GPU",
                        "outputs of their own, or exactly in place");
  }
  if (pool != nullptr && !encoding.placement.has_outputs) {  // one would overwrite an input
    OwnOutputs(*pool, /*is_staged=*/true, encoding);
    encoding.placement = PlacementOf(region, encoding.places);
  }
  ROPE_RETURN_IF_ERROR(CheckPages(region, encoding));
  for (const auto& input : encoding.placement.inputs) encoded.uses_region |= input.has_value();
  encoded.uses_region |= !encoding.placement.outputs.empty();
  for (RowPlace& row : encoding.rows) {
    row.range = RangeIn(region, row.raw.data(), static_cast<int64_t>(row.raw.size()));
    encoded.uses_region |= row.range.has_value();
  }
  if (!encoded.uses_region) encoded.region_id.reset();
  if (!encoding.placement.has_outputs) return {};
  const bool is_staged = encoded.staged.data() != nullptr;
  for (size_t i = 0; i < encoding.places.size(); ++i) {
    encoded.wanted[i].in_region = true;
    if (is_staged) encoded.wanted[i].staged = encoding.places[i].output;
  }
  encoded.idempotent = is_staged || !encoding.placement.is_in_place;
  return {};
}

void SetSpan(const Encoding& encoding, const RegionRange& range, v1::RegionSpan& span) {
  span.set_region_id(encoding.region_id());
  span.set_offset(static_cast<uint64_t>(range.offset));
}

// The elements of rows; and their shapes, which a call may lack.
void SetRows(const Encoding& encoding, bool has_shapes, v1::RotateRequest& head) {
  for (const RowPlace& row : encoding.rows) {
    v1::Array& array = *(head.mutable_rows()->*row.array->mutable_array)();
    if (has_shapes) SetShape(row.view->shape, array);
    if (row.range.has_value()) {
      SetSpan(encoding, *row.range, *array.mutable_region());
    } else {
      array.set_raw(row.raw.data(), row.raw.size());
    }
  }
}

// Names the places in the region, and the positions that lie on its device.
void SetPlaces(const RotateRequest& request, const Encoding& encoding, v1::RotateRequest& head) {
  for (size_t i = 0; i < encoding.places.size(); ++i) {
    const std::optional<RegionRange>& input = encoding.placement.inputs[i];
    if (!input.has_value()) continue;
    SetSpan(encoding, *input,
            *head.mutable_tensors(static_cast<int>(i))->mutable_array()->mutable_region());
  }
  for (const RegionRange& output : encoding.placement.outputs) {
    SetSpan(encoding, output, *head.mutable_output()->add_regions());
  }
  if (request.positions.device_ids == nullptr) return;
  SetSpan(encoding, {.offset = proto::ProcessMemoryOffset(request.positions.device_ids)},
          *head.mutable_positions()->mutable_position_ids()->mutable_region());
}

// Joins the message with the bytes of the tensors that are not in the region.
std::vector<proto::MessagePart> JoinWhole(const Encoding& encoding, v1::RotateRequest& head) {
  std::vector<v1::Tensor*> tensors(encoding.places.size());
  head.mutable_tensors()->UnsafeArenaExtractSubrange(0, head.tensors_size(), tensors.data());
  std::vector<proto::TensorPart> parts;
  parts.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    parts.push_back({.tensor = tensors[i]});
    if (!encoding.placement.inputs[i].has_value()) parts.back().raw = encoding.places[i].raw();
  }
  return proto::Join(head, parts);
}

constexpr size_t kBytesUsual = 192;         // of a call with few tensors
constexpr size_t kCallMessageBytes = 2048;  // of its message, parsed

CallMessage NewMessage() {
  using google::protobuf::Arena;
  google::protobuf::ArenaOptions options;
  options.start_block_size = kCallMessageBytes;
  CallMessage call = {.arena = std::make_unique<Arena>(options)};
  call.head = Arena::CreateMessage<v1::RotateRequest>(call.arena.get());
  return call;
}

bool HasStartOnly(const Positions& positions) {
  return positions.start.has_value() && positions.starts.empty() &&
         positions.position_ids.empty() && positions.position_ids_shape.empty() &&
         positions.device_ids == nullptr && positions.cu_seqlens.empty() &&
         positions.seq_lens.empty() && !positions.cp_size.has_value() &&
         !positions.cp_rank.has_value();
}

// A decode step has a start and nothing else. A start of 0 is written too: it is of a oneof.
Status AppendPositions(const Positions& positions, std::string& out) {
  constexpr int kNumber = v1::RotateRequest::kPositionsFieldNumber;
  if (HasStartOnly(positions)) {
    std::string body;
    proto::AppendVarint(v1::Positions::kStartFieldNumber, static_cast<uint64_t>(*positions.start),
                        body);
    if (body.empty()) body = {v1::Positions::kStartFieldNumber << 3, '\0'};
    proto::AppendField(kNumber, body, out);
    return {};
  }
  v1::Positions message;
  ROPE_RETURN_IF_ERROR(SetPositions(positions, "positions", message));
  const std::string body = message.SerializeAsString();
  if (!body.empty()) proto::AppendField(kNumber, body, out);
  return {};
}

void AppendRange(int number, const Encoding& encoding, const RegionRange& range, std::string& out) {
  proto::AppendSpan(number, encoding.region_id(), static_cast<uint64_t>(range.offset), out);
}

void AppendRowsAndLabels(const Encoding& encoding, bool has_shapes, const RotateRequest& request,
                         std::string& out) {
  if (encoding.rows.empty() && request.labels.empty()) return;
  v1::RotateRequest message;
  message.mutable_labels()->insert(request.labels.begin(), request.labels.end());
  SetRows(encoding, has_shapes, message);
  message.AppendToString(&out);
}

// Appends a tensor up to the bytes of its elements, if these are sent.
void AppendTensor(const Encoding& encoding, size_t index, const TensorView& view, bool has_shape,
                  const std::optional<PagedTokens>& paged, std::string& out) {
  std::string tensor;
  std::string array;
  if (paged.has_value()) {
    v1::Tensor message;
    SetSlots(view, paged, {.shape = has_shape, .elements = true}, message);
    message.AppendToString(&tensor);
  }
  if (has_shape) {
    v1::Array message;
    SetShape(view.shape, message);
    message.AppendToString(&array);
  }
  const std::optional<RegionRange>& range = encoding.placement.inputs[index];
  if (range.has_value()) AppendRange(v1::Array::kRegionFieldNumber, encoding, *range, array);
  const size_t raw_bytes = range.has_value() ? 0 : encoding.places[index].raw().size();
  proto::AppendTensor(v1::RotateRequest::kTensorsFieldNumber,
                      {.tensor = tensor, .array = array, .raw_bytes = raw_bytes}, out);
}

// A message that names a preparation: its id and the values of one call. It is written field by
// field, because it is short and sent often. INVALID_ARGUMENT: as SetValues.
Result<std::vector<proto::MessagePart>> JoinPrepared(
    const Encoding& encoding, const RotateRequest& request,
    const std::vector<Preparation::Tensor>& tensors) {
  const PreparedState& state = *PreparedState::Of(*request.prepared);
  std::string header;
  header.reserve(kBytesUsual);
  if (!request.request_id.empty()) {
    proto::AppendField(v1::RotateRequest::kRequestIdFieldNumber, request.request_id, header);
  }
  ROPE_RETURN_IF_ERROR(AppendPositions(request.positions, header));
  if (request.reposition.has_value()) {
    v1::Reposition message;
    ROPE_RETURN_IF_ERROR(SetReposition(*request.reposition, message));
    proto::AppendField(v1::RotateRequest::kRepositionFieldNumber, message.SerializeAsString(),
                       header);
  }
  if (!encoding.placement.outputs.empty()) {
    std::string body;
    for (const RegionRange& range : encoding.placement.outputs) {
      AppendRange(v1::Output::kRegionsFieldNumber, encoding, range, body);
    }
    proto::AppendField(v1::RotateRequest::kOutputFieldNumber, body, header);
  }
  // The server knows the shapes, unless calls differ in the length of an axis.
  const bool has_shapes = state.preparation->has_open_axis();
  AppendRowsAndLabels(encoding, has_shapes, request, header);
  proto::AppendField(v1::RotateRequest::kPreparedIdFieldNumber, state.id, header);
  std::vector<proto::MessagePart> parts;
  for (size_t i = 0; i < encoding.places.size(); ++i) {
    AppendTensor(encoding, i, tensors[i].view, has_shapes, request.tensors[i].paged, header);
    if (encoding.placement.inputs[i].has_value() || encoding.places[i].bytes == 0) continue;
    parts.push_back({std::move(header), encoding.places[i].raw()});
    header.clear();
  }
  if (!header.empty()) parts.push_back({std::move(header), {}});
  return parts;
}

// A receiver has the elements of arrays as payloads.
void TakeElements(v1::Array& array, CallMessage& call) {
  if (array.raw().empty()) return;
  using google::protobuf::Arena;
  const std::string& bytes =
      *Arena::Create<std::string>(call.arena.get(), std::move(*array.mutable_raw()));
  proto::SetPayload(bytes, array, call.split);
}

void TakePositions(v1::Positions& positions, CallMessage& call) {
  if (positions.has_starts()) TakeElements(*positions.mutable_starts(), call);
  if (positions.has_position_ids()) TakeElements(*positions.mutable_position_ids(), call);
  if (positions.has_cu_seqlens()) TakeElements(*positions.mutable_cu_seqlens(), call);
}

void TakeSlots(v1::PagedTokens& paged, CallMessage& call) {
  if (paged.has_pages()) TakeElements(*paged.mutable_pages(), call);
  if (paged.has_slots()) TakeElements(*paged.mutable_slots(), call);
  if (paged.has_target_slots()) TakeElements(*paged.mutable_target_slots(), call);
}

// Ends a message for an engine in this process. Tensors and rows are in its region.
EncodedRotate InProcess(CallMessage call, Encoding encoding) {
  v1::RotateRequest& head = *call.head;
  if (head.has_positions()) TakePositions(*head.mutable_positions(), call);
  if (head.reposition().has_from()) {
    TakePositions(*head.mutable_reposition()->mutable_from(), call);
  }
  if (head.reposition().has_by()) TakeElements(*head.mutable_reposition()->mutable_by(), call);
  for (v1::Tensor& tensor : *head.mutable_tensors()) {
    if (tensor.norm().has_weight()) TakeElements(*tensor.mutable_norm()->mutable_weight(), call);
    if (tensor.has_paged_tokens()) TakeSlots(*tensor.mutable_paged_tokens(), call);
  }
  encoding.encoded.call = std::move(call);
  return std::move(encoding.encoded);
}

// What JoinPrepared writes, as a message. INVALID_ARGUMENT: as SetValues.
Status FillPrepared(const RotateRequest& request, const std::vector<Preparation::Tensor>& tensors,
                    const Encoding& encoding, v1::RotateRequest& head) {
  ROPE_RETURN_IF_ERROR(SetValues(request, head));
  const PreparedState& state = *PreparedState::Of(*request.prepared);
  const bool has_shapes = state.preparation->has_open_axis();
  head.set_prepared_id(state.id);
  for (size_t i = 0; i < tensors.size(); ++i) {
    v1::Tensor& tensor = *head.add_tensors();
    const TensorView& view = tensors[i].view;
    if (has_shapes) SetShape(view.shape, *tensor.mutable_array());
    SetSlots(view, request.tensors[i].paged, {.shape = has_shapes, .elements = true}, tensor);
  }
  SetRows(encoding, has_shapes, head);
  SetPlaces(request, encoding, head);
  return {};
}

EncodedRotate Encoded(Encoding encoding, std::vector<proto::MessagePart> message, Route route,
                      BorrowedSlices& borrowed) {
  if (route == Route::kRing && FitRing(message, encoding.encoded.wanted)) {
    encoding.encoded.ring_message = std::move(message.front().header);
  } else {
    encoding.encoded.message = BufferOfParts(message, borrowed);
  }
  return std::move(encoding.encoded);
}

Result<EncodedRotate> EncodePrepared(const RotateRequest& request, const Region& region,
                                     Route route, BorrowedSlices& borrowed) {
  ROPE_ASSIGN_OR_RETURN(const auto found,
                        PreparedState::Of(*request.prepared)->preparation->TensorsOf(request));
  const std::vector<Preparation::Tensor>& tensors = *found;
  Encoding encoding;
  encoding.places.reserve(tensors.size());
  encoding.encoded.wanted.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Preparation::Tensor& tensor = tensors[i];
    ROPE_RETURN_IF_ERROR(
        encoding.Add(tensor.view, tensor.bytes, tensor.wanted, request.tensors[i]));
  }
  ROPE_RETURN_IF_ERROR(encoding.AddRows(request.rows));
  ROPE_RETURN_IF_ERROR(PlaceTensors(region, route, encoding));
  // The prepared request has the strides, which say nothing about results in the answer.
  if (encoding.wants_strides() && !encoding.writes_strides()) {
    encoding = {};
    return EncodeWhole(request, region, route, borrowed);
  }
  if (route == Route::kInProcess) {
    CallMessage call = NewMessage();
    ROPE_RETURN_IF_ERROR(FillPrepared(request, tensors, encoding, *call.head));
    return InProcess(std::move(call), std::move(encoding));
  }
  ROPE_ASSIGN_OR_RETURN(auto message, JoinPrepared(encoding, request, tensors));
  return Encoded(std::move(encoding), std::move(message), route, borrowed);
}

// Either all tensors lie on the region's device, with their outputs, or none does.
Status CheckDevices(const RotateRequest& request, const Region& region) {
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorView& tensor = request.tensors[i];
    const bool is_on_gpu = tensor.memory == Memory::kCuda;
    if (is_on_gpu && !region.is_device) {
      return InvalidField(absl::StrCat("tensors[", i, "].memory"), "memory of a GPU",
                          "host memory, or Client::Enqueue in process");
    }
    if (!is_on_gpu && region.is_device) {
      return InvalidField(absl::StrCat("tensors[", i, "].memory"), "host memory",
                          "memory of the GPU for each tensor");
    }
    if (!is_on_gpu || tensor.output != nullptr) continue;
    return InvalidField(absl::StrCat("tensors[", i, "].output"), "null", "memory of the GPU");
  }
  const bool moves = request.reposition.has_value();
  if (moves && request.reposition->from.device_ids != nullptr) {
    return InvalidField("reposition.from.device_ids", "positions on a GPU", "reposition.by");
  }
  if (region.is_device || request.positions.device_ids == nullptr) return {};
  return InvalidField("positions.device_ids", "positions on a GPU", "Client::Enqueue in process");
}

// These two fill the message of a whole request, but for places and rows.
Status FillWhole(const RotateRequest& request, v1::RotateRequest& head, Encoding& encoding) {
  ROPE_RETURN_IF_ERROR(SetConstants(request, head));
  ROPE_RETURN_IF_ERROR(SetValues(request, head));
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorView& view = request.tensors[i];
    ROPE_ASSIGN_OR_RETURN(const int64_t bytes, TensorBytes(view, i));
    ROPE_ASSIGN_OR_RETURN(WantedTensor wanted, WantedOf(view, request.output_dtype, i));
    ROPE_RETURN_IF_ERROR(encoding.Add(view, bytes, std::move(wanted), view));
    v1::Tensor& tensor = *head.add_tensors();
    ROPE_RETURN_IF_ERROR(SetTensor(view, i, tensor));
    SetSlots(view, view.paged, {.elements = true}, tensor);
  }
  return {};
}

// REQUIRES: EncodeRotate has accepted the request.
Status FillWholePrepared(const RotateRequest& request, v1::RotateRequest& head,
                         Encoding& encoding) {
  const Preparation& preparation = *PreparedState::Of(*request.prepared)->preparation;
  ROPE_ASSIGN_OR_RETURN(const auto found, preparation.TensorsOf(request));
  head = preparation.message().rotate();
  if (head.has_output()) head.mutable_output()->clear_strides();  // EncodeWhole sets them
  if (head.output().ByteSizeLong() == 0) head.clear_output();
  ROPE_RETURN_IF_ERROR(SetValues(request, head));
  for (size_t i = 0; i < found->size(); ++i) {
    const Preparation::Tensor& tensor = (*found)[i];
    ROPE_RETURN_IF_ERROR(
        encoding.Add(tensor.view, tensor.bytes, tensor.wanted, request.tensors[i]));
    v1::Tensor& message = *head.mutable_tensors(static_cast<int>(i));
    v1::Array& array = *message.mutable_array();
    SetShape(tensor.view.shape, array);
    array.mutable_strides()->Assign(tensor.view.strides.begin(), tensor.view.strides.end());
    SetSlots(tensor.view, request.tensors[i].paged, {.shape = true, .elements = true}, message);
  }
  return {};
}

}  // namespace

RotatedTensor ResultOf(WantedTensor wanted) {
  const void* const staged = wanted.staged;
  RotatedTensor tensor;
  tensor.role = wanted.role;
  tensor.layout = std::move(wanted.layout);
  tensor.dtype = wanted.dtype;
  tensor.shape = std::move(wanted.shape);
  tensor.strides = std::move(wanted.strides);
  tensor.data = wanted.output;
  tensor.bytes = wanted.bytes;
  if (staged != nullptr) CopyResult(staged, tensor, wanted.output);
  return tensor;
}

Result<EncodedRotate> EncodeWhole(const RotateRequest& request, const Region& region, Route route,
                                  BorrowedSlices& borrowed) {
  CallMessage call = NewMessage();
  v1::RotateRequest& head = *call.head;
  Encoding encoding;
  const auto fill = request.prepared.has_value() ? &FillWholePrepared : &FillWhole;
  ROPE_RETURN_IF_ERROR(fill(request, head, encoding));
  ROPE_RETURN_IF_ERROR(encoding.AddRows(request.rows));
  ROPE_RETURN_IF_ERROR(PlaceTensors(region, route, encoding));
  SetRows(encoding, /*has_shapes=*/true, head);
  SetPlaces(request, encoding, head);
  if (encoding.writes_strides() && encoding.wants_strides()) {
    for (const WantedTensor& wanted : encoding.encoded.wanted) AddOutputStrides(wanted, head);
  }
  if (route == Route::kInProcess) return InProcess(std::move(call), std::move(encoding));
  std::vector<proto::MessagePart> message = JoinWhole(encoding, head);
  return Encoded(std::move(encoding), std::move(message), route, borrowed);
}

Result<EncodedRotate> EncodeRotate(const RotateRequest& request, const Region& region, Route route,
                                   BorrowedSlices& borrowed) {
  ROPE_RETURN_IF_ERROR(CheckDevices(request, region));
  if (!request.prepared.has_value()) return EncodeWhole(request, region, route, borrowed);
  ROPE_RETURN_IF_ERROR(CheckPreparedCall(request));
  if (std::ranges::any_of(request.tensors, HasStrides)) {
    return EncodeWhole(request, region, route, borrowed);
  }
  return EncodePrepared(request, region, route, borrowed);
}

Result<std::unique_ptr<const KeptRequest>> Keep(const RotateRequest& request,
                                                const Region& region) {
  auto kept = std::make_unique<KeptRequest>();
  kept->request = request;
  std::vector<std::pair<std::string, ArrayView*>> views;
  for (const RowArray& each : kRowArrays) {
    if (!request.rows.has_value()) break;
    std::optional<ArrayView>& view = *kept->request.rows.*each.view;
    if (!view.has_value()) continue;
    ROPE_ASSIGN_OR_RETURN(const int64_t bytes, ArrayBytes(each.field, *view));
    if (!RangeIn(region, view->data, bytes).has_value()) views.emplace_back(each.field, &*view);
  }
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    std::optional<HeadNorm>& norm = kept->request.tensors[i].norm;
    if (!norm.has_value()) continue;
    views.emplace_back(absl::StrCat("tensors[", i, "].norm.weight"), &norm->weight);
  }
  for (const auto& [field, view] : views) {
    v1::Array array;
    ROPE_RETURN_IF_ERROR(SetArray(field, *view, array));
    view->data = kept->arrays.emplace_back(std::move(*array.mutable_raw())).data();
  }
  return std::unique_ptr<const KeptRequest>(std::move(kept));
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
  for (const v1::Tensor& tensor : reply.head_->tensors()) {
    // In a parsed skeleton `raw` holds a payload index; here it would be actual tensor bytes.
    if (proto::HasPayload(tensor.array())) return Unreadable("", "bytes of a tensor in a ring");
  }
  return reply;
}

Status ReceivedReply::error() const {
  const v1::Error& error = head_->error();
  if (error.code() == 0) return {};
  return Status(static_cast<StatusCode>(error.code()), error.message(), DetailOf(error));
}

// Checks every tensor before it writes any: a reply that is not valid leaves all outputs untouched.
Result<RotateReply> ReceivedReply::ToReply(std::vector<WantedTensor> wanted,
                                           OutputPool& pool) const {
  ROPE_RETURN_IF_ERROR(error());
  const auto count = static_cast<size_t>(head_->tensors_size());
  if (count != wanted.size()) return Unreadable("tensors", count, wanted.size());
  for (size_t i = 0; i < count; ++i) {
    const v1::Array& array = head_->tensors(static_cast<int>(i)).array();
    ROPE_RETURN_IF_ERROR(CheckTensor(array, message_, wanted[i], i));
  }
  RotateReply reply = {.request_id = head_->request_id(),
                       .attention_factor = head_->attention_factor(),
                       .attention_factor_applied = head_->attention_factor_applied(),
                       .device = head_->device(),
                       .stage_times = {.decode_us = head_->stage_times().decode_us(),
                                       .validate_us = head_->stage_times().validate_us(),
                                       .queue_us = head_->stage_times().queue_us(),
                                       .execute_us = head_->stage_times().execute_us()},
                       .warnings = {head_->warnings().begin(), head_->warnings().end()}};
  reply.tensors.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const v1::Tensor& tensor = head_->tensors(static_cast<int>(i));
    reply.tensors.push_back(ReadTensorInto(tensor, message_, std::move(wanted[i]), pool));
  }
  return reply;
}

}  // namespace rope::client
