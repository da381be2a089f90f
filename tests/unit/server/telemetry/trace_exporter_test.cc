#include "server/telemetry/trace_exporter.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/version.h"
#include "server/telemetry/traces.h"
#include "tests/support/collector.h"
#include "tests/support/matchers.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"

namespace rope::server {
namespace {

using nlohmann::json;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::Collector;
using testing::IsOk;

TEST(TraceEndpointTest, IsAnAddressOfPlainHttp) {
  for (const char* host : {"127.0.0.1", "localhost", "otel-collector.monitoring.svc"}) {
    const std::string url = std::string("http://") + host + ":4318";
    const auto endpoint = ParseTraceEndpoint(url);
    ASSERT_TRUE(endpoint.has_value()) << url;
    EXPECT_EQ(endpoint->host, host);
    EXPECT_EQ(endpoint->port, 4318);
  }
  for (const char* url :
       {"", "127.0.0.1:4318", "https://127.0.0.1:4318", "HTTP://127.0.0.1:4318", "http://:4318",
        "http://127.0.0.1", "http://127.0.0.1:", "http://127.0.0.1:0", "http://127.0.0.1:65536",
        "http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces", "http://a/b:4318",
        "http://[::1]:4318", "http://user@host:4318", "http://a b:4318"}) {
    EXPECT_FALSE(ParseTraceEndpoint(url).has_value()) << url;
  }
}

// A rotation of 1.5 ms that a traced caller asked for.
TraceSpan Rotation() {
  TraceSpan span;
  span.ids = {{0x0af7651916cd43dd, 0x8448eb211c80319c}, 0x00f067aa0ba902b8, 0xb7ad6b7169203331};
  span.start = absl::FromUnixNanos(1'760'000'000'000'000'001);
  span.end = span.start + absl::Microseconds(1500);
  span.rotation = RotationReport{1.5, 0.25, 10, 1000, 4096};
  span.request_id = "4f2a9c01-7";
  span.model = "llama-3.1-8b";
  span.device = "cuda:0";
  span.peer = "uid:1000";
  return span;
}

json Text(const char* key, const std::string& value) {
  return {{"key", key}, {"value", {{"stringValue", value}}}};
}

// A span of a stage of Rotation().
json Stage(const char* name, const char* id, const char* start, const char* end) {
  return {{"traceId", "0af7651916cd43dd8448eb211c80319c"},
          {"spanId", id},
          {"parentSpanId", "00f067aa0ba902b8"},
          {"name", name},
          {"kind", 1},
          {"startTimeUnixNano", start},
          {"endTimeUnixNano", end}};
}

// The spans of a document that has one resource and one scope.
json SpansIn(const std::string& document) {
  return json::parse(document)["resourceSpans"][0]["scopeSpans"][0]["spans"];
}

TEST(TracesJsonTest, RotationIsASpanWithItsStagesAsChildren) {
  const json call = json::parse(R"({
    "traceId": "0af7651916cd43dd8448eb211c80319c",
    "spanId": "00f067aa0ba902b8",
    "parentSpanId": "b7ad6b7169203331",
    "name": "rope.v1.RopeService/Rotate",
    "kind": 2,
    "startTimeUnixNano": "1760000000000000001",
    "endTimeUnixNano": "1760000000001500001",
    "attributes": [
      {"key": "rpc.system", "value": {"stringValue": "grpc"}},
      {"key": "rpc.service", "value": {"stringValue": "rope.v1.RopeService"}},
      {"key": "rpc.method", "value": {"stringValue": "Rotate"}},
      {"key": "rpc.grpc.status_code", "value": {"intValue": "0"}},
      {"key": "rope.request_id", "value": {"stringValue": "4f2a9c01-7"}},
      {"key": "rope.model", "value": {"stringValue": "llama-3.1-8b"}},
      {"key": "rope.device", "value": {"stringValue": "cuda:0"}},
      {"key": "network.peer.address", "value": {"stringValue": "uid:1000"}},
      {"key": "rope.tokens", "value": {"intValue": "4096"}}]})");
  const json spans = {
      call, Stage("decode", "00f067aa0ba902b9", "1760000000000000001", "1760000000000001501"),
      Stage("validate", "00f067aa0ba902ba", "1760000000000001501", "1760000000000001751"),
      Stage("queue", "00f067aa0ba902bb", "1760000000000001751", "1760000000000011751"),
      Stage("execute", "00f067aa0ba902bc", "1760000000000011751", "1760000000001011751")};
  const json resource = {
      {"attributes",
       {Text("service.name", "rope_server"), Text("service.version", proto::kVersion),
        Text("service.instance.id", "4f2a9c01d3b7")}}};
  const json scope = {{"name", "rope_server"}, {"version", proto::kVersion}};
  json document;
  document["resourceSpans"][0]["resource"] = resource;
  document["resourceSpans"][0]["scopeSpans"][0]["scope"] = scope;
  document["resourceSpans"][0]["scopeSpans"][0]["spans"] = spans;
  const TraceSpan rotation = Rotation();
  EXPECT_EQ(json::parse(TracesJson({&rotation, 1}, "4f2a9c01d3b7")), document);
}

TEST(TracesJsonTest, WhatIsUnknownIsLeftOut) {
  TraceSpan span;
  span.ids = {{0, 1}, 2, 0};
  span.method = Method::kDescribe;
  const json spans = SpansIn(TracesJson({&span, 1}, "i"));
  ASSERT_THAT(spans, SizeIs(1)) << "no stages";
  EXPECT_EQ(spans[0]["traceId"], "00000000000000000000000000000001");
  EXPECT_EQ(spans[0]["spanId"], "0000000000000002");
  EXPECT_FALSE(spans[0].contains("parentSpanId"));
  EXPECT_THAT(spans[0]["attributes"], SizeIs(4));
}

TEST(TracesJsonTest, StatusIsAnErrorWhereTheServerFailed) {
  using Code = absl::StatusCode;
  for (int number = 0; number <= static_cast<int>(Code::kUnauthenticated); ++number) {
    const auto code = static_cast<Code>(number);
    TraceSpan span;
    span.code = code;
    const bool failed = code == Code::kUnknown || code == Code::kDeadlineExceeded ||
                        code == Code::kUnimplemented || code == Code::kInternal ||
                        code == Code::kUnavailable || code == Code::kDataLoss;
    const json spans = SpansIn(TracesJson({&span, 1}, "i"));
    EXPECT_EQ(spans[0].value("status", json()), failed ? json({{"code", 2}}) : json()) << number;
    EXPECT_EQ(spans[0]["attributes"][3]["value"]["intValue"], std::to_string(number));
  }
}

TEST(TracesJsonTest, TextsOfClientsCannotBreakTheDocument) {
  TraceSpan span;
  span.request_id = "\"},\n\x01";
  span.model = "llam\xc3";
  const json spans = SpansIn(TracesJson({&span, 1}, "i"));
  EXPECT_EQ(spans[0]["attributes"][4]["value"]["stringValue"], "\"},\n\x01");
  EXPECT_EQ(spans[0]["attributes"][5]["value"]["stringValue"], "llam\xEF\xBF\xBD");
}

// OpenTelemetry's own schema reads the document, and leaves nothing over.
TEST(TracesJsonTest, PackageOfOpenTelemetryReadsEveryField) {
  const char* const python = std::getenv("ROPE_OTLP_PYTHON");
  if (python == nullptr || *python == '\0') {
    GTEST_SKIP() << "the package opentelemetry-proto is not here: set ROPE_OTLP_PYTHON to a "
                    "Python that has it";
  }
  TraceSpan failed;
  failed.ids = {{1, 2}, 3, 0};
  failed.method = Method::kRotateStream;
  failed.code = absl::StatusCode::kUnavailable;
  const std::string path = testing::TemporaryFolder() + "/traces.json";
  std::ofstream(path) << TracesJson({Rotation(), failed}, "4f2a9c01d3b7");
  const std::string trace = "trace=0af7651916cd43dd8448eb211c80319c ";
  EXPECT_THAT(
      testing::RunProgram({python, "-B", ROPE_SOURCE_DIR "/tests/peers/otlp.py", path}),
      Exits(0, "resource service.name=rope_server service.version=" + std::string(proto::kVersion) +
                   " service.instance.id=4f2a9c01d3b7\n"
                   "scope rope_server " +
                   proto::kVersion + "\n" + trace +
                   "span=00f067aa0ba902b8 parent=b7ad6b7169203331 SPAN_KIND_SERVER "
                   "STATUS_CODE_UNSET 1760000000000000001+1500000 rope.v1.RopeService/Rotate "
                   "rpc.system=grpc rpc.service=rope.v1.RopeService rpc.method=Rotate "
                   "rpc.grpc.status_code=0 rope.request_id=4f2a9c01-7 rope.model=llama-3.1-8b "
                   "rope.device=cuda:0 network.peer.address=uid:1000 rope.tokens=4096\n" +
                   trace +
                   "span=00f067aa0ba902b9 parent=00f067aa0ba902b8 SPAN_KIND_INTERNAL "
                   "STATUS_CODE_UNSET 1760000000000000001+1500 decode\n" +
                   trace +
                   "span=00f067aa0ba902ba parent=00f067aa0ba902b8 SPAN_KIND_INTERNAL "
                   "STATUS_CODE_UNSET 1760000000000001501+250 validate\n" +
                   trace +
                   "span=00f067aa0ba902bb parent=00f067aa0ba902b8 SPAN_KIND_INTERNAL "
                   "STATUS_CODE_UNSET 1760000000000001751+10000 queue\n" +
                   trace +
                   "span=00f067aa0ba902bc parent=00f067aa0ba902b8 SPAN_KIND_INTERNAL "
                   "STATUS_CODE_UNSET 1760000000000011751+1000000 execute\n"
                   "trace=00000000000000010000000000000002 span=0000000000000003 parent= "
                   "SPAN_KIND_SERVER STATUS_CODE_ERROR 0+0 rope.v1.RopeService/RotateStream "
                   "rpc.system=grpc rpc.service=rope.v1.RopeService rpc.method=RotateStream "
                   "rpc.grpc.status_code=14\n"));
}

// The time that a busy machine may need for an action that takes at most a second.
constexpr seconds kBounded{10};

class TraceExporterTest : public ::testing::Test {
 protected:
  TraceExporterTest() {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(log_);
    sink->set_pattern("%l %v");
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", std::move(sink)));
    options_.endpoint.host = "127.0.0.1";
    options_.endpoint.port = collector_.port();
    options_.instance_id = "4f2a9c01d3b7";
    // What a test does not set never happens by time.
    options_.period = hours(1);
    options_.pause = milliseconds(0);
    options_.answer = hours(1);
    options_.backoff = milliseconds(1);
    options_.end = std::chrono::minutes(1);
  }
  ~TraceExporterTest() override {
    collector_.Resume();
    End();  // its thread logs
    spdlog::set_default_logger(before_);
  }

