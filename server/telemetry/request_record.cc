#include "server/telemetry/request_record.h"

#include <spdlog/spdlog.h>

#include <map>

#include "absl/strings/str_join.h"
#include "server/error.h"
#include "server/limits.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

static_assert(static_cast<size_t>(LogKind::kCall) + kMethodCount * kCodeCount <= kLogKindsMax);

// Each method and code is a kind of log line, with a limit of its own.
size_t LogKindOf(Method method, absl::StatusCode code) {
  return static_cast<size_t>(LogKind::kCall) + static_cast<size_t>(method) * kCodeCount +
         IndexOf(code);
}

// Adds labels, ordered by key: ` labels="pod=a,step=3"`. They may be those of a request that was
// refused for them, so the text is cut.
void AddLabels(const RequestLabels& labels, LogLine& line) {
  if (labels.empty()) return;
  const std::map<std::string, std::string> ordered(labels.begin(), labels.end());
  line.Text("labels", ShortText(absl::StrJoin(ordered, ",", absl::PairFormatter("="))));
}

void AddCaller(const RequestRecord::Caller& caller, LogLine& line) {
  const auto add = [&line](absl::string_view key, absl::string_view value) {
    if (!value.empty()) line.Text(key, ShortText(value, limits::kRequestIdBytesMax));
  };
  add("peer", caller.peer);
  add("identity", caller.identity);
  add("x_request_id", caller.request_id);
  add("trace_id", TraceIdOf(caller.traceparent));
}

void WriteLine(spdlog::level::level_enum level, const RequestRecord& record,
               const absl::Status& status, absl::Duration duration, int64_t reply_bytes) {
  const auto left_out = AdmitLine(LogKindOf(record.method, status.code()));
  if (!left_out.has_value()) return;
  // An id that was refused may have any length.
  LogLine line;
  line.Text("request", record.id.substr(0, limits::kRequestIdBytesMax))
      .Word("method", Name(record.method))
      .Word("code", absl::StatusCodeToString(status.code()));
  if (!status.ok()) line.Text("message", ShortText(status.message()));
  if (record.labels != nullptr) AddLabels(*record.labels, line);
  AddCaller(record.caller(), line);
  line.Number("duration_us", absl::ToInt64Microseconds(duration))
      .Number("received_bytes", record.message_bytes)
      .Number("sent_bytes", reply_bytes)
      .LeftOut(*left_out);
  Log(level, line);
}

}  // namespace

void RequestRecorder::Add(const RequestRecord& record, const absl::Status& status,
                          int64_t reply_bytes) {
  const absl::Duration duration = clock_.Now() - record.received;
  if (record.transport == Transport::kRing) {
    metrics_.ring_requests().End(status.code(), duration);
  } else if (record.transport == Transport::kStream) {
    metrics_.stream_requests().End(status.code(), duration);
  } else {
    metrics_.CallsOf(record.method)
        .End({status.code(), duration, record.message_bytes, reply_bytes});
  }
  auto level = spdlog::level::info;
  if (status.ok()) level = spdlog::level::debug;
  if (status.code() == absl::StatusCode::kInternal) level = spdlog::level::err;
  if (logs_ && spdlog::should_log(level)) WriteLine(level, record, status, duration, reply_bytes);
}

}  // namespace rope::server
