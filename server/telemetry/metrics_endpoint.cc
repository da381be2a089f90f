#include "server/telemetry/metrics_endpoint.h"

#include <civetweb.h>
#include <prometheus/text_serializer.h>

#include <chrono>
#include <new>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace rope::server {
namespace {

// Connections that are read at the same time, by one thread each. A connection whose request is not
// complete holds its thread until the timeout. A scrape waits while all threads are held.
constexpr char kThreads[] = "16";
constexpr char kRequestTimeoutMs[] = "1000";  // enough to resend a lost packet

// The serializer writes 16 digits, which is one too few for this bound of gRPC's: a sum over
// services by `le` would not find it.
std::string PrometheusText(const std::vector<prometheus::MetricFamily>& families) {
  return absl::StrReplaceAll(prometheus::TextSerializer().Serialize(families),
                             {{"le=\"0.0005999999999999999\"", "le=\"0.0006\""}});
}

// Starts the library's threads. Null: the library cannot listen.
mg_context* Start(const std::string& address) {
  // Names and values, then null.
  const char* options[] = {"listening_ports",    address.c_str(),   "num_threads", kThreads,
                           "request_timeout_ms", kRequestTimeoutMs, nullptr};
  const mg_callbacks callbacks{};
  return mg_start(&callbacks, nullptr, options);
}

}  // namespace

// Runs on a thread of the library, which knows no exceptions. Returns the HTTP status, or 0 for a
// request that the library shall answer: another path, another method.
int MetricsEndpoint::Respond(mg_connection* connection, void* self) {
  const mg_request_info& request = *mg_get_request_info(connection);
  const std::string_view method = request.request_method;
  if (method != "GET" && method != "HEAD") return 0;
  std::optional<Answer> answer;
  try {
    answer = static_cast<const MetricsEndpoint*>(self)->AnswerTo(request.local_uri);
  } catch (const std::bad_alloc&) {
    answer = {503, ""};
  }
  if (!answer.has_value()) return 0;
  const std::string length = std::to_string(answer->body.size());
  mg_response_header_start(connection, answer->status);
  mg_response_header_add(connection, "Content-Type", answer->type, -1);
  mg_response_header_add(connection, "Cache-Control", "no-store", -1);
  mg_response_header_add(connection, "Content-Length", length.c_str(), -1);
  mg_response_header_send(connection);
  if (method == "GET") mg_write(connection, answer->body.data(), answer->body.size());
  return answer->status;
}

std::optional<MetricsEndpoint::Answer> MetricsEndpoint::AnswerTo(std::string_view path) const {
  if (path == "/livez") return Answer{200, "ALIVE\n"};
  if (path == "/readyz" || path == "/healthz") {
    return sources_.serving() ? Answer{200, "SERVING\n"} : Answer{503, "NOT_SERVING\n"};
  }
  if (path == "/") return Answer{200, std::string(StatusPage()), "text/html; charset=utf-8"};
  if (path != "/metrics") return std::nullopt;
  proto::MutexLock lock(&mutex_);
  return Answer{200, PrometheusText(sources_.metrics())};
}

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Listen(const std::string& address,
                                                                         Sources sources) {
  mg_context* const library = Start(address);
  if (library == nullptr) {
    // A library built without IPv6, as the distribution's is, accepts no IPv6 address.
    const char* want = address[0] == '[' ? "an IPv4 address, or a libcivetweb with IPv6"
                                         : "an address that is free";
    return absl::UnavailableError(absl::StrCat("--metrics_listen: got ", address, ", want ", want));
  }
  const std::string host = address.substr(0, address.rfind(':'));
  std::unique_ptr<MetricsEndpoint> endpoint(
      new MetricsEndpoint(host, std::move(sources), library));  // owned by endpoint
  // A handler of "/" gets every path.
  mg_set_request_handler(library, "/", &Respond, endpoint.get());
  return endpoint;
}

MetricsEndpoint::~MetricsEndpoint() {
  // The library's listener may sleep for two seconds before it notices the stop request. A new
  // connection wakes it.
  proto::Notification closed;
  std::thread waker([&closed, host = host_, port = port()] {
    while (!closed.WaitForNotificationWithTimeout(std::chrono::milliseconds(5))) {
      mg_close_connection(mg_connect_client(host.c_str(), port, /*use_ssl=*/0, nullptr, 0));
    }
  });
  mg_stop(library_);
  closed.Notify();
  waker.join();
}

int MetricsEndpoint::port() const {
  mg_server_port ports[1] = {};
  mg_get_server_ports(library_, 1, ports);
  return ports[0].port;
}

}  // namespace rope::server
