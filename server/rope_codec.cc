#include "server/rope_codec.h"

#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "proto/error_details.h"
#include "proto/message_join.h"
#include "proto/schema.h"
#include "proto/wire_cursor.h"
#include "server/array_reader.h"
#include "server/error.h"
#include "server/limits.h"

namespace rope::server {
namespace {

constexpr proto::SplitOptions kSplitOptions = {
    .skeleton_bytes_max = limits::kSkeletonBytesMax,
    .repeated_messages_max = limits::kRepeatedMessagesMax};

constexpr size_t kSmallTensors = 2;  // q and k
using Views = absl::InlinedVector<std::string_view, 4>;

Views ViewsOf(const std::vector<grpc::Slice>& slices) {
  Views views;
  views.reserve(slices.size());
  for (const grpc::Slice& slice : slices) {
    views.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return views;
}

absl::StatusOr<std::vector<grpc::Slice>> Dump(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  if (bytes.Valid() && !bytes.Dump(&slices).ok()) {
    return absl::InvalidArgumentError("request: got bytes that cannot be read, want a message");
  }
  return slices;
}

absl::Status ParseSkeleton(const std::string& skeleton, google::protobuf::Message& message) {
  if (message.ParseFromString(skeleton)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("request: got bytes that do not parse, want a ",
                                                 message.GetDescriptor()->full_name(),
                                                 " with UTF-8 strings"));
}

grpc::Slice SliceOf(const std::string& bytes) {
  return grpc::Slice(bytes.data(), bytes.size());
}

// Takes over the client's id; a longer one is refused later, under the server's own.
void TakeId(const std::string& id, Request& request) {
  if (id.empty() || static_cast<int64_t>(id.size()) > limits::kRequestIdBytesMax) return;
  request.id = id;
}

// Skips the value of a field of wire type `type` that is not length-delimited.
absl::Status SkipScalar(proto::WireType type, proto::WireCursor& cursor) {
  switch (type) {
    case proto::WireType::kVarint:
      return cursor.ReadVarint().status();
    case proto::WireType::kFixed64:
      return cursor.ReadView(8).status();
    case proto::WireType::kFixed32:
      return cursor.ReadView(4).status();
    default:
      return absl::InvalidArgumentError("request: got a group, want a message");
  }
}

// The request_id of a message that was refused, as far as it can be read; else empty.
absl::StatusOr<std::string> FindId(absl::Span<const std::string_view> fragments) {
  proto::WireCursor cursor(fragments);
  while (cursor.position() < cursor.size()) {
    ROPE_ASSIGN_OR_RETURN(const uint32_t tag, cursor.ReadTag());
    const auto type = static_cast<proto::WireType>(tag & 7);
    if (type != proto::WireType::kLength) {
      ROPE_RETURN_IF_ERROR(SkipScalar(type, cursor));
      continue;
    }
    ROPE_ASSIGN_OR_RETURN(const int64_t length, cursor.ReadLength());
    ROPE_ASSIGN_OR_RETURN(const proto::FragmentedBytes value, cursor.ReadView(length));
    if (tag >> 3 != v1::RotateRequest::kRequestIdFieldNumber) continue;
    std::string id(static_cast<size_t>(value.bytes), '\0');
    value.CopyTo(id.data());
    v1::RotateRequest alone;
    alone.set_request_id(id);
    ROPE_RETURN_IF_ERROR(ParseSkeleton(alone.SerializeAsString(), alone));  // refuses broken UTF-8
    return id;
  }
  return std::string();
}

// On the request's arena, as all of the reply's messages.
v1::RotateResponse& MakeHead(Request& request) {
  auto& head = *google::protobuf::Arena::CreateMessage<v1::RotateResponse>(&request.arena);
  head.set_request_id(request.id);
  head.set_attention_factor(request.plan.attention_factor);
  head.set_attention_factor_applied(request.plan.attention_factor_applied);
  head.set_device(request.device);
  *head.mutable_microseconds() = request.stages;
  for (std::string& warning : request.plan.warnings) head.add_warnings(std::move(warning));
  return head;
}

// The tensor as the reply shows it, without raw bytes: typed in, typed out.
v1::Tensor& MakeTensor(const v1::Tensor& asked, const TensorPlan& plan, const char* output,
                       google::protobuf::Arena& arena) {
  auto& tensor = *google::protobuf::Arena::CreateMessage<v1::Tensor>(&arena);
  tensor.set_role(asked.role());
  tensor.set_layout(plan.output_letters);
  *tensor.mutable_head_ranges() = asked.head_ranges();
  if (kernels::IsFloat8(plan.output_dtype)) tensor.set_fp8_scale(plan.output_scale);
  v1::Array& array = *tensor.mutable_array();
  array.set_dtype(MessageDType(plan.output_dtype));
  for (const int64_t length : ShapeInOrder(plan.output_letters, plan.layout)) {
    array.add_shape(length);
  }
  if (plan.place.region != nullptr) {
    array.mutable_region()->set_region_id(plan.place.id);
    array.mutable_region()->set_offset(plan.place.offset);
  } else if (!proto::HasPayload(asked.array())) {
    WriteNumbers(plan.output_dtype, output, plan.elements(), array);
  }
  return tensor;
}

// How far apart the elements of an output lie that is not packed, in the order of its axes.
void WriteStrides(const v1::RotateRequest& asked, int tensor, v1::Array& array) {
  if (asked.output().in_place()) {
    *array.mutable_strides() = asked.tensors(tensor).array().strides();
  } else if (tensor < asked.output().strides_size()) {
    *array.mutable_strides() = asked.output().strides(tensor).values();
  }
}

}  // namespace

grpc::Slice SliceOf(PooledBuffer buffer) {
  char* const data = buffer.data();
  const auto size = static_cast<size_t>(buffer.size());
  auto owner = std::make_unique<PooledBuffer>(std::move(buffer));
  return grpc::Slice(
      data, size,
      [](void* released) { std::unique_ptr<PooledBuffer>(static_cast<PooledBuffer*>(released)); },
      owner.release());
}

absl::Status DecodeRequest(grpc::ByteBuffer& bytes, int64_t message_bytes_max, Request& request) {
  const auto length = static_cast<int64_t>(bytes.Valid() ? bytes.Length() : 0);
  if (length > message_bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat("request: got ", length,
                                                     " bytes, want at most ", message_bytes_max,
                                                     " (--max_message_bytes)"));
  }
  ROPE_ASSIGN_OR_RETURN(std::vector<grpc::Slice> dumped, Dump(bytes));
  bytes.Clear();
  auto slices = std::make_shared<const std::vector<grpc::Slice>>(std::move(dumped));
  static const proto::Schema& schema = proto::Schema::Of(v1::RotateRequest::descriptor());
  const Views views = ViewsOf(*slices);
  absl::StatusOr<proto::SplitMessage> split = proto::Split(schema, views, kSplitOptions);
  if (!split.ok()) {
    if (const auto id = FindId(views); id.ok()) TakeId(*id, request);
    return split.status();
  }
  request.split = *std::move(split);
  ROPE_RETURN_IF_ERROR(ParseSkeleton(request.split.skeleton, request.message));
  request.received_bytes = std::move(slices);
  TakeId(request.message.request_id(), request);
  return absl::OkStatus();
}

absl::Status DecodeMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  ROPE_ASSIGN_OR_RETURN(const std::vector<grpc::Slice> slices, Dump(bytes));
  ROPE_ASSIGN_OR_RETURN(
      const proto::SplitMessage split,
      proto::Split(proto::Schema::Of(message.GetDescriptor()), ViewsOf(slices), kSplitOptions));
  return ParseSkeleton(split.skeleton, message);
}

