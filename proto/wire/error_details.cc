#include "proto/wire/error_details.h"

#include "rope/v1/status_details.pb.h"

namespace rope::proto {

v1::Error MakeError(int code, std::string_view message) {
  v1::Error error;
  error.set_code(code);
  error.set_message(std::string(message));
  const size_t got = message.find(": got ");
  const size_t want = message.rfind(", want ");
  if (got == std::string_view::npos || want == std::string_view::npos || want < got) return error;
  const size_t got_begin = got + std::string_view(": got ").size();
  if (got_begin > want) return error;
  error.set_field(std::string(message.substr(0, got)));
  error.set_got(std::string(message.substr(got_begin, want - got_begin)));
  error.set_want(std::string(message.substr(want + std::string_view(", want ").size())));
  return error;
}

std::string EncodeStatusDetails(const v1::Error& error) {
  v1::StatusDetails details;
  details.set_code(error.code());
  details.set_message(error.message());
  details.add_details()->PackFrom(error);
  return details.SerializeAsString();
}

std::optional<v1::Error> DecodeStatusDetails(std::string_view bytes) {
  v1::StatusDetails details;
  v1::Error error;
  if (!details.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return std::nullopt;
  for (const google::protobuf::Any& detail : details.details()) {
    if (detail.UnpackTo(&error)) return error;
  }
  return std::nullopt;
}

}  // namespace rope::proto
