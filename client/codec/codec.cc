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
#include "client/codec/placement.h"
#include "client/codec/preparation.h"
#include "client/error.h"
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

Status Unreadable(const absl::Status& status) {
  const proto::ErrorParts parts = proto::PartsOf(status);
  return Unreadable(parts.field, parts.got, parts.want);
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

Status FromMessage(const v1::Error& error) {
  return Status(static_cast<StatusCode>(error.code()), error.message(), DetailOf(error));
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

// Whether strides of the result are those of the tensor. Empty strides are packed.
bool HasStridesOf(const TensorView& view, const std::vector<int64_t>& strides) {
  if (strides == view.strides) return true;
  if (!strides.empty() && !view.strides.empty()) return false;
  int64_t packed = 1;  // of the axis, from D on
  const std::vector<int64_t>& given = strides.empty() ? view.strides : strides;
  if (given.size() != view.shape.size()) return false;
  for (size_t i = given.size(); i > 0; --i) {
    if (given[i - 1] != packed) return false;
    if (__builtin_mul_overflow(packed, view.shape[i - 1], &packed)) return false;
  }
  return true;
}

constexpr size_t kMessageBytes = 2048;  // of a call with few tensors, parsed

CallMessage NewMessage() {
  using google::protobuf::Arena;
  google::protobuf::ArenaOptions options;
  options.start_block_size = kMessageBytes;
  CallMessage message = {.arena = std::make_unique<Arena>(options)};
  message.head = Arena::CreateMessage<v1::RotateRequest>(message.arena.get());
  return message;
}

// A request on its way to bytes.
struct Encoding {
  CallMessage message = NewMessage();     // without its tensors
  std::vector<v1::Tensor*> tensors = {};  // on its arena, without their elements
  std::vector<Place> places = {};         // of the tensors
  Placement placement = {};
  EncodedRotate encoded = {};

  void Reserve(size_t count) {
    tensors.reserve(count);
    places.reserve(count);
    encoded.wanted.reserve(count);
  }
  // Adds a tensor of `bytes` bytes with the data and the output of `memory`. Its message is empty.
  Status Add(const TensorView& view, int64_t bytes, WantedTensor wanted, const TensorView& memory) {
    Status status = CheckData(memory.data, bytes, places.size());
    if (!status.ok()) return status;
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
    tensors.push_back(google::protobuf::Arena::CreateMessage<v1::Tensor>(message.arena.get()));
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
void OwnOutputs(OutputPool& pool, Encoding& encoding) {
  for (size_t i = 0; i < encoding.places.size(); ++i) {
    OutputMemory& owned = encoding.encoded.owned.emplace_back();
    const int64_t bytes = encoding.encoded.wanted[i].bytes;
    if (encoding.places[i].output != nullptr || bytes > kOwnedBytesMax) continue;
    owned = pool.Allocate(bytes);
    encoding.places[i].output = encoding.encoded.wanted[i].output = owned.get();
  }
}

void SetSpan(const Encoding& encoding, const RegionRange& range, v1::RegionSpan& span) {
  span.set_region_id(encoding.region_id());
  span.set_offset(static_cast<uint64_t>(range.offset));
}

// Names the tensors and results that are in the region.
void NamePlaces(Encoding& encoding) {
  for (size_t i = 0; i < encoding.tensors.size(); ++i) {
    const std::optional<RegionRange>& input = encoding.placement.inputs[i];
    if (!input.has_value()) continue;
    SetSpan(encoding, *input, *encoding.tensors[i]->mutable_array()->mutable_region());
  }
  for (const RegionRange& output : encoding.placement.outputs) {
    SetSpan(encoding, output, *encoding.message.head->mutable_output()->add_regions());
  }
}

// Decides which tensors and results are in the region, and names these. The steps depend on each
// other: staging moves the tensors into the region before their ranges are looked up; the id is
// acquired before the message names it, so that a fence waits for this call; and it is released
// again if nothing uses the region. An in-place request is not idempotent, unless it is staged: the
// caller's tensors then stay as they are.
void PlaceTensors(const Region& region, Route route, Encoding& encoding) {
  EncodedRotate& encoded = encoding.encoded;
  if (region.process_outputs != nullptr) OwnOutputs(*region.process_outputs, encoding);
  if (region.is_staging) {
    const int64_t bytes_min = route == Route::kRing ? 1 : kStagedBytesMin;
    encoded.staged = Stage(region, bytes_min, encoded.wanted, encoding.places);
  }
  if (region.ids != nullptr) encoded.region_id = region.ids->Acquire();
  encoding.placement = PlacementOf(region, encoding.places);
  for (const auto& input : encoding.placement.inputs) encoded.uses_region |= input.has_value();
  encoded.uses_region |= !encoding.placement.outputs.empty();
  if (!encoded.uses_region) encoded.region_id.reset();
  NamePlaces(encoding);
  if (!encoding.placement.has_outputs) return;
  const bool is_staged = encoded.staged.data() != nullptr;
  for (size_t i = 0; i < encoding.places.size(); ++i) {
    encoded.wanted[i].in_region = true;
    if (is_staged) encoded.wanted[i].staged = encoding.places[i].output;
  }
  encoded.idempotent = is_staged || !encoding.placement.is_in_place;
}

// Joins the message with the elements of the tensors that are not in the region.
EncodedRotate Join(Encoding& encoding, Route route, BorrowedSlices& borrowed) {
  std::vector<proto::TensorPart> parts;
  parts.reserve(encoding.tensors.size());
  for (size_t i = 0; i < encoding.tensors.size(); ++i) {
    parts.push_back({.tensor = encoding.tensors[i]});
    if (!encoding.placement.inputs[i].has_value()) parts.back().raw = encoding.places[i].raw();
  }
  std::vector<proto::MessagePart> message = proto::Join(*encoding.message.head, parts);
  if (route == Route::kRing && FitRing(message, encoding.encoded.wanted)) {
    encoding.encoded.ring_message = std::move(message.front().header);
  } else {
    encoding.encoded.message = BufferOfParts(message, borrowed);
  }
  return std::move(encoding.encoded);
}

// Gives the message its tensors, and views of the caller's positions in place of copies: the
// request outlives a call in process.
CallMessage TakeMessage(Encoding& encoding, const RotateRequest& request) {
  CallMessage message = std::move(encoding.message);
  const auto lend = [&split = message.split](const std::vector<int64_t>& values, v1::Array& array) {
    if (array.raw().empty()) return;
    proto::SetPayload({reinterpret_cast<const char*>(values.data()), array.raw().size()}, array,
                      split);
  };
  const auto lend_all = [&lend](const Positions& positions, v1::Positions& sent) {
    if (sent.has_starts()) lend(positions.starts, *sent.mutable_starts());
    if (sent.has_position_ids()) lend(positions.position_ids, *sent.mutable_position_ids());
    if (sent.has_cu_seqlens()) lend(positions.cu_seqlens, *sent.mutable_cu_seqlens());
  };
  v1::RotateRequest& head = *message.head;
  if (head.has_positions()) lend_all(request.positions, *head.mutable_positions());
  if (request.reposition.has_value()) {
    lend_all(request.reposition->from, *head.mutable_reposition()->mutable_from());
  }
  for (v1::Tensor* tensor : encoding.tensors) head.mutable_tensors()->AddAllocated(tensor);
  return message;
}

// Of a prepared call; in `changed` if its open axis has a length, or a tensor strides.
Result<const std::vector<Preparation::Tensor>*> TensorsOf(
    const RotateRequest& request, std::vector<Preparation::Tensor>& changed) {
  const Preparation& preparation = *PreparedState::Of(*request.prepared)->preparation;
  if (!LengthOf(request).has_value() && std::ranges::none_of(request.tensors, HasStrides)) {
    return &preparation.tensors();
  }
  auto tensors = preparation.TensorsOf(request);
  if (!tensors.ok()) return tensors.status();
  changed = *std::move(tensors);
  return &changed;
}

// The fields of a whole request, but for places.
Status FillWhole(const RotateRequest& request, Encoding& encoding) {
  v1::RotateRequest& head = *encoding.message.head;
  Status status = SetConstants(request, head);
  if (status.ok()) status = SetValues(request, head);
  if (!status.ok()) return status;
  encoding.Reserve(request.tensors.size());
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorView& view = request.tensors[i];
    const Result<int64_t> bytes = TensorBytes(view, i);
    if (!bytes.ok()) return bytes.status();
    Result<WantedTensor> wanted = WantedOf(view, request.output_dtype, i);
    if (!wanted.ok()) return wanted.status();
    status = encoding.Add(view, *bytes, *std::move(wanted), view);
    if (!status.ok()) return status;
    if (status = SetTensor(view, i, *encoding.tensors.back()); !status.ok()) return status;
  }
  return {};
}

// The same of a prepared call: whole, or by its id and the values of the call.
// REQUIRES: EncodeRotate has accepted the request.
Status FillPrepared(const RotateRequest& request, bool is_whole, Encoding& encoding) {
  const PreparedState& state = *PreparedState::Of(*request.prepared);
  const v1::RotateRequest& prepared = state.preparation->message().rotate();
  std::vector<Preparation::Tensor> changed;
  const auto found = TensorsOf(request, changed);
  if (!found.ok()) return found.status();
  v1::RotateRequest& head = *encoding.message.head;
  if (is_whole) {
    head = prepared;
    head.clear_tensors();
    if (head.has_output()) head.mutable_output()->clear_strides();  // EncodeWhole sets them
    if (head.output().ByteSizeLong() == 0) head.clear_output();
  } else {
    head.set_prepared_id(state.id);
  }
  if (Status status = SetValues(request, head); !status.ok()) return status;
  encoding.Reserve((*found)->size());
  for (size_t i = 0; i < (*found)->size(); ++i) {
    const Preparation::Tensor& tensor = (**found)[i];
    Status status = encoding.Add(tensor.view, tensor.bytes, tensor.wanted, request.tensors[i]);
    if (!status.ok()) return status;
    v1::Tensor& message = *encoding.tensors.back();
    if (is_whole) message = prepared.tensors(static_cast<int>(i));
    v1::Array& array = *message.mutable_array();
    array.clear_shape();
    // The server knows the shapes, unless calls differ in the length of an axis.
    if (is_whole || state.preparation->has_open_axis()) SetShape(tensor.view.shape, array);
    if (!is_whole) continue;
    array.mutable_strides()->Assign(tensor.view.strides.begin(), tensor.view.strides.end());
  }
  return {};
}

Result<EncodedRotate> EncodePrepared(const RotateRequest& request, const Region& region,
                                     Route route, BorrowedSlices& borrowed) {
  Encoding encoding;
  Status status = FillPrepared(request, /*is_whole=*/false, encoding);
  if (!status.ok()) return status;
  PlaceTensors(region, route, encoding);
  // The prepared request has the strides, which say nothing about results in the answer.
  if (encoding.wants_strides() && !encoding.writes_strides()) {
    encoding = {};
    return EncodeWhole(request, region, route, borrowed);
  }
  const bool has_text = !request.request_id.empty() || !request.labels.empty();
  if (route == Route::kInProcess && !has_text && StayInRegion(encoding.encoded.wanted)) {
    encoding.encoded.call = TakeMessage(encoding, request);
    return std::move(encoding.encoded);
  }
  return Join(encoding, route, borrowed);
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
  Encoding encoding;
  Status status = request.prepared.has_value() ? FillPrepared(request, /*is_whole=*/true, encoding)
                                               : FillWhole(request, encoding);
  if (!status.ok()) return status;
  PlaceTensors(region, route, encoding);
  if (encoding.writes_strides() && encoding.wants_strides()) {
    const std::vector<WantedTensor>& wanted = encoding.encoded.wanted;
    SetOutputStrides(
        wanted.size(), [&wanted](size_t i) -> const WantedTensor& { return wanted[i]; },
        *encoding.message.head->mutable_output());
  }
  return Join(encoding, route, borrowed);
}

Result<EncodedRotate> EncodeRotate(const RotateRequest& request, const Region& region, Route route,
                                   BorrowedSlices& borrowed) {
  if (!request.prepared.has_value()) return EncodeWhole(request, region, route, borrowed);
  if (Status status = CheckPreparedCall(request); !status.ok()) return status;
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
  if (!message.ok()) return Unreadable(message.status());
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
  return head().error().code() == 0 ? Status() : FromMessage(head().error());
}

// Checks every tensor before it writes any: a reply that is not valid leaves all outputs untouched.
Result<RotateReply> ReceivedReply::ToReply(std::vector<WantedTensor> wanted,
                                           OutputPool& pool) const {
  if (Status status = error(); !status.ok()) return status;
  const auto count = static_cast<size_t>(head().tensors_size());
  if (count != wanted.size()) {
    return Unreadable("tensors", count, wanted.size());
  }
  for (size_t i = 0; i < count; ++i) {
    const v1::Array& array = head().tensors(static_cast<int>(i)).array();
    if (Status status = CheckTensor(array, message_, wanted[i], i); !status.ok()) return status;
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
