#include "client/codec/control_messages.h"

#include <google/protobuf/wrappers.pb.h>

#include <cstdint>
#include <cstring>
#include <optional>

#include "client/codec/message_call.h"
#include "client/codec/messages.h"
#include "client/error.h"
#include "kernels/status_macros.h"

namespace rope::client {
namespace {

// Numbers of grpc/health/v1/health.proto.
constexpr int32_t kServingNumber = 1;
constexpr int32_t kNotServingNumber = 2;

Status SetPositions(const TablePositions& positions, absl::string_view field,
                    v1::TablePositions& message) {
  const bool has_range = positions.begin != 0 || positions.end != 0;
  if (positions.position_ids.empty()) {
    message.mutable_range()->set_begin(positions.begin);
    message.mutable_range()->set_end(positions.end);
    return {};
  }
  if (has_range) {
    return InvalidField(field, "a range and position_ids", "exactly one of them");
  }
  SetIntegers(positions.position_ids, *message.mutable_position_ids());
  return {};
}

Status SetReposition(const TableReposition& reposition, v1::TableReposition& message) {
  ROPE_RETURN_IF_ERROR(SetPositions(reposition.from, "reposition.from", *message.mutable_from()));
  if (reposition.from_seq_len.has_value()) message.set_from_seq_len(*reposition.from_seq_len);
  if (!reposition.from_rope.has_value()) return {};
  return SetRope(*reposition.from_rope, "reposition.from_rope", *message.mutable_from_rope());
}

// Sets `table` if the message has the array. False: the array does not fit its shape.
bool ReadTable(bool has_array, const v1::Array& array, TableArray& table) {
  if (!has_array) return true;
  const std::optional<DType> dtype = DTypeNumbered(array.dtype());
  if (!dtype.has_value()) return false;
  int64_t bytes = ElementBytes(*dtype);
  for (const int64_t length : array.shape()) {
    if (length < 0 || __builtin_mul_overflow(bytes, length, &bytes)) return false;
  }
  if (bytes != static_cast<int64_t>(array.raw().size())) return false;
  table.dtype = *dtype;
  table.shape.assign(array.shape().begin(), array.shape().end());
  table.data.resize(array.raw().size());
  std::memcpy(table.data.data(), array.raw().data(), array.raw().size());
  return true;
}

}  // namespace

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
  if (number->value() == kServingNumber) return ServingStatus::kServing;
  if (number->value() == kNotServingNumber) return ServingStatus::kNotServing;
  return ServingStatus::kUnknown;
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

}  // namespace rope::client
