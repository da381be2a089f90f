// What is counted of requests and of the process, and the page that shows it.
#include "server/telemetry/metrics.h"

#include <gtest/gtest.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/telemetry/counts.h"
#include "server/telemetry/process.h"
#include "tests/support/exposition.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace rope::server {
namespace {

using ::rope::testing::Exposition;
using ::testing::DoubleEq;
using ::testing::Pointwise;
using ::testing::UnorderedElementsAre;

// {"model operation transport": count}.
std::map<std::string, double> Read(const RotationCounts& counts) {
  std::map<std::string, double> read;
  for (const prometheus::ClientMetric& metric : counts.Read()) {
    EXPECT_EQ(metric.label[0].name, "model");
    EXPECT_EQ(metric.label[1].name, "operation");
    EXPECT_EQ(metric.label[2].name, "transport");
    const auto [at, is_new] = read.emplace(
        absl::StrCat(metric.label[0].value, " ", metric.label[1].value, " ", metric.label[2].value),
        metric.counter.value);
    EXPECT_TRUE(is_new) << at->first;
  }
  return read;
}

TEST(RotationCountsTest, EachCombinationOfLabelsHasACounterOnceItHasCounted) {
  const std::string known[] = {"llama-3.1-8b", "qwen", "mine"};
  RotationCounts counts(known);
  EXPECT_THAT(Read(counts), IsEmpty());
  counts.Count({Transport::kInline, v1::OPERATION_ROTATE, "llama-3.1-8b"});
  counts.Count({Transport::kInline, v1::OPERATION_UNSPECIFIED, "meta-llama/Llama-3.1-8B"});
  counts.Count({Transport::kStream, v1::OPERATION_INVERSE, "llama-3.1-8B"});
  counts.Count({Transport::kMemfd, v1::OPERATION_BACKWARD, "qwen"});
  counts.Count({Transport::kMemfd, v1::OPERATION_REPOSITION, kConfigModel});
  counts.Count({Transport::kRing, v1::OPERATION_ADD_SINUSOIDAL, kRowsModel});
  counts.Count({Transport::kInProcess, v1::OPERATION_ROTATE, "mine"});
  counts.Count({Transport::kInProcess, v1::OPERATION_ROTATE, "no model"});
  EXPECT_THAT(Read(counts),
              UnorderedElementsAre(
                  Pair("llama-3.1-8b rotate inline", 2), Pair("llama-3.1-8b inverse stream", 1),
                  Pair("qwen backward memfd", 1), Pair("(config) reposition memfd", 1),
                  Pair("(rows) add_sinusoidal ring", 1), Pair("mine rotate in_process", 1)));
}

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

TEST(HistogramTest, EachValueFindsTheFirstBoundThatIsNotBelowIt) {
  const std::vector<std::vector<int64_t>> all = {
      {},
      {0},
      {kMost},
      {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, kMost},
      {std::begin(kDurationBounds), std::end(kDurationBounds)},
      {kGrpcDurationBounds.begin(), kGrpcDurationBounds.end()},
      {kGrpcSizeBounds.begin(), kGrpcSizeBounds.end()}};
  for (const std::vector<int64_t>& bounds : all) {
    const BucketBounds buckets(bounds);
    std::vector<int64_t> values = {0, kMost - 1, kMost};
    for (int bits = 0; bits < 63; ++bits) values.push_back(int64_t{1} << bits);
    values.insert(values.end(), bounds.begin(), bounds.end());
    for (const int64_t value : values) {
      for (const int64_t near :
           {std::max<int64_t>(value, 1) - 1, value, std::min(value, kMost - 1) + 1}) {
        EXPECT_EQ(buckets.Find(near),
                  static_cast<size_t>(std::ranges::lower_bound(bounds, near) - bounds.begin()))
            << near;
      }
    }
  }
}

std::string TextOf(const Metrics& metrics, const Gauges& gauges = {}) {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, metrics.Collect(gauges));
  return text.str();
}

class MetricsTest : public ::testing::Test {
 protected:
  double Value(const std::string& sample, const Gauges& gauges = {}) const {
    return Exposition(TextOf(metrics_, gauges)).Value(sample);
  }

