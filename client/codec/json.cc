#include "client/codec/json.h"

#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "client/error.h"

namespace rope::client {

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
