#include "client/codec/health_messages.h"

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/error.h"
#include "proto/error.h"
#include "proto/wire/message_join.h"
#include "proto/wire/wire_cursor.h"

namespace rope::client {
namespace {

using proto::WireCursor;
using proto::WireType;

// Numbers of grpc/health/v1/health.proto.
constexpr int kServiceField = 1;
constexpr uint32_t kStatusField = 1;
constexpr int32_t kServingNumber = 1;
constexpr int32_t kNotServingNumber = 2;

// The last value of the status field; 0 if the message has none.
absl::StatusOr<int32_t> StatusNumberIn(std::string_view message) {
  WireCursor cursor(absl::MakeConstSpan(&message, 1));
  int32_t number = 0;
  while (cursor.position() < cursor.size()) {
    const absl::StatusOr<uint32_t> tag = cursor.ReadTag();
    if (!tag.ok()) return tag.status();
    const auto type = static_cast<WireType>(*tag & 7);
    const uint32_t field = *tag >> 3;
    if (field == 0) return proto::InvalidField("field", "number 0", "1 or more");
    if (field == kStatusField && type == WireType::kVarint) {
      const absl::StatusOr<uint64_t> value = cursor.ReadVarint();
      if (!value.ok()) return value.status();
      number = static_cast<int32_t>(*value);  // as the generated parser cuts an enum
    } else if (const absl::Status skipped = cursor.SkipField(type); !skipped.ok()) {
      return skipped;
    }
  }
  return number;
}

}  // namespace

grpc::ByteBuffer HealthRequestOf(const std::string& service) {
  std::string message;
  if (!service.empty()) proto::AppendField(kServiceField, service, message);
  const grpc::Slice slice(message);
  return grpc::ByteBuffer(&slice, 1);
}

Result<ServingStatus> ServingStatusOf(const Result<grpc::ByteBuffer>& reply) {
  if (!reply.ok()) return reply.status();
  grpc::Slice joined;
  absl::StatusOr<int32_t> number = absl::InternalError("no bytes");
  if (reply->DumpToSingleSlice(&joined).ok()) {
    number = StatusNumberIn({reinterpret_cast<const char*>(joined.begin()), joined.size()});
  }
  if (!number.ok()) {
    return MakeError(Reason::kInternal, "reply", "malformed bytes",
                     "grpc.health.v1.HealthCheckResponse");
  }
  if (*number == kServingNumber) return ServingStatus::kServing;
  if (*number == kNotServingNumber) return ServingStatus::kNotServing;
  return ServingStatus::kUnknown;
}

}  // namespace rope::client
