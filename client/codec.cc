#include "client/codec.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/messages.h"
#include "proto/message_join.h"

namespace rope::client {
namespace {

v1::Operation ToMessage(Operation operation) {
  switch (operation) {
    case Operation::kRotate:
      return v1::OPERATION_ROTATE;
    case Operation::kInverse:
      return v1::OPERATION_INVERSE;
    case Operation::kBackward:
      return v1::OPERATION_BACKWARD;
    case Operation::kAddSinusoidal:
      return v1::OPERATION_ADD_SINUSOIDAL;
    case Operation::kReposition:
      return v1::OPERATION_REPOSITION;
  }
  return v1::OPERATION_UNSPECIFIED;
}

void SetIntegers(const std::vector<int64_t>& values, const std::vector<int64_t>& shape,
                 v1::Array& array) {
  array.set_dtype(v1::DTYPE_INT64);
  if (shape.empty()) {
    array.add_shape(static_cast<int64_t>(values.size()));
  } else {
    array.mutable_shape()->Add(shape.begin(), shape.end());
  }
  array.set_raw(values.data(), values.size() * sizeof(int64_t));
}

v1::Positions ToMessage(const Positions& positions) {
  v1::Positions message;
  if (positions.start.has_value()) message.set_start(*positions.start);
  if (!positions.starts.empty()) SetIntegers(positions.starts, {}, *message.mutable_starts());
  if (!positions.position_ids.empty() || !positions.position_ids_shape.empty()) {
    SetIntegers(positions.position_ids, positions.position_ids_shape,
                *message.mutable_position_ids());
  }
  if (!positions.cu_seqlens.empty()) {
    SetIntegers(positions.cu_seqlens, {}, *message.mutable_cu_seqlens());
  }
  message.mutable_seq_len()->Add(positions.seq_len.begin(), positions.seq_len.end());
  if (positions.cp_size.has_value()) message.set_cp_size(*positions.cp_size);
  if (positions.cp_rank.has_value()) message.set_cp_rank(*positions.cp_rank);
  return message;
}

v1::RotateRequest HeadOf(const RotateRequest& request, const std::string& request_id) {
  v1::RotateRequest head;
  head.set_request_id(request_id);
  *head.mutable_rope() = ToMessage(request.rope);
  *head.mutable_positions() = ToMessage(request.positions);
  head.set_operation(ToMessage(request.operation));
  head.set_return_attention_factor(request.return_attention_factor);
  if (request.reposition.has_value()) {
    v1::Reposition& reposition = *head.mutable_reposition();
    *reposition.mutable_from() = ToMessage(request.reposition->from);
    if (request.reposition->from_rope.has_value()) {
      *reposition.mutable_from_rope() = ToMessage(*request.reposition->from_rope);
    }
  }
  return head;
}

v1::Role ToMessage(Role role) {
  return role == Role::kQ ? v1::ROLE_Q : v1::ROLE_K;
}

v1::Tensor ToMessage(const TensorView& tensor) {
  v1::Tensor message;
  if (tensor.head_ranges.empty()) message.set_role(ToMessage(tensor.role));
  for (const HeadRange& range : tensor.head_ranges) {
    v1::HeadRange& item = *message.add_head_ranges();
    if (range.role.has_value()) item.set_role(ToMessage(*range.role));
    item.set_begin(range.begin);
    item.set_end(range.end);
  }
  message.set_layout(tensor.layout);
  message.mutable_array()->set_dtype(ToMessage(tensor.dtype));
  message.mutable_array()->mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  return message;
}

// Bytes of tensor number `index`, which the client must know before it touches its memory.
Result<int64_t> SizeOf(const TensorView& tensor, size_t index) {
  int64_t bytes = ElementBytes(tensor.dtype);
  for (size_t axis = 0; axis < tensor.shape.size(); ++axis) {
    const int64_t length = tensor.shape[axis];
    if (length < 0) {
      return Status(StatusCode::kInvalidArgument,
                    absl::StrCat("tensors[", index, "].array.shape[", axis, "]: got ", length,
                                 ", want a length >= 0"));
    }
    if (__builtin_mul_overflow(bytes, length, &bytes)) {
      return Status(StatusCode::kInvalidArgument,
                    absl::StrCat("tensors[", index, "].array.shape: got more than ",
                                 std::numeric_limits<int64_t>::max(), " bytes, want fewer"));
    }
  }
  if (bytes > 0 && tensor.data == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  absl::StrCat("tensors[", index, "].data: got null, want ", bytes, " bytes"));
  }
  return bytes;
}

Status Unreadable(const std::string& why) {
  return Status(StatusCode::kInternal, absl::StrCat("reply: ", why));
}

// Whether the tensor that came back is what `view` asked for.
Status CheckTensor(const v1::Array& array, const proto::SplitMessage& message,
                   const TensorView& view, size_t index) {
  const bool same_shape = array.shape_size() == static_cast<int>(view.shape.size()) &&
                          std::equal(view.shape.begin(), view.shape.end(), array.shape().begin());
  if (!same_shape || array.dtype() != ToMessage(view.dtype)) {
    return Unreadable(absl::StrCat(
        "tensors[", index, "].array: got another shape or type, want those of the request"));
  }
  const Result<int64_t> want = SizeOf(view, index);
  if (!want.ok()) return want.status();
  const int64_t got = proto::HasPayload(array) ? proto::PayloadOf(array, message).bytes : 0;
  if (got == *want) return {};
  return Unreadable(
      absl::StrCat("tensors[", index, "].array.raw: got ", got, " bytes, want ", *want));
}

RotatedTensor TakeTensor(const v1::Array& array, const proto::SplitMessage& message,
                         const TensorView& view) {
  RotatedTensor tensor;
  tensor.role = view.role;
  tensor.layout = view.layout;
  tensor.dtype = view.dtype;
  tensor.shape = view.shape;
  tensor.data = view.output;
  if (!proto::HasPayload(array)) return tensor;
  const proto::FragmentedBytes& payload = proto::PayloadOf(array, message);
  tensor.bytes = payload.bytes;
  void* out = view.output;
  if (out == nullptr) {
    // Not zeroed first: that would cost as much as the copy.
    tensor.owned = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(tensor.bytes));
    out = tensor.owned.get();
    tensor.data = out;
  }
  payload.CopyTo(out);
  return tensor;
}