  Metrics metrics_{"1.2.3", "abc", {"cuda", "cpu"}};
};

TEST_F(MetricsTest, PageOfAnIdleServerIsWellFormedAndNamesFollowTheConventions) {
  const Exposition page(TextOf(metrics_));
  for (const auto& [name, type] : page.types()) {
    EXPECT_THAT(name, MatchesRegex("(rope|grpc_server_call|process)_[a-z_]+"));
    EXPECT_EQ(absl::EndsWith(name, "_total"), type == "counter") << name;
    EXPECT_THAT(type, AnyOf("counter", "gauge", "histogram")) << name;
    EXPECT_THAT(name, Not(HasSubstr("micro")));
    EXPECT_FALSE(absl::EndsWith(page.helps().at(name), ".")) << name;
  }
  EXPECT_EQ(page.Value(R"(rope_pipelined_requests_total{code="OK",transport="ring"})"), 0);
  EXPECT_EQ(page.Value(R"(rope_device_faults_total{device="cpu"})"), 0);
}

constexpr char kGrpcDuration[] = "grpc_server_call_duration_seconds";
constexpr char kGrpcReceived[] = "grpc_server_call_rcvd_total_compressed_message_size_bytes";
constexpr char kGrpcSent[] = "grpc_server_call_sent_total_compressed_message_size_bytes";

// `name` with the labels of calls of a method, and with `more` of them.
std::string OfCalls(const std::string& name, const std::string& method, const std::string& status,
                    const std::string& more = "") {
  return absl::StrCat(name, "{grpc_method=\"", method, "\",grpc_status=\"", status, "\"", more,
                      "}");
}

// The bounds of the buckets of a series, which `begin` begins, up to the last finite one.
std::vector<double> BoundsOf(const std::string& text, const std::string& begin) {
  std::vector<double> bounds;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, absl::StrCat(begin, ",le=\""))) continue;
    double bound = 0;
    EXPECT_TRUE(absl::SimpleAtod(rest.substr(0, rest.find('"')), &bound)) << line;
    bounds.push_back(bound);
  }
  EXPECT_FALSE(bounds.empty()) << begin;
  EXPECT_EQ(bounds.back(), std::numeric_limits<double>::infinity()) << begin;
  bounds.pop_back();
  return bounds;
}

TEST_F(MetricsTest, EveryMethodAndCodeHasAPlaceOfItsOwn) {
  for (int method = 0; method < kMethodCount; ++method) {
    for (int code = 0; code <= 16; ++code) {
      for (int times = 0; times <= method * 17 + code; ++times) {
        metrics_.CallsOf(static_cast<Method>(method))
            .End({.code = static_cast<absl::StatusCode>(code)});
      }
    }
  }
  const Exposition page(TextOf(metrics_));
  for (int method = 0; method < kMethodCount; ++method) {
    for (int code = 0; code <= 16; ++code) {
      const std::string sample =
          OfCalls(absl::StrCat(kGrpcDuration, "_count"),
                  "rope.v1.RopeService/" + std::string(Name(static_cast<Method>(method))),
                  absl::StatusCodeToString(static_cast<absl::StatusCode>(code)));
      EXPECT_EQ(page.Value(sample), method * 17 + code + 1) << sample;
    }
  }
}

TEST_F(MetricsTest, CodeThatIsNoneCountsAsUnknown) {
  metrics_.ring_requests().End(static_cast<absl::StatusCode>(99), absl::ZeroDuration());
  metrics_.ring_requests().End(static_cast<absl::StatusCode>(-1), absl::ZeroDuration());
  EXPECT_EQ(Value(R"(rope_pipelined_requests_total{code="UNKNOWN",transport="ring"})"), 2);
}

