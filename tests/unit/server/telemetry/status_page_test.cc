#include "server/telemetry/status_page.h"

#include <gtest/gtest.h>
#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "server/telemetry/metrics.h"
#include "tests/support/matchers.h"

namespace rope::server {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr int64_t kMebibyte = 1 << 20;

class StatusPageTest : public ::testing::Test {
 protected:
  std::vector<MetricFamily> Families() const {
    std::vector<MetricFamily> families = metrics_.Collect(gauges_);
    const double start = absl::ToDoubleSeconds(now_ - absl::UnixEpoch()) - 90;
    families.push_back(MakeMetric(MetricType::Gauge, "process_start_time_seconds", "Start", start));
    return families;
  }
  std::string Page() const { return StatusPage(Families(), {.serving = true, .now = now_}); }

  // The cells after `name` in the first row of that name; "none" if there is no such row.
  std::string CellsOf(const std::string& name) const {
    const std::string page = Page();
    const std::string head = "<tr><th scope=\"row\">" + name + "</th>";
    const size_t begin = page.find(head);
    if (begin == std::string::npos) return "none";
    return page.substr(begin + head.size(), page.find("</tr>", begin) - begin - head.size());
  }

  void Answer(int times, absl::Duration duration, Method method = Method::kRotate,
              absl::StatusCode code = absl::StatusCode::kOk) {
    for (int i = 0; i < times; ++i) {
      metrics_.CountRequest({.method = method, .code = code, .duration = duration});
    }
  }