Status FromMessage(const v1::Error& error) {
  return Status(static_cast<StatusCode>(error.code()), error.message(),
                ErrorDetail{.field = error.field(),
                            .got = error.got(),
                            .want = error.want(),
                            .retry_delay_ms = error.retry_delay_ms(),
                            .executed = error.executed()});
}

void TakeHead(const v1::RotateResponse& head, RotateReply& reply) {
  reply.request_id = head.request_id();
  reply.attention_factor = head.attention_factor();
  reply.attention_factor_applied = head.attention_factor_applied();
  reply.device = head.device();
  reply.microseconds = {.decode = head.microseconds().decode(),
                        .validate = head.microseconds().validate(),
                        .queue = head.microseconds().queue(),
                        .execute = head.microseconds().execute()};
  reply.warnings.assign(head.warnings().begin(), head.warnings().end());
}

}  // namespace

Result<grpc::ByteBuffer> EncodeRotate(const RotateRequest& request, const std::string& request_id,
                                      PayloadLoans& loans) {
  std::vector<v1::Tensor> tensors;
  std::vector<proto::TensorPart> parts;
  tensors.reserve(request.tensors.size());  // parts point into it
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorView& view = request.tensors[i];
    const Result<int64_t> bytes = SizeOf(view, i);
    if (!bytes.ok()) return bytes.status();
    tensors.push_back(ToMessage(view));
    parts.push_back({.tensor = &tensors.back(),
                     .raw = {static_cast<const char*>(view.data), static_cast<size_t>(*bytes)}});
  }
  std::vector<grpc::Slice> slices;
  for (const proto::MessagePart& part : proto::Join(HeadOf(request, request_id), parts)) {
    if (!part.header.empty()) slices.emplace_back(part.header);
    if (part.payload.empty()) continue;
    if (static_cast<int64_t>(part.payload.size()) < kLentBytesMin) {
      slices.emplace_back(part.payload.data(), part.payload.size());
    } else {
      slices.push_back(loans.Lend(part.payload));
    }
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

Result<ReceivedReply> ReceivedReply::Parse(const grpc::ByteBuffer& buffer) {
  ReceivedReply reply;
  if (!buffer.Dump(&reply.slices_).ok()) {
    return Unreadable("got compressed bytes that cannot be read");
  }
  std::vector<std::string_view> fragments;
  fragments.reserve(reply.slices_.size());
  for (const grpc::Slice& slice : reply.slices_) {
    fragments.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  static const proto::Schema& schema = proto::Schema::Of(v1::RotateResponse::descriptor());
  auto message = proto::Split(schema, fragments, {.unknown_fields = proto::UnknownFields::kSkip});
  if (!message.ok()) return Unreadable(std::string(message.status().message()));
  reply.message_ = *std::move(message);
  if (!reply.head_.ParseFromString(reply.message_.skeleton)) {
    return Unreadable("got malformed bytes");
  }
  return reply;
}

Status ReceivedReply::error() const {
  return head_.error().code() == 0 ? Status() : FromMessage(head_.error());
}

Result<RotateReply> ReceivedReply::Take(const std::vector<TensorView>& views) const {
  if (Status status = error(); !status.ok()) return status;
  const auto count = static_cast<size_t>(head_.tensors_size());
  if (count != views.size()) {
    return Unreadable(absl::StrCat("tensors: got ", count, ", want ", views.size()));
  }
  for (size_t i = 0; i < count; ++i) {
    const v1::Array& array = head_.tensors(static_cast<int>(i)).array();
    if (Status status = CheckTensor(array, message_, views[i], i); !status.ok()) return status;
  }
  RotateReply reply;
  TakeHead(head_, reply);
  reply.tensors.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const v1::Array& array = head_.tensors(static_cast<int>(i)).array();
    reply.tensors.push_back(TakeTensor(array, message_, views[i]));
  }
  return reply;
}

}  // namespace rope::client