TEST_F(MetricsTest, FamiliesHaveTheirBounds) {
  const std::string text = TextOf(metrics_);
  const auto expect = [&text](const std::string& begin, const std::vector<double>& bounds) {
    EXPECT_THAT(BoundsOf(text, begin), Pointwise(DoubleEq(), bounds)) << begin;
  };
  expect(R"(rope_pipelined_request_duration_seconds_bucket{transport="stream")",
         {1e-6, 2.5e-6, 5e-6,  1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3,
          5e-3, 0.01,   0.025, 0.05, 0.1,    0.25, 0.5,  1,      2.5,  5,    10});
  // gRFC A66.
  const std::string labels = R"(_bucket{grpc_method="rope.v1.RopeService/Rotate",grpc_status="OK")";
  expect(kGrpcDuration + labels,
         {0,     0.00001, 0.00005, 0.0001, 0.0003, 0.0006, 0.0008, 0.001, 0.002, 0.003, 0.004,
          0.005, 0.006,   0.008,   0.01,   0.013,  0.016,  0.02,   0.025, 0.03,  0.04,  0.05,
          0.065, 0.08,    0.1,     0.13,   0.16,   0.2,    0.25,   0.3,   0.4,   0.5,   0.65,
          0.8,   1,       2,       5,      10,     20,     50,     100});
  for (const std::string family : {kGrpcReceived, kGrpcSent}) {
    expect(family + labels, {0, 1024, 2048, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216,
                             67108864, 268435456, 1073741824, 4294967296});
  }
}

TEST_F(MetricsTest, RotationsGiveTheirStagesAndTokens) {
  metrics_.CountRotation({.decode = 2, .validate = 3, .queue = 400, .execute = 5000},
                         /*tokens=*/17, {.transport = Transport::kRing});
  const Exposition page(TextOf(metrics_));
  const std::string name = "rope_request_stage_seconds";
  EXPECT_DOUBLE_EQ(page.Value(name + R"(_sum{stage="decode"})"), 2e-6);
  EXPECT_DOUBLE_EQ(page.Value(name + R"(_sum{stage="validate"})"), 3e-6);
  EXPECT_DOUBLE_EQ(page.Value(name + R"(_sum{stage="queue"})"), 4e-4);
  EXPECT_DOUBLE_EQ(page.Value(name + R"(_sum{stage="execute"})"), 5e-3);
  EXPECT_EQ(page.Value(name + R"(_count{stage="queue"})"), 1);
  EXPECT_EQ(page.Value("rope_tokens_total"), 17);
  const std::string ring = R"x(rope_rotations_total{model="(config)",operation="rotate",)x"
                           R"(transport="ring"})";
  EXPECT_EQ(page.Value(ring), 1);
}

TEST_F(MetricsTest, BatchesAreCountedByDeviceAndReason) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  metrics_.CountBatch({.closed_by = ClosedBy::kTokens,
                       .device = "cpu",
                       .requests = 3,
                       .bytes = 5000,
                       .started = start,
                       .finished = start + absl::Milliseconds(2)});
  metrics_.CountBatch({.closed_by = ClosedBy::kDirect, .device = "cuda", .requests = 1});
  const Exposition page(TextOf(metrics_));
  EXPECT_EQ(page.Value(R"(rope_batches_total{closed_by="tokens",device="cpu"})"), 1);
  EXPECT_EQ(page.Value(R"(rope_batches_total{closed_by="direct",device="cuda"})"), 1);
  EXPECT_EQ(page.Value(R"(rope_batches_total{closed_by="drained",device="cuda"})"), 0);
  EXPECT_EQ(page.Value(R"(rope_batch_requests_bucket{le="1"})"), 1);
  EXPECT_EQ(page.Value(R"(rope_batch_requests_bucket{le="2"})"), 1);
  EXPECT_EQ(page.Value(R"(rope_batch_requests_bucket{le="4"})"), 2);
  EXPECT_EQ(page.Value("rope_batch_requests_sum"), 4);
  EXPECT_EQ(page.Value(R"(rope_batch_bytes_bucket{le="4096"})"), 1);
  EXPECT_EQ(page.Value(R"(rope_batch_bytes_bucket{le="16384"})"), 2);
  EXPECT_DOUBLE_EQ(page.Value("rope_batch_duration_seconds_sum"), 0.002);
}

