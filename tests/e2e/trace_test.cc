// A server that sends the spans of its calls to a collector.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/collector.h"
#include "tests/support/matchers.h"
#include "tests/support/metrics_page.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using nlohmann::json;

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kCaller[] = "b7ad6b7169203331";

std::vector<std::string> FlagsFor(const Collector& collector, const char* ratio) {
  return {"--metrics_listen=127.0.0.1:0",
          absl::StrCat("--trace_endpoint=http://127.0.0.1:", collector.port()),
          absl::StrCat("--trace_ratio=", ratio)};
}

// Rotates at `position`; a negative one is invalid. `flags`: of the header traceparent.
grpc::StatusCode Rotate(v1::RopeService::Stub& stub, int64_t position, const char* flags) {
  grpc::ClientContext context;
  context.AddMetadata("traceparent", absl::StrCat("00-", kTrace, "-", kCaller, "-", flags));
  context.AddMetadata("x-request-id", "order-7");
  v1::RotateResponse response;
  return stub.Rotate(&context, UnitRequest(position), &response).error_code();
}

// All spans that came in until the server has ended.
std::vector<json> SpansUntilTheEnd(TestServer& server, Collector& collector) {
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
  std::vector<json> spans;
  for (const Collector::Post& post : collector.posts()) {
    const json document = json::parse(post.body);
    for (const json& span : document["resourceSpans"][0]["scopeSpans"][0]["spans"]) {
      spans.push_back(span);
    }
  }
  return spans;
}

TEST(TraceTest, CallerDecidesAndItsSpanIsTheParent) {
  Collector collector;
  collector.Serve();
  TestServer server(FlagsFor(collector, "0"));
  const auto stub = server.NewStub();
  EXPECT_EQ(Rotate(*stub, 1, "00"), grpc::StatusCode::OK);
  EXPECT_TRUE(Serves(*stub));
  EXPECT_EQ(Rotate(*stub, 1, "01"), grpc::StatusCode::OK);
  EXPECT_EQ(Rotate(*stub, -1, "01"), grpc::StatusCode::INVALID_ARGUMENT);

  const std::vector<json> spans = SpansUntilTheEnd(server, collector);
  std::vector<std::string> names;
  for (const json& span : spans) {
    names.push_back(span["name"]);
    EXPECT_EQ(span["traceId"], kTrace);
  }
  constexpr char kCall[] = "rope.v1.RopeService/Rotate";
  ASSERT_THAT(names, ElementsAre(kCall, "decode", "validate", "queue", "execute", kCall));
  EXPECT_EQ(spans[0]["parentSpanId"], kCaller);
  EXPECT_EQ(spans[4]["parentSpanId"], spans[0]["spanId"]);
  EXPECT_THAT(spans[0]["attributes"].dump(), HasSubstr(R"("rpc.grpc.status_code")"));
  EXPECT_THAT(spans[0]["attributes"].dump(), HasSubstr(R"({"stringValue":"cpu"})"));
}

TEST(TraceTest, RatioDecidesForCallersThatDoNot) {
  Collector collector;
  collector.Serve();
  TestServer server(FlagsFor(collector, "1"));
  ASSERT_TRUE(Serves(*server.NewStub()));
  const std::vector<json> spans = SpansUntilTheEnd(server, collector);
  ASSERT_EQ(spans.size(), 5u);
  EXPECT_FALSE(spans[0].contains("parentSpanId"));
}

TEST(TraceTest, PageCountsWhatTheCollectorTook) {
  Collector collector;
  collector.Serve();
  TestServer server(FlagsFor(collector, "1"));
  const int port = MetricsPort(server);
  const auto stub = server.NewStub();
  // A whole batch is posted at once.
  for (int i = 0; i < 512; ++i) ASSERT_TRUE(Serves(*stub));
  ASSERT_TRUE(collector.AwaitPosts(1));
  while (Scrape(port).Value("rope_trace_spans_exported_total") < 512) std::this_thread::yield();
  EXPECT_EQ(Scrape(port).Value(R"(rope_trace_spans_dropped_total{reason="queue"})"), 0);
}

}  // namespace
}  // namespace rope::testing
