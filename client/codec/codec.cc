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
#include "client/error.h"
#include "proto/error.h"
#include "proto/ipc/ring.h"
#include "proto/wire/message_join.h"
#include "proto/wire/stream_message.h"

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

RotatedTensor ReadTensorInto(const v1::Tensor& head, const proto::SplitMessage& message,
                             WantedTensor wanted, OutputPool& pool) {
  RotatedTensor tensor;
  tensor.role = wanted.role;
  tensor.layout = std::move(wanted.layout);
  tensor.dtype = wanted.dtype;
  tensor.shape = std::move(wanted.shape);
  tensor.data = wanted.output;
  tensor.bytes = wanted.bytes;
  if (head.fp8_scales_size() > 0) tensor.fp8_scale = head.fp8_scales(0);
  const bool has_payload = proto::HasPayload(head.array());
  if (!has_payload && wanted.staged == nullptr) return tensor;
  void* out = wanted.output;
  if (out == nullptr) {
    tensor.owned = pool.Allocate(tensor.bytes);
    out = tensor.owned.get();
    tensor.data = out;
  }
  if (has_payload) {
    proto::PayloadOf(head.array(), message).CopyTo(out);
  } else {
    std::memcpy(out, wanted.staged, static_cast<size_t>(tensor.bytes));
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

// A byte range of the region.
struct Span {
  int64_t offset = 0;
  int64_t bytes = 0;

  bool operator==(const Span&) const = default;
  bool Overlaps(const Span& other) const {
    return offset < other.offset + other.bytes && other.offset < offset + bytes;
  }
};
using Range = std::optional<Span>;  // nullopt: memory outside the region

Range RangeIn(const Region& region, const void* data, int64_t bytes) {
  if (region.ids == nullptr || data == nullptr || bytes == 0) return std::nullopt;
  const std::optional<int64_t> offset = region.memory->OffsetOf(data, bytes);
  if (!offset.has_value()) return std::nullopt;
  return Span{*offset, bytes};
}

void SetSpan(uint64_t region_id, const Span& span, v1::RegionSpan& message) {
  message.set_region_id(region_id);
  message.set_offset(static_cast<uint64_t>(span.offset));
}

// The input of a tensor and the destination of its result. Staging redirects both.
struct Place {
  const void* data = nullptr;
  int64_t bytes = 0;
  void* output = nullptr;
  bool fits_in_place = false;  // the result has the same shape, layout and type as the input
};

Place PlaceOf(const TensorView& view, int64_t bytes, const WantedTensor& wanted) {
  return {.data = view.data,
          .bytes = bytes,
          .output = view.output,
          .fits_in_place =
              view.strides.empty() && wanted.layout == view.layout && wanted.dtype == view.dtype};
}

// Size of the staged run for all tensors and results. nullopt: it exceeds `capacity`, or staging
// does not pay. Rounding happens after the check against `capacity`, so it cannot overflow.
std::optional<int64_t> StagedBytes(const std::vector<Place>& places,
                                   const std::vector<WantedTensor>& wanted, Route route,
                                   int64_t capacity) {
  int64_t input_bytes = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    for (const int64_t part : {places[i].bytes, places[i].fits_in_place ? 0 : wanted[i].bytes}) {
      if (part > capacity - bytes) return std::nullopt;
      bytes += ArenaMemory::RoundedUp(part);
    }
    input_bytes += places[i].bytes;
  }
  if (input_bytes < (route == Route::kRing ? 1 : kStagedBytesMin)) return std::nullopt;
  return bytes;
}

// Copies the tensors to one run of staging memory and redirects `places` to it. A result takes the
// place of its input if it fits, else the memory after it. Changes nothing if there is no room.
StagedRun Stage(const Region& region, Route route, const std::vector<WantedTensor>& wanted,
                std::vector<Place>& places) {
  const auto bytes = StagedBytes(places, wanted, route, region.memory->capacity_bytes());
  if (!bytes.has_value()) return {};
  std::optional<StagedRun> run = StagedRun::Allocate(region.memory, *bytes);
  if (!run.has_value()) return {};
  std::byte* next = run->data();
  for (size_t i = 0; i < places.size(); ++i) {
    Place& place = places[i];
    if (place.bytes > 0) std::memcpy(next, place.data, static_cast<size_t>(place.bytes));
    place.data = place.output = next;
    next += ArenaMemory::RoundedUp(place.bytes);
    if (place.fits_in_place) continue;
    place.output = next;
    next += ArenaMemory::RoundedUp(wanted[i].bytes);
  }
  return *std::move(run);
}

// Sets `array.region` of every tensor whose input lies in the region; returns these ranges.
std::vector<Range> NameInputs(const Region& region, const EncodedRotate& encoded,
                              const std::vector<Place>& places,
                              const std::vector<v1::Tensor*>& tensors) {
  std::vector<Range> inputs;
  inputs.reserve(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    inputs.push_back(RangeIn(region, places[i].data, places[i].bytes));
    if (!inputs.back().has_value()) continue;
    SetSpan(*encoded.region_id, *inputs.back(), *tensors[i]->mutable_array()->mutable_region());
  }
  return inputs;
}

// Places the results in the region, if every output lies there and overlaps no input except its
// own, exactly. Otherwise all results come in the message. An in-place request is not idempotent,
// unless it is staged: the caller's tensors then stay as they are.
void PlaceOutputs(const Region& region, const std::vector<Place>& places,
                  const std::vector<Range>& inputs, v1::RotateRequest& head,
                  EncodedRotate& encoded) {
  std::vector<Span> outputs;
  bool in_place = false;
  for (size_t i = 0; i < encoded.wanted.size(); ++i) {
    const Range output = RangeIn(region, places[i].output, encoded.wanted[i].bytes);
    if (!output.has_value()) return;
    for (size_t j = 0; j < inputs.size(); ++j) {
      const bool is_own = i == j && inputs[j] == output;
      in_place |= is_own;
      if (!is_own && inputs[j].has_value() && inputs[j]->Overlaps(*output)) return;
    }
    outputs.push_back(*output);
  }
  for (const Span& output : outputs) {
    SetSpan(*encoded.region_id, output, *head.mutable_output()->add_regions());
  }
  const bool is_staged = encoded.staged.data() != nullptr;
  for (size_t i = 0; i < places.size(); ++i) {
    encoded.wanted[i].in_region = true;
    if (is_staged) encoded.wanted[i].staged = places[i].output;
  }
  encoded.uses_region |= !outputs.empty();
  encoded.idempotent = is_staged || !in_place;
}

// Pairs each tensor message with the bytes to send; tensors in the region have none. The parts
// refer to `tensors` and to the callers' memory.
std::vector<proto::TensorPart> PartsOf(const std::vector<v1::Tensor*>& tensors,
                                       const std::vector<Place>& places,
                                       const std::vector<Range>& inputs) {
  std::vector<proto::TensorPart> parts;
  parts.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    parts.push_back({.tensor = tensors[i]});
    if (inputs[i].has_value()) continue;
    parts.back().raw = {static_cast<const char*>(places[i].data),
                        static_cast<size_t>(places[i].bytes)};
  }
  return parts;
}

