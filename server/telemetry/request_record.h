// RequestRecord: what metrics and log say of a request that has been answered.
//
// Threading:  A record is a value; the function is thread-safe.
// Ownership:  A record refers to what it names.
#ifndef ROPE_SERVER_TELEMETRY_REQUEST_RECORD_H_
#define ROPE_SERVER_TELEMETRY_REQUEST_RECORD_H_

#include <google/protobuf/map.h>

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/telemetry/log.h"
#include "server/telemetry/metrics.h"

namespace rope::server {

using RequestLabels = google::protobuf::Map<std::string, std::string>;

struct RequestRecord {
  Method method = Method::kRotate;
  Transport transport = Transport::kInline;
  absl::string_view id = {};
  const RequestLabels* labels = nullptr;  // null: it has none
  const absl::Status& status;
  absl::Duration duration = {};
  int64_t message_bytes = 0;
  int64_t reply_bytes = 0;
  // Adds who called to a line. Asked only if one is written: reading headers costs.
  absl::FunctionRef<void(LogLine& line)> add_caller;
};

// Counts the request and, with `logs`, writes its line; that of OK is at level debug. Called before
// the answer is sent.
void AddRecord(const RequestRecord& record, bool logs, Metrics& metrics);

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_REQUEST_RECORD_H_
