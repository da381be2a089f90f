#include "server/telemetry/traces.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/telemetry/limits.h"
#include "tests/support/matchers.h"

namespace rope::server {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr TraceId kTraceId = {0x0af7651916cd43dd, 0x8448eb211c80319c};
constexpr uint64_t kSpan = 0xb7ad6b7169203331;
constexpr char kSampled[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
constexpr char kNotSampled[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

TEST(TraceParentTest, HeaderIsReadAsW3CSays) {
  const TraceParent sampled = {kTraceId, kSpan, true};
  const TraceParent not_sampled = {kTraceId, kSpan, false};
  const std::string trace = kTrace;
  const std::string ids = trace + "-b7ad6b7169203331";
  const std::pair<std::string, std::optional<TraceParent>> cases[] = {
      {"00-" + ids + "-01", sampled},
      {"00-" + ids + "-00", not_sampled},
      {"00-" + ids + "-ff", sampled},
      {"00-" + ids + "-fe", not_sampled},
      // Of a later version the known fields count.
      {"01-" + ids + "-01", sampled},
      {"cc-" + ids + "-01-what-follows", sampled},
      {"cc-" + ids + "-01-", sampled},
      {"cc-" + ids + "-01.what-follows", std::nullopt},
      {"cc-" + ids + "-0", std::nullopt},
      {"00-" + ids + "-01-what-follows", std::nullopt},
      {"00-" + ids + "-01-", std::nullopt},
      {"ff-" + ids + "-01", std::nullopt},
      {"ff-" + ids + "-01-what-follows", std::nullopt},
      // Zeros are no ids.
      {"00-" + std::string(32, '0') + "-b7ad6b7169203331-01", std::nullopt},
      {"00-" + trace + "-" + std::string(16, '0') + "-01", std::nullopt},
      {"00-" + std::string(31, '0') + "1-" + std::string(15, '0') + "1-01",
       TraceParent{{0, 1}, 1, true}},
      {"00-1" + std::string(31, '0') + "-1" + std::string(15, '0') + "-00",
       TraceParent{{uint64_t{1} << 60U, 0}, uint64_t{1} << 60U, false}},
      // Other digits, dashes and lengths.
      {"00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", std::nullopt},
      {"00-" + trace + "-B7ad6b7169203331-01", std::nullopt},
      {"0A-" + ids + "-01", std::nullopt},
      {"00-" + ids + "-0A", std::nullopt},
      {"0g-" + ids + "-01", std::nullopt},
      {"00-" + ids + "-0x", std::nullopt},
      {"00_" + ids + "-01", std::nullopt},
      {"00-" + trace + "_b7ad6b7169203331-01", std::nullopt},
      {"00-" + ids + "_01", std::nullopt},
      {"00-" + trace + "-+7ad6b7169203331-01", std::nullopt},
      {"0-" + ids + "-01", std::nullopt},
      {" 00-" + ids + "-01", std::nullopt},
      {"00-" + ids + "-01 ", std::nullopt},
      {"00-" + ids + "-1", std::nullopt},
      {"00-" + ids, std::nullopt},
      {"00-" + ids.substr(1) + "-01", std::nullopt},
      {"00", std::nullopt},
      {"0", std::nullopt},
      {"", std::nullopt},
  };
  for (const auto& [header, expected] : cases) {
    EXPECT_EQ(ParseTraceParent(header), expected) << header;
  }
}

TEST(TraceParentTest, IdsAreWrittenWithTheirZeros) {
  EXPECT_EQ(ToHex(kTraceId), kTrace);
  EXPECT_EQ(ToHex(TraceId{0, 1}), "00000000000000000000000000000001");
  EXPECT_EQ(ToHex(uint64_t{2}), "0000000000000002");
}

TEST(RandomBitsTest, ThreadsDrawNumbersOfTheirOwn) {
  std::vector<uint64_t> drawn[2];
  std::thread threads[2];
  for (int i = 0; i < 2; ++i) {
    threads[i] = std::thread([&numbers = drawn[i]] {
      for (int j = 0; j < 100; ++j) numbers.push_back(RandomBits());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<uint64_t> distinct(drawn[0].begin(), drawn[0].end());
  distinct.insert(drawn[1].begin(), drawn[1].end());
  EXPECT_THAT(distinct, SizeIs(200));
}

// Random bits from a list, and 7 after its end.
std::function<uint64_t()> Drawn(std::vector<uint64_t> bits) {
  return [bits = std::move(bits), next = size_t{0}]() mutable {
    return next < bits.size() ? bits[next++] : 7;
  };
}

Tracer TracerOf(double ratio, std::vector<uint64_t> bits = {}) {
  return Tracer({.ratio = ratio, .random = Drawn(std::move(bits))});
}

TEST(TracerTest, CallersFlagDecidesWhateverTheRatioIs) {
  for (const double ratio : {0.0, 1.0}) {
    const Tracer tracer = TracerOf(ratio, {42});
    EXPECT_FALSE(tracer.Sample(kNotSampled).has_value());
    const auto ids = tracer.Sample(kSampled);
    ASSERT_TRUE(ids.has_value());
    EXPECT_EQ(ids->trace, kTraceId);
    EXPECT_EQ(ids->parent, kSpan);
    EXPECT_EQ(ids->span, 42U);
  }
}

TEST(TracerTest, CallWithoutAValidHeaderBeginsATraceOfItsOwn) {
  for (const char* header : {"", "00-0-0-01"}) {
    const Tracer tracer = TracerOf(1, {1, 2, 3});
    const auto ids = tracer.Sample(header);
    ASSERT_TRUE(ids.has_value());
    EXPECT_EQ(ids->trace, (TraceId{1, 2}));
    EXPECT_EQ(ids->span, 3U);
    EXPECT_EQ(ids->parent, 0U);
  }
}

// Of a trace id without a caller, its lower half decides.
bool IsSampled(double ratio, uint64_t low) {
  return TracerOf(ratio, {0, low}).Sample("").has_value();
}

TEST(TracerTest, LastSevenBytesOfTheTraceIdAreComparedWithTheRatio) {
  constexpr uint64_t kAll = (uint64_t{1} << 56U) - 1;
  constexpr uint64_t kFirstByte = ~kAll;
  EXPECT_FALSE(IsSampled(0, ~uint64_t{0}));
  EXPECT_TRUE(IsSampled(1, 0));
  EXPECT_FALSE(IsSampled(0.25, 3 * (kAll / 4)));
  EXPECT_TRUE(IsSampled(0.25, 3 * ((kAll + 1) / 4)));
  EXPECT_FALSE(IsSampled(0.25, kFirstByte)) << "the byte before them does not count";
  EXPECT_TRUE(IsSampled(0.25, kAll));
}

TEST(TracerTest, RatioIsThePartThatIsTraced) {
  std::mt19937_64 bits(1);
  const Tracer tracer({.ratio = 0.01, .random = [&bits] { return bits(); }});
  int traced = 0;
  for (int i = 0; i < 100'000; ++i) traced += tracer.Sample("").has_value() ? 1 : 0;
  EXPECT_GT(traced, 850);
  EXPECT_LT(traced, 1150);
}

TEST(TracerTest, IdsAreNeverZero) {
  const auto ids = TracerOf(1, {0, 0, 0}).Sample("");
  ASSERT_TRUE(ids.has_value());
  EXPECT_NE(ids->trace, TraceId());
  EXPECT_NE(ids->span, 0U);
}

TraceSpan SpanOf(uint64_t id) {
  TraceSpan span;
  span.ids = {{1, 1}, id, 0};
  return span;
}

// The span ids of what waits now.
std::vector<uint64_t> TakeIds(Tracer& tracer) {
  std::vector<TraceSpan> spans;
  tracer.Take(milliseconds(0), spans);
  std::vector<uint64_t> ids;
  ids.reserve(spans.size());
  for (const TraceSpan& span : spans) ids.push_back(span.ids.span);
  return ids;
}

TEST(TracerTest, FullQueueDropsTheNewestAndCountsIt) {
  Tracer tracer({.queue_spans = 2});
  for (uint64_t id = 1; id <= 5; ++id) tracer.Add(SpanOf(id));
  EXPECT_EQ(tracer.counters().dropped_queue, 3);
  EXPECT_THAT(TakeIds(tracer), ElementsAre(1, 2));
  tracer.Add(SpanOf(6));
  EXPECT_THAT(TakeIds(tracer), ElementsAre(6));
  EXPECT_EQ(tracer.counters().dropped_queue, 3);
}

TEST(TracerTest, AddAllocatesNothing) {
  Tracer tracer({.queue_spans = 3});
  const std::string text(limits::kTraceTextBytes, 'x');
  std::vector<const char*> added;
  for (uint64_t id = 1; id <= 3; ++id) {
    TraceSpan span = SpanOf(id);
    span.model = text;
    added.push_back(span.model.data());
    tracer.Add(std::move(span));
  }
  std::vector<TraceSpan> spans;
  tracer.Take(milliseconds(0), spans);
  ASSERT_THAT(spans, SizeIs(3));
  EXPECT_EQ(spans.capacity(), 3U) << "the memory that the tracer had";
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(spans[i].model.data(), added[i]) << "moved";
}

TEST(TracerTest, LongTextsAreCut) {
  Tracer tracer({});
  TraceSpan span = SpanOf(1);
  span.request_id = span.model = span.device = span.peer = std::string(100'000, 'x');
  tracer.Add(std::move(span));
  std::vector<TraceSpan> spans;
  tracer.Take(milliseconds(0), spans);
  ASSERT_THAT(spans, SizeIs(1));
  for (const std::string* text :
       {&spans[0].request_id, &spans[0].model, &spans[0].device, &spans[0].peer}) {
    EXPECT_LE(text->capacity(), 2 * limits::kTraceTextBytes);
    EXPECT_THAT(*text, StartsWith("xxx"));
  }
}

TEST(TracerTest, FullBatchIsTakenAtOnce) {
  Tracer tracer({.batch_spans = 3});
  std::vector<TraceSpan> spans;
  std::thread taker([&] { EXPECT_TRUE(tracer.Take(hours(1), spans)); });
  for (uint64_t id = 1; id <= 3; ++id) tracer.Add(SpanOf(id));
  taker.join();
  EXPECT_THAT(spans, SizeIs(3));
}

TEST(TracerTest, CloseEndsTheWaitAndLeavesWhatWasAdded) {
  Tracer tracer({});
  std::vector<TraceSpan> spans;
  std::thread waiter([&] { EXPECT_TRUE(tracer.AwaitClose(hours(1))); });
  EXPECT_FALSE(tracer.AwaitClose(milliseconds(0)));
  tracer.Add(SpanOf(1));
  tracer.Close();
  waiter.join();
  tracer.Add(SpanOf(2));
  EXPECT_EQ(tracer.counters().dropped_queue, 1) << "added after the end";
  EXPECT_TRUE(tracer.Take(hours(1), spans));
  EXPECT_THAT(spans, SizeIs(1));
  EXPECT_FALSE(tracer.Take(hours(1), spans));
}

TEST(TracerTest, SpansOfManyThreadsAreTakenOrCounted) {
  constexpr int kThreads = 4;
  constexpr int kEach = 5'000;
  Tracer tracer({.queue_spans = 64, .batch_spans = 16});
  int64_t taken = 0;
  std::thread taker([&] {
    std::vector<TraceSpan> spans;
    while (tracer.Take(milliseconds(1), spans)) taken += static_cast<int64_t>(spans.size());
  });
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (uint64_t id = 1; id <= kEach; ++id) tracer.Add(SpanOf(id));
    });
  }
  for (std::thread& thread : threads) thread.join();
  tracer.Close();
  taker.join();
  EXPECT_EQ(taken + tracer.counters().dropped_queue, kThreads * kEach);
  EXPECT_GT(taken, 0);
}

}  // namespace
}  // namespace rope::server