// Whether request and reply fit through a ring: neither contains tensor bytes, and the request has
// at most kRingRequestBytes.
bool FitRing(const std::vector<proto::MessagePart>& message,
             const std::vector<WantedTensor>& wanted) {
  return message.size() == 1 && message.front().payload.empty() &&
         message.front().header.size() <= proto::kRingRequestBytes &&
         std::ranges::all_of(wanted, [](const WantedTensor& tensor) { return tensor.in_region; });
}

grpc::ByteBuffer BufferOf(const std::vector<proto::MessagePart>& message,
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

}  // namespace

// The steps depend on each other: staging moves the tensors into the region before their ranges are
// looked up; the id is acquired before any message names it, so that a fence waits for this call;
// and it is released again if nothing uses the region. Callers may hold a lock (AsyncCall does).
Result<EncodedRotate> EncodeRotate(const RotateRequest& request, const Region& region, Route route,
                                   BorrowedSlices& borrowed) {
  MessageArena memory;
  v1::RotateRequest& head = memory.Make<v1::RotateRequest>();
  if (Status status = SetHead(request, head); !status.ok()) return status;
  EncodedRotate encoded;
  std::vector<v1::Tensor*> tensors;
  std::vector<Place> places;
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorView& view = request.tensors[i];
    tensors.push_back(&memory.Make<v1::Tensor>());
    const Result<int64_t> bytes = SetTensor(view, i, *tensors.back());
    if (!bytes.ok()) return bytes.status();
    encoded.wanted.push_back(WantedOf(view, request.output_dtype));
    places.push_back(PlaceOf(view, *bytes, encoded.wanted.back()));
    encoded.tensor_bytes += *bytes;
  }
  if (region.is_staging) encoded.staged = Stage(region, route, encoded.wanted, places);
  if (region.ids != nullptr) encoded.region_id = region.ids->Acquire();
  const std::vector<Range> inputs = NameInputs(region, encoded, places, tensors);
  PlaceOutputs(region, places, inputs, head, encoded);
  for (const Range& input : inputs) encoded.uses_region |= input.has_value();
  if (!encoded.uses_region) encoded.region_id.reset();
  const std::vector<proto::TensorPart> parts = PartsOf(tensors, places, inputs);
  std::vector<proto::MessagePart> joined = proto::Join(head, parts);
  if (route == Route::kRing && FitRing(joined, encoded.wanted)) {
    encoded.ring_message = std::move(joined.front().header);
  } else {
    encoded.message = BufferOf(joined, borrowed);
  }
  return encoded;
}