grpc::ByteBuffer EncodeMessage(const google::protobuf::Message& message) {
  const grpc::Slice slice = SliceOf(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer EncodeReply(Request& request) {
  absl::InlinedVector<proto::TensorPart, kSmallTensors> parts;
  const Plan& plan = request.plan;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const v1::Tensor& asked = request.message.tensors(static_cast<int>(i));
    v1::Tensor& tensor =
        MakeTensor(asked, plan.tensors[i], request.outputs[i].data(), request.arena);
    WriteStrides(request.message, static_cast<int>(i), *tensor.mutable_array());
    proto::TensorPart& part = parts.emplace_back();
    part.tensor = &tensor;
    const int64_t bytes = plan.tensors[i].output_bytes();
    if (plan.tensors[i].place.region == nullptr && proto::HasPayload(asked.array()) && bytes > 0) {
      part.raw = {request.outputs[i].data(), static_cast<size_t>(bytes)};
    }
  }
  absl::InlinedVector<grpc::Slice, 2 * kSmallTensors> slices;
  size_t next_output = 0;
  for (const proto::MessagePart& part : proto::Join(MakeHead(request), parts)) {
    slices.push_back(SliceOf(part.header));
    if (part.payload.empty()) continue;
    while (request.outputs[next_output].data() != part.payload.data()) ++next_output;
    slices.push_back(SliceOf(std::move(request.outputs[next_output])));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer EncodeError(const std::string& request_id, const absl::Status& status) {
  v1::RotateResponse response;
  response.set_request_id(request_id);
  *response.mutable_error() = proto::MakeError(status.raw_code(), ShortMessage(status.message()));
  response.mutable_error()->set_retry_delay_ms(RetryDelayMs(status));
  response.mutable_error()->set_executed(WasExecuted(status));
  return EncodeMessage(response);
}

}  // namespace rope::server