  void Start(Tracer::Options options) {
    options_.batch_spans = options.batch_spans;
    tracer_ = std::make_shared<Tracer>(std::move(options));
    exporter_ = std::make_unique<TraceExporter>(tracer_, options_);
  }
  // Ends the exporter. What it took no longer changes then.
  void End() { exporter_.reset(); }

  void Add(uint64_t id) {
    TraceSpan span;
    span.ids = {{1, 1}, id, 0};
    tracer_->Add(std::move(span));
  }
  // The span ids in each post: "1,2 3".
  std::string Posted() {
    std::string text;
    for (const Collector::Post& post : collector_.posts()) {
      text += text.empty() ? "" : " ";
      const char* comma = "";
      for (const json& span : SpansIn(post.body)) {
        text += comma + std::to_string(std::stoull(span["spanId"].get<std::string>(), nullptr, 16));
        comma = ",";
      }
    }
    return text;
  }
  // Whether `done` becomes true.
  static bool Await(const std::function<bool()>& done) {
    const auto end = steady_clock::now() + seconds(60);
    while (!done() && steady_clock::now() < end) sched_yield();
    return done();
  }

  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
  std::ostringstream log_;
  Collector collector_;
  TraceExporter::Options options_;
  std::shared_ptr<Tracer> tracer_;
  std::unique_ptr<TraceExporter> exporter_;
};

TEST_F(TraceExporterTest, FullBatchIsPostedAtOnceAsJson) {
  collector_.Serve();
  Start({.batch_spans = 2});
  Add(1);
  Add(2);
  ASSERT_TRUE(collector_.AwaitPosts(1));
  EXPECT_EQ(Posted(), "1,2");
  const std::string head = collector_.posts()[0].head;
  EXPECT_THAT(head, StartsWith("POST /v1/traces HTTP/1.1\r\n"));
  EXPECT_THAT(head, HasSubstr("\r\nContent-Type: application/json\r\n"));
  EXPECT_THAT(head, HasSubstr("\r\nHost: 127.0.0.1:" + std::to_string(collector_.port()) + "\r\n"));
  EXPECT_TRUE(Await([&] { return tracer_->counters().exported == 2; }));
}

TEST_F(TraceExporterTest, HalfABatchIsPostedWhenItsPeriodHasPassed) {
  collector_.Serve();
  options_.period = milliseconds(10);
  Start({.batch_spans = 100});
  Add(1);
  EXPECT_TRUE(collector_.AwaitPosts(1));
  Add(2);
  EXPECT_TRUE(collector_.AwaitPosts(2));
  EXPECT_EQ(Posted(), "1 2");
}

TEST_F(TraceExporterTest, WhatWaitsInTheEndIsPostedInBatches) {
  collector_.Serve();
  Start({.batch_spans = 100});
  Add(1);
  End();
  EXPECT_EQ(Posted(), "1");
  EXPECT_EQ(tracer_->counters().exported, 1);

  collector_.Pause();
  Start({.batch_spans = 2});
  Add(1);
  Add(2);
  ASSERT_TRUE(collector_.AwaitPosts(2));
  for (uint64_t id = 3; id <= 7; ++id) Add(id);
  collector_.Resume();
  End();
  EXPECT_EQ(Posted(), "1 1,2 3,4 5,6 7");
  EXPECT_EQ(tracer_->counters().exported, 7);
}

TEST_F(TraceExporterTest, NoBatchFollowsAnotherWithinThePause) {
  collector_.Serve();
  options_.pause = hours(1);
  Start({.batch_spans = 1});
  Add(1);
  ASSERT_TRUE(Await([&] { return tracer_->counters().exported == 1; }));
  Add(2);
  Add(3);
  EXPECT_FALSE(collector_.AwaitPosts(2, milliseconds(50)));
  End();
  EXPECT_EQ(Posted(), "1 2 3") << "the end does not wait for it";
}

TEST_F(TraceExporterTest, BatchOfABusyCollectorIsPostedAgain) {
  collector_.Serve({429, 502, 503, 504});
  options_.attempts = 5;
  Start({.batch_spans = 1});
  Add(1);
  ASSERT_TRUE(Await([&] { return tracer_->counters().exported == 1; }));
  EXPECT_EQ(Posted(), "1 1 1 1 1");
  EXPECT_EQ(tracer_->counters().failed_posts, 4);
  EXPECT_EQ(tracer_->counters().dropped_collector, 0);
  End();
  EXPECT_EQ(log_.str(), "");
}

TEST_F(TraceExporterTest, BatchIsDroppedAfterItsLastAttemptAndTheLogSaysSoOnce) {
  collector_.Serve({503, 503, 503, 503});
  options_.attempts = 2;
  Start({.batch_spans = 1});
  Add(1);
  Add(2);
  ASSERT_TRUE(Await([&] { return tracer_->counters().dropped_collector == 2; }));
  EXPECT_EQ(tracer_->counters().failed_posts, 4);
  Add(3);
  ASSERT_TRUE(collector_.AwaitPosts(5));
  End();
  EXPECT_EQ(Posted(), "1 1 2 2 3");
  EXPECT_EQ(tracer_->counters().exported, 1);
  EXPECT_EQ(log_.str(),
            "warning traces: the collector takes no spans: HTTP status 503\n"
            "info traces: the collector takes spans again\n");
}

TEST_F(TraceExporterTest, BatchThatIsRefusedIsNotPostedAgain) {
  collector_.Serve({400, 413, 500, 301});
  Start({.batch_spans = 1});
  for (uint64_t id = 1; id <= 5; ++id) Add(id);
  ASSERT_TRUE(collector_.AwaitPosts(5));
  End();
  EXPECT_EQ(Posted(), "1 2 3 4 5");
  EXPECT_EQ(tracer_->counters().failed_posts, 4);
  EXPECT_EQ(tracer_->counters().dropped_collector, 4);
  EXPECT_EQ(tracer_->counters().exported, 1);
}

TEST_F(TraceExporterTest, CollectorThatComesLaterGetsWhatWasNotDropped) {
  options_.attempts = 1;
  Start({.batch_spans = 1});
  Add(1);
  ASSERT_TRUE(Await([&] { return tracer_->counters().dropped_collector == 1; }));
  collector_.Serve();
  Add(2);
  EXPECT_TRUE(collector_.AwaitPosts(1));
  End();
  EXPECT_EQ(Posted(), "2");
  EXPECT_THAT(log_.str(), HasSubstr("refused"));
}

TEST_F(TraceExporterTest, EachAttemptComesLater) {
  collector_.Serve({503, 503});
  options_.backoff = milliseconds(20);
  const auto begin = steady_clock::now();
  Start({.batch_spans = 1});
  Add(1);
  ASSERT_TRUE(collector_.AwaitPosts(3));
  EXPECT_GE(steady_clock::now() - begin, milliseconds(20 + 40));
}

TEST_F(TraceExporterTest, EndDoesNotWaitForTheNextAttempt) {
  options_.backoff = hours(1);
  Start({.batch_spans = 1});
  Add(1);
  ASSERT_TRUE(Await([&] { return tracer_->counters().failed_posts == 1; }));
  const auto begin = steady_clock::now();
  End();
  EXPECT_LT(steady_clock::now() - begin, kBounded);
  EXPECT_EQ(tracer_->counters().failed_posts, 1);
  EXPECT_EQ(tracer_->counters().dropped_collector, 1);
}

TEST_F(TraceExporterTest, CollectorThatDoesNotAnswerHoldsUpNoCaller) {
  collector_.Serve();
  collector_.Pause();
  Start({.queue_spans = 4, .batch_spans = 1});
  Add(1);
  ASSERT_TRUE(collector_.AwaitPosts(1));
  const auto begin = steady_clock::now();
  for (uint64_t id = 2; id <= 10'001; ++id) Add(id);
  EXPECT_LT(steady_clock::now() - begin, kBounded);
  EXPECT_EQ(tracer_->counters().dropped_queue, 9'996);
  collector_.Resume();
  ASSERT_TRUE(collector_.AwaitPosts(5));
  EXPECT_EQ(Posted(), "1 2 3 4 5");
}

TEST_F(TraceExporterTest, CollectorThatDoesNotAnswerInTimeIsAskedAgain) {
  collector_.Serve();
  collector_.Pause();
  options_.answer = milliseconds(20);
  options_.attempts = 3;
  Start({.batch_spans = 1});
  Add(1);
  EXPECT_TRUE(Await([&] { return tracer_->counters().failed_posts == 3; }));
  EXPECT_TRUE(Await([&] { return tracer_->counters().dropped_collector == 1; }));
}

TEST_F(TraceExporterTest, EndIsBoundedThoughTheCollectorDoesNotAnswer) {
  collector_.Serve();
  collector_.Pause();
  options_.end = milliseconds(50);
  Start({.batch_spans = 1});
  Add(1);
  Add(2);
  ASSERT_TRUE(collector_.AwaitPosts(1));
  const std::weak_ptr<Tracer> kept = tracer_;
  tracer_.reset();
  const auto begin = steady_clock::now();
  End();
  const auto took = steady_clock::now() - begin;
  EXPECT_GE(took, milliseconds(50));
  EXPECT_LT(took, kBounded);
  EXPECT_FALSE(kept.expired()) << "its thread uses it";
  collector_.Resume();
  EXPECT_TRUE(Await([&] { return kept.expired(); })) << "and ends";
  EXPECT_EQ(Posted(), "1");
}

}  // namespace
}  // namespace rope::server
