#include "server/telemetry/trace_exporter.h"

#include <civetweb.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/mutex.h"
#include "proto/version.h"
#include "server/error.h"

namespace rope::server {
namespace {

constexpr char kService[] = "rope.v1.RopeService";
constexpr char kProgram[] = "rope_server";

// Numbers of OTLP's enums.
constexpr int kKindInternal = 1;
constexpr int kKindServer = 2;
constexpr int kStatusError = 2;

// A JSON string. Bytes that are no UTF-8 become the replacement character.
std::string Text(absl::string_view text) {
  const nlohmann::json json = std::string(text);
  return json.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

// `json`: the value.
void AppendAttribute(absl::string_view key, absl::string_view kind, absl::string_view json,
                     std::string& out) {
  if (out.back() == '}') out.push_back(',');
  absl::StrAppend(&out, R"({"key":")", key, R"(","value":{")", kind, R"(":)", json, "}}");
}

// An empty text is left out.
void AppendText(absl::string_view key, absl::string_view value, std::string& out) {
  if (!value.empty()) AppendAttribute(key, "stringValue", Text(value), out);
}

// OTLP writes integers of 64 bits as strings.
void AppendInteger(absl::string_view key, int64_t value, std::string& out) {
  AppendAttribute(key, "intValue", absl::StrCat("\"", value, "\""), out);
}

void AppendAttributes(const TraceSpan& span, std::string& out) {
  out.append(R"(,"attributes":[)");
  AppendText("rpc.system", "grpc", out);
  AppendText("rpc.service", kService, out);
  AppendText("rpc.method", std::string(Name(span.method)), out);
  AppendInteger("rpc.grpc.status_code", static_cast<int64_t>(span.code), out);
  AppendText("rope.request_id", span.request_id, out);
  AppendText("rope.model", span.model, out);
  AppendText("rope.device", span.device, out);
  AppendText("network.peer.address", span.peer, out);
  if (span.rotation.has_value()) AppendInteger("rope.tokens", span.rotation->tokens, out);
  out.push_back(']');
}

// Whether the server failed, as OpenTelemetry's conventions for gRPC say. Other codes are the
// caller's affair.
bool IsServerError(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

// All members but attributes and status; the object stays open.
void AppendSpan(const SpanIds& ids, absl::string_view name, int kind, int64_t start_ns,
                int64_t end_ns, std::string& out) {
  if (out.back() == '}') out.push_back(',');
  absl::StrAppend(&out, R"({"traceId":")", ToHex(ids.trace), R"(","spanId":")", ToHex(ids.span));
  if (ids.parent != 0) absl::StrAppend(&out, R"(","parentSpanId":")", ToHex(ids.parent));
  absl::StrAppend(&out, R"(","name":")", name, R"(","kind":)", kind, R"(,"startTimeUnixNano":")",
                  start_ns, R"(","endTimeUnixNano":")", end_ns, "\"");
}

// The ids of a stage differ from the call's in the last byte.
void AppendStages(const TraceSpan& call, std::string& out) {
  const RotationReport& rotation = *call.rotation;
  const std::pair<absl::string_view, double> stages[] = {{"decode", rotation.decode_us},
                                                         {"validate", rotation.validate_us},
                                                         {"queue", rotation.queue_us},
                                                         {"execute", rotation.execute_us}};
  int64_t start = absl::ToUnixNanos(call.start);
  uint64_t number = 0;
  for (const auto& [name, microseconds] : stages) {
    const int64_t end = start + std::llround(microseconds * 1e3);
    const SpanIds ids = {call.ids.trace, call.ids.span ^ ++number, call.ids.span};
    AppendSpan(ids, name, kKindInternal, start, end, out);
    out.push_back('}');
    start = end;
  }
}

void AppendCall(const TraceSpan& call, std::string& out) {
  AppendSpan(call.ids, absl::StrCat(kService, "/", std::string(Name(call.method))), kKindServer,
             absl::ToUnixNanos(call.start), absl::ToUnixNanos(call.end), out);
  AppendAttributes(call, out);
  if (IsServerError(call.code)) absl::StrAppend(&out, R"(,"status":{"code":)", kStatusError, "}");
  out.push_back('}');
  if (call.rotation.has_value()) AppendStages(call, out);
}

// What an answer's status says of the batch. UNAVAILABLE: it may be sent again.
absl::Status StatusOfAnswer(int code) {
  if (code >= 200 && code < 300) return absl::OkStatus();
  const std::string text = absl::StrCat("HTTP status ", code);
  const bool again = code == 429 || (code >= 502 && code <= 504);
  return again ? absl::UnavailableError(text) : absl::FailedPreconditionError(text);
}

absl::Status Post(const TraceEndpoint& to, const std::string& body, int answer_ms) {
  char error[256] = "";
  const std::unique_ptr<mg_connection, void (*)(mg_connection*)> connection(
      mg_connect_client(to.host.c_str(), to.port, /*use_ssl=*/0, error, sizeof(error)),
      &mg_close_connection);
  if (connection == nullptr) return absl::UnavailableError(error);
  const std::string message = absl::StrCat(
      "POST /v1/traces HTTP/1.1\r\nHost: ", to.host, ":", to.port, "\r\nUser-Agent: ", kProgram,
      "/", proto::kVersion, "\r\nContent-Type: application/json\r\nContent-Length: ", body.size(),
      "\r\nConnection: close\r\n\r\n", body);
  if (mg_write(connection.get(), message.data(), message.size()) !=
      static_cast<int>(message.size())) {
    return absl::UnavailableError("the batch was not read");
  }
  if (mg_get_response(connection.get(), error, sizeof(error), answer_ms) < 0) {
    return absl::UnavailableError(absl::StrCat("no answer: ", error));
  }
  return StatusOfAnswer(mg_get_response_info(connection.get())->status_code);
}

}  // namespace

std::optional<TraceEndpoint> ParseTraceEndpoint(absl::string_view url) {
  absl::string_view rest = url;
  const bool http = absl::ConsumePrefix(&rest, "http://");
  const size_t colon = rest.find(':');
  TraceEndpoint endpoint = {std::string(rest.substr(0, colon))};
  const bool has_port = colon != absl::string_view::npos &&
                        absl::SimpleAtoi(rest.substr(colon + 1), &endpoint.port) &&
                        endpoint.port > 0 && endpoint.port <= 65535;
  if (!http || endpoint.host.empty() || endpoint.host.find_first_of("/[@ ") != std::string::npos ||
      !has_port) {
    return std::nullopt;
  }
  return endpoint;
}

std::string TracesJson(absl::Span<const TraceSpan> spans, absl::string_view instance_id) {
  std::string out = R"({"resourceSpans":[{"resource":{"attributes":[)";
  AppendText("service.name", kProgram, out);
  AppendText("service.version", proto::kVersion, out);
  AppendText("service.instance.id", instance_id, out);
  absl::StrAppend(&out, R"(]},"scopeSpans":[{"scope":{"name":")", kProgram, R"(","version":")",
                  proto::kVersion, R"("},"spans":[)");
  for (const TraceSpan& span : spans) AppendCall(span, out);
  out.append("]}]}]}");
  return out;
}

// Sender: takes spans and posts them.
//
// Threading:  Run on one thread, everything else on any.
class TraceExporter::Sender {
 public:
  Sender(std::shared_ptr<Tracer> tracer, Options options)
      : tracer_(std::move(tracer)), options_(std::move(options)) {
    mg_init_library(0);  // for the rest of the process, as the thread may outlive this exporter
  }