TEST_F(MetricsTest, DeviceNobodyNamedIsCountedAsOther) {
  EXPECT_THAT(TextOf(metrics_), Not(HasSubstr("other")));
  metrics_.CountBatch({.closed_by = ClosedBy::kDrained, .device = "abacus", .requests = 1});
  EXPECT_EQ(Value(R"(rope_batches_total{closed_by="drained",device="other"})"), 1);
}

TEST_F(MetricsTest, DeviceFaultsAreCounted) {
  metrics_.CountDeviceFault("cuda");
  const Exposition page(TextOf(metrics_));
  EXPECT_EQ(page.Value(R"(rope_device_faults_total{device="cuda"})"), 1);
  EXPECT_EQ(page.Value(R"(rope_device_faults_total{device="cpu"})"), 0);
}

TEST_F(MetricsTest, GaugesAreShownAsTheyAreGiven) {
  Gauges gauges;
  gauges.requests_in_flight = 11;
  gauges.models = 13;
  gauges.streams = 14;
  gauges.regions = 15;
  gauges.draining = true;
  gauges.table_cache = {
      .hits = 1, .misses = 2, .builds = 3, .evictions = 4, .bytes = 5, .tables = 6, .pages = 7};
  gauges.log_drops = {21, 22};
  const Exposition page(TextOf(metrics_, gauges));
  EXPECT_EQ(page.Value("rope_requests_in_flight"), 11);
  EXPECT_EQ(page.Value("rope_models"), 13);
  EXPECT_EQ(page.Value("rope_streams"), 14);
  EXPECT_EQ(page.Value("rope_regions"), 15);
  EXPECT_EQ(page.Value("rope_draining"), 1);
  EXPECT_EQ(page.Value("rope_table_cache_hits_total"), 1);
  EXPECT_EQ(page.Value("rope_table_cache_misses_total"), 2);
  EXPECT_EQ(page.Value("rope_table_cache_builds_total"), 3);
  EXPECT_EQ(page.Value("rope_table_cache_evictions_total"), 4);
  EXPECT_EQ(page.Value("rope_table_cache_tables"), 6);
  EXPECT_EQ(page.Value("rope_table_cache_pages"), 7);
  EXPECT_EQ(page.Value(R"(rope_log_lines_dropped_total{reason="rate_limit"})"), 21);
  EXPECT_EQ(page.Value(R"(rope_log_lines_dropped_total{reason="output"})"), 22);
  EXPECT_EQ(Value("rope_draining"), 0);
}

TEST_F(MetricsTest, ManyThreadsLoseNothingAndPagesReadMeanwhileAreWellFormed) {
  constexpr int kThreads = 4;
  constexpr int kEach = 20000;
  std::atomic<int> running = kThreads;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < kEach; ++n) {
        metrics_.CallsOf(Method::kRotate)
            .End({.duration = absl::Microseconds(n % 100), .sent_bytes = 3});
        metrics_.CountBatch({.device = "cpu", .requests = 1 + n % 5});
      }
      --running;
    });
  }
  const std::string rotate = "rope.v1.RopeService/Rotate";
  const std::string count = OfCalls(absl::StrCat(kGrpcDuration, "_count"), rotate, "OK");
  double last = 0;
  while (running > 0) {
    const double now = Value(count);
    EXPECT_GE(now, last);
    last = now;
  }
  for (std::thread& thread : threads) thread.join();
  const Exposition page(TextOf(metrics_));
  EXPECT_EQ(page.Value(count), kThreads * kEach);
  EXPECT_EQ(page.Value(OfCalls(absl::StrCat(kGrpcSent, "_sum"), rotate, "OK")),
            3 * kThreads * kEach);
  EXPECT_EQ(page.Value("rope_batch_requests_sum"), 3 * kThreads * kEach);
}

// A temporary cgroup folder.
class ProcessorsTest : public ::testing::Test {
 protected:
  ProcessorsTest() { std::filesystem::create_directories(root_ + "/cpu"); }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(root_ + "/" + name) << text;
  }
  void WriteV1(const std::string& quota, const std::string& period) const {
    Write("cpu/cpu.cfs_quota_us", quota);
    Write("cpu/cpu.cfs_period_us", period);
  }

  const std::string root_ = rope::testing::TemporaryFolder();
  const int unbounded_ = ProcessorCount("/nonexistent");
};

