// RequestRecord: what metrics and log say of a request that has been answered. RequestRecorder
// counts it and writes its line.
//
// Threading:  A record is a value; the recorder is thread-safe.
// Ownership:  A record refers to what it names. `metrics` and `clock` must outlive the recorder.
#ifndef ROPE_SERVER_TELEMETRY_REQUEST_RECORD_H_
#define ROPE_SERVER_TELEMETRY_REQUEST_RECORD_H_

#include <google/protobuf/map.h>

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/clock.h"
#include "server/telemetry/metrics.h"

namespace rope::server {

using RequestLabels = google::protobuf::Map<std::string, std::string>;

struct RequestRecord {
  // Who called, and what the caller calls the request. Empty: not known.
  struct Caller {
    std::string peer = {};         // peers.h
    std::string identity = {};     // of the access file
    std::string request_id = {};   // x-request-id
    std::string traceparent = {};  // W3C
  };

  Method method = Method::kRotate;
  Transport transport = Transport::kInline;
  absl::string_view id = {};
  absl::Time received = {};
  int64_t message_bytes = 0;
  const RequestLabels* labels = nullptr;  // null: it has none
  // Asked only if a line is written: reading headers costs.
  absl::FunctionRef<Caller()> caller;
};

class RequestRecorder {
 public:
  // `logs`: whether requests have lines. OK is at level debug.
  RequestRecorder(Metrics& metrics, const Clock& clock, bool logs)
      : metrics_(metrics), clock_(clock), logs_(logs) {}

  // Called before the answer is sent.
  void Add(const RequestRecord& record, const absl::Status& status, int64_t reply_bytes);

 private:
  Metrics& metrics_;
  const Clock& clock_;
  const bool logs_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_REQUEST_RECORD_H_