  // Returns when the tracer is closed and no span is left, or once abandoned.
  void Run();
  void Abandon() { abandoned_ = true; }
  Tracer& tracer() { return *tracer_; }
  std::chrono::milliseconds end() const { return options_.end; }
  const proto::Notification& ended() const { return ended_; }

 private:
  void Send(absl::Span<const TraceSpan> batch);
  // Posts the batch until it is taken, refused, or was tried often enough.
  absl::Status Attempt(const std::string& body);
  void Report(const absl::Status& status, int64_t spans);

  const std::shared_ptr<Tracer> tracer_;
  const Options options_;
  std::atomic<bool> abandoned_ = false;
  proto::Notification ended_;
  bool dropping_ = false;  // the last batch was dropped
};

void TraceExporter::Sender::Run() {
  std::vector<TraceSpan> spans;
  while (tracer_->Take(options_.period, spans)) {
    for (size_t begin = 0; begin < spans.size() && !abandoned_; begin += options_.batch_spans) {
      Send(absl::MakeConstSpan(spans).subspan(begin, options_.batch_spans));
      tracer_->AwaitClose(options_.pause);
    }
  }
  ended_.Notify();
}

void TraceExporter::Sender::Send(absl::Span<const TraceSpan> batch) {
  const absl::Status status =
      WithinMemory([&] { return Attempt(TracesJson(batch, options_.instance_id)); });
  if (!abandoned_) Report(status, static_cast<int64_t>(batch.size()));
}

absl::Status TraceExporter::Sender::Attempt(const std::string& body) {
  auto backoff = options_.backoff;
  for (int attempt = 1;; ++attempt) {
    absl::Status status = Post(options_.endpoint, body, static_cast<int>(options_.answer.count()));
    if (status.ok()) return status;
    ++tracer_->counters().failed_posts;
    if (!absl::IsUnavailable(status) || attempt == options_.attempts) return status;
    if (tracer_->AwaitClose(backoff)) return status;
    backoff *= 2;
  }
}

void TraceExporter::Sender::Report(const absl::Status& status, int64_t spans) {
  Tracer::Counters& counters = tracer_->counters();
  (status.ok() ? counters.exported : counters.dropped_collector) += spans;
  const bool dropped_before = std::exchange(dropping_, !status.ok());
  if (dropping_ == dropped_before) return;
  if (dropping_) {
    spdlog::warn("traces: the collector takes no spans: {}", std::string(status.message()));
  } else {
    spdlog::info("traces: the collector takes spans again");
  }
}

TraceExporter::TraceExporter(std::shared_ptr<Tracer> tracer, Options options)
    : sender_(std::make_shared<Sender>(std::move(tracer), std::move(options))),
      thread_([sender = sender_] { sender->Run(); }) {}

TraceExporter::~TraceExporter() {
  sender_->tracer().Close();
  if (sender_->ended().WaitForNotificationWithTimeout(sender_->end())) {
    thread_.join();
  } else {
    sender_->Abandon();
    thread_.detach();
  }
}

}  // namespace rope::server