  Metrics metrics_{"1.2.3", "abc", {"cuda", "cpu"}};
  Gauges gauges_;
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
};

// Adds a failure unless every element is closed in order. The page has `<` in tags alone.
void ExpectWellFormed(const std::string& page) {
  std::vector<std::string> open;
  for (size_t begin = page.find('<'); begin != std::string::npos; begin = page.find('<', begin)) {
    const size_t end = page.find('>', begin);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = page.substr(begin + 1, end - begin - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" \n"));
    begin = end;
    if (name == "!DOCTYPE" || name == "meta" || name == "link") continue;
    if (name[0] != '/') {
      open.push_back(name);
      continue;
    }
    ASSERT_FALSE(open.empty()) << tag;
    EXPECT_EQ("/" + open.back(), name);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

TEST_F(StatusPageTest, StateIsThatOfHealthAndOfTheDrain) {
  EXPECT_THAT(Page(), HasSubstr("<strong class=\"ok\">SERVING</strong>"));
  EXPECT_THAT(Page(), HasSubstr("<title>SERVING · RopeServe</title>"));
  EXPECT_THAT(StatusPage(Families(), {.serving = false, .now = now_}),
              HasSubstr("<strong class=\"bad\">NOT SERVING</strong>"));
  gauges_.draining = true;
  EXPECT_THAT(StatusPage(Families(), {.serving = false, .now = now_}),
              HasSubstr("<strong class=\"warn\">DRAINING</strong>"));
}

TEST_F(StatusPageTest, FirstLineSaysWhatRunsAndForHowLong) {
  EXPECT_THAT(Page(), HasSubstr("version 1.2.3 · revision abc · device cuda,cpu · up 1 min 30 s · "
                                "as of 2023-11-14 22:13:20 UTC"));
  now_ += absl::Hours(50);
  std::vector<MetricFamily> families = Families();
  families.back().metric[0].gauge.value -= 50 * 3600;
  EXPECT_THAT(StatusPage(families, {.now = now_}), HasSubstr(" · up 2 d 2 h · "));
}

TEST_F(StatusPageTest, PageLoadsNothingAndComesAgain) {
  const std::string page = Page();
  for (const char* loads : {"<script", "http:", "https:", "src=", "url(", "@import"}) {
    EXPECT_THAT(page, Not(HasSubstr(loads)));
  }
  EXPECT_THAT(page, HasSubstr("content=\"default-src 'none'; style-src 'unsafe-inline'"));
  EXPECT_THAT(page, HasSubstr("<meta http-equiv=\"refresh\" content=\"5\">"));
  EXPECT_THAT(page, HasSubstr("@media (prefers-color-scheme: dark)"));
}

TEST_F(StatusPageTest, TextsOfEveryFamilyAreEscaped) {
  const std::string hostile = "<b onclick=\"x('&')\">";
  std::vector<MetricFamily> families = Families();
  for (MetricFamily& family : families) {
    for (prometheus::ClientMetric& metric : family.metric) {
      metric.counter.value = metric.gauge.value = 1;
      for (prometheus::ClientMetric::Label& label : metric.label) label.value = hostile;
    }
  }
  const std::string page = StatusPage(families, {.now = now_});
  ExpectWellFormed(page);
  EXPECT_THAT(page, Not(HasSubstr("<b ")));
  EXPECT_THAT(page, HasSubstr("version &lt;b onclick=&quot;x(&#39;&amp;&#39;)&quot;&gt; · "));
  EXPECT_THAT(page, HasSubstr("<th scope=\"row\">&lt;b onclick="));
}

TEST_F(StatusPageTest, FamilyThatIsMissingLeavesItsRowsOutAndNoOther) {
  gauges_.models = 41;
  gauges_.budgets = {{"requests", 4096, 17, {{"full", 3}}}};
  const std::vector<MetricFamily> all = Families();
  for (size_t left_out = 0; left_out < all.size(); ++left_out) {
    std::vector<MetricFamily> families = all;
    families.erase(families.begin() + static_cast<std::ptrdiff_t>(left_out));
    const std::string page = StatusPage(families, {.now = now_});
    SCOPED_TRACE(all[left_out].name);
    ExpectWellFormed(page);
    EXPECT_EQ(absl::StrContains(page, "<th scope=\"row\">Models</th><td>41</td>"),
              all[left_out].name != "rope_models");
    EXPECT_EQ(absl::StrContains(page, "revision abc"), all[left_out].name != "rope_build_info");
    EXPECT_EQ(absl::StrContains(page, "full\u00a03"),
              !absl::StartsWith(all[left_out].name, "rope_budget_"));
  }
}

TEST_F(StatusPageTest, PageOfNoFamilyHasAStateAndNoFigures) {
  const std::string page = StatusPage({}, {.serving = true, .now = now_});
  ExpectWellFormed(page);
  EXPECT_THAT(page, HasSubstr("SERVING"));
  EXPECT_THAT(page, HasSubstr("<th scope=\"row\">Ends</th><td class=\"dim\">no TLS</td>"));
  EXPECT_THAT(page, Not(HasSubstr("<dt>")));
  EXPECT_THAT(page, Not(HasSubstr("<h2>Requests")));
}

TEST_F(StatusPageTest, RequestsAreShownByMethodAndCode) {
  Answer(1'234'567, absl::Microseconds(1));
  Answer(2, absl::Microseconds(1), Method::kRotate, absl::StatusCode::kNotFound);
  Answer(3, absl::Microseconds(1), Method::kRotate, absl::StatusCode::kUnavailable);
  Answer(5, absl::Microseconds(1), Method::kDescribe);
  EXPECT_THAT(CellsOf("Rotate"), StartsWith("<td>1,234,567</td>"));
  EXPECT_THAT(CellsOf("Rotate"),
              EndsWith("<td class=\"list\">NOT_FOUND\u00a02, UNAVAILABLE\u00a03</td>"));
  EXPECT_THAT(CellsOf("Describe"), StartsWith("<td>5</td>"));
  EXPECT_EQ(CellsOf("ListModels"), "none");
  EXPECT_THAT(Page(), HasSubstr("<dt>Requests</dt><dd>1.23 M</dd>"));
}

TEST_F(StatusPageTest, QuantilesLieOnALineBetweenTheBoundsOfTheirBucket) {
  Answer(100, absl::Microseconds(6));  // between 5 and 10
  EXPECT_THAT(CellsOf("Rotate"), HasSubstr("<td>7.50 µs</td><td>9.95 µs</td>"));
  Answer(300, absl::Microseconds(700));  // between 500 and 1000: the 100th to the 400th of 400
  EXPECT_THAT(CellsOf("Rotate"), HasSubstr("<td>667 µs</td><td>993 µs</td>"));
  Answer(400, absl::Milliseconds(20));  // between 10 and 25: p50 is the last one of before
  EXPECT_THAT(CellsOf("Rotate"), HasSubstr("<td>1.00 ms</td><td>24.7 ms</td>"));
}

TEST_F(StatusPageTest, QuantileAboveTheLastBoundOrOfNothingIsNoNumber) {
  EXPECT_THAT(CellsOf("Rotate"), HasSubstr("<td class=\"dim\">0</td><td>–</td><td>–</td>"));
  Answer(3, absl::Microseconds(1));
  Answer(1, absl::Seconds(60));
  EXPECT_THAT(CellsOf("Rotate"), EndsWith("<td>&gt; 10.0 s</td><td class=\"list\"></td>"));
}

TEST_F(StatusPageTest, StagesHaveTheirMeanAndTheirShareOfTheTime) {
  metrics_.CountRotation({.decode_us = 4, .validate_us = 16, .queue_us = 0, .execute_us = 60}, {});
  EXPECT_THAT(CellsOf("decode"), StartsWith("<td>4.00 µs</td>"));
  EXPECT_THAT(CellsOf("decode"), EndsWith("<td>5.00 % <meter value=\"0.050\"></meter></td>"));
  EXPECT_THAT(CellsOf("queue"), EndsWith("<td>0 % <meter value=\"0.000\"></meter></td>"));
  EXPECT_THAT(CellsOf("execute"), EndsWith("<td>75.0 % <meter value=\"0.750\"></meter></td>"));
}

TEST_F(StatusPageTest, BarsAreEmptyHalfAndFull) {
  gauges_.budgets = {{"spec_bytes", 64 * kMebibyte, 0},
                     {"pool_bytes", 64 * kMebibyte, 32 * kMebibyte},
                     {"table_bytes", 64 * kMebibyte, 64 * kMebibyte},
                     {"prepared_bytes", 64 * kMebibyte, 96 * kMebibyte},
                     {"prepared", 0, 0}};
  EXPECT_THAT(CellsOf("spec_bytes"), HasSubstr("<td>0 % <meter value=\"0.000\"></meter></td>"));
  EXPECT_THAT(CellsOf("pool_bytes"), HasSubstr("<td>32.0 MiB</td><td>64.0 MiB</td>"
                                               "<td>50.0 % <meter value=\"0.500\"></meter></td>"));
  EXPECT_THAT(CellsOf("table_bytes"), HasSubstr("<td>100 % <meter value=\"1.000\"></meter></td>"));
  EXPECT_THAT(CellsOf("prepared_bytes"), HasSubstr("value=\"1.000\"")) << "above the limit";
  EXPECT_THAT(CellsOf("prepared"), HasSubstr("value=\"0.000\"")) << "a limit of 0";
}

TEST_F(StatusPageTest, BudgetIsMarkedNearItsLimitUnlessItDropsWhatIsOld) {
  gauges_.budgets = {{"requests", 1000, 899}, {"table_bytes", 1000, 1000}};
  EXPECT_THAT(Page(), Not(HasSubstr("<meter class")));
  gauges_.budgets[0].used = 900;
  EXPECT_THAT(CellsOf("requests"), HasSubstr("<meter class=\"warn\" value=\"0.900\">"));
  EXPECT_THAT(CellsOf("table_bytes"), Not(HasSubstr("warn")));
}

TEST_F(StatusPageTest, RefusalsAreListedByReason) {
  gauges_.budgets = {{"connections", 8, 5, {{"full", 7}, {"owner_share", 0}, {"late", 2}}}};
  EXPECT_THAT(CellsOf("connections"), EndsWith("<td class=\"list\">full\u00a07, late\u00a02</td>"));
  EXPECT_EQ(CellsOf("Open"), "<td>5</td>");
}

TEST_F(StatusPageTest, DevicesHaveTheirBatchesAndFaults) {
  metrics_.CountBatch({.closed_by = ClosedBy::kBytes, .device = "cuda"});
  metrics_.CountBatch({.closed_by = ClosedBy::kRows, .device = "cuda"});
  metrics_.CountDeviceFault("cuda");
  EXPECT_EQ(CellsOf("cuda"),
            "<td>2</td><td class=\"bad\">1</td><td class=\"list\">bytes\u00a01, rows\u00a01</td>");
  EXPECT_EQ(CellsOf("cpu"),
            "<td class=\"dim\">0</td><td class=\"dim\">0</td><td class=\"list\"></td>");
}

TEST_F(StatusPageTest, CacheHasTheShareOfHitsAndOfItsBudget) {
  EXPECT_EQ(CellsOf("Hits"), "<td>– of 0 <meter value=\"0.000\"></meter></td>");
  gauges_.table_cache = {.hits = 3, .misses = 1, .bytes = 96 * kMebibyte, .pages = 7};
  gauges_.table_cache_budget_bytes = 256 * kMebibyte;
  EXPECT_EQ(CellsOf("Hits"), "<td>75.0 % of 4 <meter value=\"0.750\"></meter></td>");
  EXPECT_EQ(CellsOf("Bytes"), "<td>96.0 MiB of 256 MiB <meter value=\"0.375\"></meter></td>");
  EXPECT_EQ(CellsOf("Pages"), "<td>7</td>");
}

TEST_F(StatusPageTest, ConnectionsAndLogLinesAreShownByReason) {
  gauges_.connections_closed = {{"idle", 103}, {"stall", 0}};
  gauges_.log_drops = {318, 0, 2};
  gauges_.streams = 6;
  gauges_.rings = 9;
  EXPECT_EQ(CellsOf("Closed: idle"), "<td>103</td>");
  EXPECT_EQ(CellsOf("Closed: stall"), "<td class=\"dim\">0</td>");
  EXPECT_EQ(CellsOf("rate_limit"), "<td>318</td>");
  EXPECT_EQ(CellsOf("output"), "<td>2</td>");
  EXPECT_EQ(CellsOf("Open streams"), "<td>6</td>");
  EXPECT_EQ(CellsOf("Rings"), "<td>9</td>");
}

TEST_F(StatusPageTest, CertificateSaysWhenItEndsAndIsMarkedInItsLastWeek) {
  EXPECT_EQ(CellsOf("Left"), "none");
  gauges_.certificate_expiry = now_ + absl::Hours(24 * 7);
  EXPECT_EQ(CellsOf("Ends"), "<td>2023-11-21 22:13:20 UTC</td>");
  EXPECT_EQ(CellsOf("Left"), "<td>7 d 0 h</td>");
  EXPECT_EQ(CellsOf("Failed reloads"), "<td class=\"dim\">0</td>");
  now_ += absl::Seconds(1);
  EXPECT_EQ(CellsOf("Left"), "<td class=\"warn\">6 d 23 h</td>");
  now_ += absl::Hours(24 * 7);
  EXPECT_EQ(CellsOf("Left"), "<td class=\"bad\">expired</td>");
}

TEST_F(StatusPageTest, EveryElementOfABusyServersPageIsClosed) {
  Answer(2, absl::Microseconds(1), Method::kRotate, absl::StatusCode::kNotFound);
  gauges_.budgets = {{"requests", 4096, 4000, {{"full", 3}}}};
  gauges_.connections_closed = {{"idle", 103}};
  gauges_.certificate_expiry = now_;
  ExpectWellFormed(Page());
}

}  // namespace
}  // namespace rope::server
