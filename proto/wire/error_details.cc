#include "proto/wire/error_details.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/error.h"
#include "rope/v1/status_details.pb.h"

namespace rope::proto {
namespace {

constexpr char kDomain[] = "rope.v1";

// Adds `message` under the name that google.rpc gives it.
void Add(const google::protobuf::Message& message, const char* name, v1::StatusDetails& details) {
  google::protobuf::Any& detail = *details.add_details();
  detail.set_type_url(absl::StrCat("type.googleapis.com/google.rpc.", name));
  message.SerializeToString(detail.mutable_value());
}

v1::ErrorInfo InfoOf(const v1::Error& error) {
  v1::ErrorInfo info;
  info.set_reason(std::string(absl::StripPrefix(v1::Reason_Name(error.reason()), "REASON_")));
  info.set_domain(kDomain);
  auto& metadata = *info.mutable_metadata();
  if (!error.got().empty()) metadata["got"] = error.got();
  if (!error.want().empty()) metadata["want"] = error.want();
  if (error.may_have_executed()) metadata["may_have_executed"] = "true";
  return info;
}

v1::BadRequest BadRequestOf(const v1::Error& error) {
  v1::BadRequest request;
  v1::BadRequest::FieldViolation& violation = *request.add_field_violations();
  violation.set_field(error.field());
  violation.set_description(
      absl::StrCat("got ", error.got(), error.want().empty() ? "" : ", want ", error.want()));
  return request;
}

v1::RetryInfo RetryInfoOf(const v1::Error& error) {
  v1::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(error.retry_delay_ms() / 1000);
  retry.mutable_retry_delay()->set_nanos(static_cast<int>(error.retry_delay_ms() % 1000 * 1000000));
  return retry;
}

}  // namespace

v1::Error ErrorMessageOf(const absl::Status& status) {
  ErrorParts parts = PartsOf(status);
  v1::Error error;
  error.set_code(status.raw_code());
  error.set_message(std::string(status.message()));
  error.set_field(std::move(parts.field));
  error.set_got(std::move(parts.got));
  error.set_want(std::move(parts.want));
  error.set_retry_delay_ms(parts.retry_delay_ms);
  error.set_may_have_executed(parts.may_have_executed);
  error.set_reason(static_cast<v1::Reason>(parts.reason));
  return error;
}

std::string EncodeStatusDetails(const v1::Error& error) {
  v1::StatusDetails details;
  details.set_code(error.code());
  details.set_message(error.message());
  details.add_details()->PackFrom(error);
  if (error.reason() != v1::REASON_UNSPECIFIED) Add(InfoOf(error), "ErrorInfo", details);
  if (!error.field().empty()) Add(BadRequestOf(error), "BadRequest", details);
  if (error.retry_delay_ms() > 0) Add(RetryInfoOf(error), "RetryInfo", details);
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