TEST_F(ProcessorsTest, NoBoundWithoutAQuota) {
  for (const char* text :
       {"max 100000\n", "", "100000", "a b", "0 100000", "-1 100000", "100000 0", "1 2 3"}) {
    Write("cpu.max", text);
    EXPECT_EQ(ProcessorCount(root_), unbounded_) << text;
  }
}

TEST_F(ProcessorsTest, WithoutFilesTheAffinityCounts) {
  EXPECT_GE(unbounded_, 1);
  EXPECT_EQ(ProcessorCount(root_), unbounded_);
}

TEST_F(ProcessorsTest, VersionTwoBounds) {
  Write("cpu.max", "100000 100000\n");
  EXPECT_EQ(ProcessorCount(root_), 1);
  Write("cpu.max", "max 100000\n");
  EXPECT_EQ(ProcessorCount(root_), unbounded_);
}

TEST_F(ProcessorsTest, VersionOneBounds) {
  WriteV1("100000\n", "100000\n");
  EXPECT_EQ(ProcessorCount(root_), 1);
  WriteV1("-1\n", "100000\n");
  EXPECT_EQ(ProcessorCount(root_), unbounded_);
}

TEST_F(ProcessorsTest, PartsOfAProcessorAreOneAndHugeQuotasAreTheAffinity) {
  Write("cpu.max", "1000 100000\n");
  EXPECT_EQ(ProcessorCount(root_), 1);
  Write("cpu.max", "1e300 1\n");
  EXPECT_EQ(ProcessorCount(root_), unbounded_);
}

// A folder with the files of /proc.
class ProcessStatisticsTest : public ::testing::Test {
 protected:
  ProcessStatisticsTest() {
    std::filesystem::create_directories(root_ + "/self/fd");
    Write("/stat", "cpu  1 2 3\nbtime 1700000000\nprocesses 5\n");
  }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(root_ + name) << text;
  }

  const std::string root_ = rope::testing::TemporaryFolder();
};

TEST_F(ProcessStatisticsTest, FieldsAreThoseOfProc5WhateverTheProgramsName) {
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  Write("/self/stat",
        "7 (a b) c) S 4 5 6 7 8 9 10 11 12 13 250 50 16 17 18 19 20 21 1000 23 300 25 26\n");
  for (const char* fd : {"/self/fd/0", "/self/fd/1", "/self/fd/2"}) Write(fd, "");
  const auto statistics = ReadProcessStatistics(root_);
  ASSERT_TRUE(statistics.has_value());
  EXPECT_DOUBLE_EQ(statistics->cpu_seconds, 300 / ticks);
  EXPECT_DOUBLE_EQ(statistics->start_time_seconds, 1700000000 + 1000 / ticks);
  EXPECT_EQ(statistics->resident_bytes, 300 * sysconf(_SC_PAGESIZE));
  EXPECT_EQ(statistics->open_fds, 3);
}

TEST_F(ProcessStatisticsTest, WhatIsNotProcGivesNothing) {
  EXPECT_THAT(ReadProcessStatistics("/nowhere"), Eq(std::nullopt));
  for (const char* stat : {"", "7 (name", "7 (name) S 4 5", "7 (name) S a b c"}) {
    Write("/self/stat", stat);
    EXPECT_THAT(ReadProcessStatistics(root_), Eq(std::nullopt)) << stat;
  }
}

TEST(ReadProcessStatisticsTest, ThisProcessHasMemoryAndFiles) {
  const auto statistics = ReadProcessStatistics();
  if (!statistics.has_value()) GTEST_SKIP() << "this system has no Linux /proc";
  EXPECT_GT(statistics->resident_bytes, 1 << 20);
  EXPECT_GE(statistics->open_fds, 3);
  EXPECT_GT(statistics->start_time_seconds, 1e9);
}

}  // namespace
}  // namespace rope::server