grpc::ByteBuffer StreamMessageOf(uint64_t sequence, const grpc::ByteBuffer& rotate) {
  std::vector<grpc::Slice> slices;
  if (!rotate.Dump(&slices).ok()) slices.clear();  // only compressed bytes cannot be dumped
  slices.emplace(slices.begin(),
                 proto::StreamPrefix(sequence, static_cast<int64_t>(rotate.Length())));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer StreamCancelOf(uint64_t sequence) {
  v1::RotateStreamRequest message;
  message.set_sequence(sequence);
  message.mutable_cancel();
  return BufferOf(message.SerializeAsString());
}

Status ReceivedReply::Take(const grpc::ByteBuffer& buffer,
                           std::vector<std::string_view>& fragments) {
  if (!buffer.Dump(&slices_).ok()) return Unreadable("", "compressed bytes that cannot be read");
  fragments.reserve(slices_.size());
  for (const grpc::Slice& slice : slices_) {
    fragments.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return {};
}

Status ReceivedReply::ParseFragments(absl::Span<const std::string_view> fragments) {
  static const proto::Schema& schema = proto::Schema::Of(v1::RotateResponse::descriptor());
  auto message = proto::Split(schema, fragments, {.unknown_fields = proto::UnknownFields::kSkip});
  if (!message.ok()) return Unreadable(message.status());
  message_ = *std::move(message);
  if (!head_->ParseFromString(message_.skeleton)) return Unreadable("", "malformed bytes");
  return {};
}

Result<ReceivedReply> ReceivedReply::Parse(const grpc::ByteBuffer& buffer) {
  ReceivedReply reply;
  std::vector<std::string_view> fragments;
  if (Status status = reply.Take(buffer, fragments); !status.ok()) return status;
  if (Status status = reply.ParseFragments(fragments); !status.ok()) return status;
  return reply;
}

Result<ReceivedReply> ReceivedReply::ParseStream(const grpc::ByteBuffer& buffer,
                                                 uint64_t& sequence) {
  ReceivedReply reply;
  std::vector<std::string_view> fragments;
  if (Status status = reply.Take(buffer, fragments); !status.ok()) return status;
  proto::StreamMessage message;
  const absl::Status read =
      proto::ReadStreamMessage(fragments, proto::UnknownFields::kSkip, message);
  sequence = message.sequence;
  if (!read.ok()) return Unreadable(read);
  if (!message.rotate.has_value()) return Unreadable("", "a message without `rotate`");
  Status status = reply.ParseFragments(message.rotate->fragments);
  if (!status.ok()) return status;
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
