#include "server/telemetry/request_record.h"

#include <spdlog/spdlog.h>

#include <map>

#include "absl/strings/str_join.h"
#include "server/error.h"
#include "server/limits.h"

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

void WriteLine(spdlog::level::level_enum level, const RequestRecord& record) {
  const absl::Status& status = record.status;
  const auto left_out = AdmitLine(LogKindOf(record.method, status.code()));
  if (!left_out.has_value()) return;
  // An id that was refused may have any length.
  LogLine line;
  line.Text("request", record.id.substr(0, limits::kRequestIdBytesMax))
      .Word("method", Name(record.method))
      .Word("code", absl::StatusCodeToString(status.code()));
  if (!status.ok()) line.Text("message", ShortText(status.message()));
  if (record.labels != nullptr) AddLabels(*record.labels, line);
  record.add_caller(line);
  line.Number("duration_us", absl::ToInt64Microseconds(record.duration))
      .Number("received_bytes", record.message_bytes)
      .Number("sent_bytes", record.reply_bytes)
      .LeftOut(*left_out);
  Log(level, line);
}

}  // namespace

void AddRecord(const RequestRecord& record, bool logs, Metrics& metrics) {
  const absl::StatusCode code = record.status.code();
  if (record.transport == Transport::kRing) {
    metrics.ring_requests().End(code, record.duration);
  } else if (record.transport == Transport::kStream) {
    metrics.stream_requests().End(code, record.duration);
  } else {
    metrics.CallsOf(record.method)
        .End({code, record.duration, record.message_bytes, record.reply_bytes});
  }
  auto level = spdlog::level::info;
  if (code == absl::StatusCode::kOk) level = spdlog::level::debug;
  if (code == absl::StatusCode::kInternal) level = spdlog::level::err;
  if (logs && spdlog::should_log(level)) WriteLine(level, record);
}

}  // namespace rope::server
