#include "server/telemetry/status_page.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace rope::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Families = std::vector<MetricFamily>;
using Histogram = ClientMetric::Histogram;

constexpr const char* kNothing = "–";
constexpr double kNearlyFull = 0.9;
constexpr int kCertificateDaysMin = 7;

// The policy lets the browser load nothing; the empty icon keeps it from asking for one.
constexpr absl::string_view kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="refresh" content="5">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,">
)";

constexpr absl::string_view kStyle = R"(
:root { color-scheme: light dark; --page: #f4f5f7; --card: #fff; --line: #dfe2e7; --text: #1c2128;
  --dim: #667080; --bar: #3b78c4; --ok: #1a7f4b; --warn: #a85d00; --bad: #c22b36; }
@media (prefers-color-scheme: dark) { :root { --page: #14171c; --card: #1d2127; --line: #333a44;
  --text: #e4e7ec; --dim: #97a1b0; --bar: #5a9be6; --ok: #4cc283; --warn: #e5a145;
  --bad: #f2747c; } }
body { margin: 0 auto; padding: 1rem; max-width: 75rem; background: var(--page);
  color: var(--text); font: 14px/1.45 system-ui, sans-serif; }
header { display: flex; flex-wrap: wrap; align-items: center; gap: 0 .75rem; }
h1 { margin: 0; font-size: 1.5rem; }
h2 { margin: 0; font-size: 1rem; }
p { margin: 0; color: var(--dim); }
header p { flex-basis: 100%; }
a { margin-left: auto; color: var(--bar); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(6.5rem, 1fr)); gap: .75rem;
  margin: .75rem 0; }
main { columns: 21rem; column-gap: .75rem; }
dl div, section { padding: .6rem .8rem; border: 1px solid var(--line); border-radius: 6px;
  background: var(--card); overflow-x: auto; }
section { margin-bottom: .75rem; break-inside: avoid; }
.wide { column-span: all; }
dt { color: var(--dim); }
dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
table { width: 100%; margin-top: .3rem; border-collapse: collapse;
  font-variant-numeric: tabular-nums; }
th, td { padding: .2rem 0 .2rem .75rem; border-top: 1px solid var(--line); text-align: right;
  vertical-align: top; white-space: nowrap; }
th { font-weight: normal; }
th:first-child { padding-left: 0; text-align: left; }
thead th { border-top: 0; color: var(--dim); }
td.list, th.list { width: 50%; padding-left: 1.5rem; text-align: left; white-space: normal; }
.dim { color: var(--dim); }
.ok { color: var(--ok); }
.warn { color: var(--warn); }
.bad { color: var(--bad); }
strong { padding: 0 .5rem; border: 1px solid; border-radius: 4px; }
meter { width: 6.5rem; height: .7rem; margin-left: .3rem; vertical-align: middle; }
section:not(.wide) meter { width: 5rem; }
meter, meter::-webkit-meter-bar { height: .7rem; border: 0; border-radius: 3px;
  background: var(--line); }
meter::-webkit-meter-optimum-value { background: var(--bar); border-radius: 3px; }
meter::-moz-meter-bar { background: var(--bar); border-radius: 3px; }
meter.warn::-webkit-meter-optimum-value { background: var(--warn); }
meter.warn::-moz-meter-bar { background: var(--warn); }
)";

// A cell of a table: a bar, a text, or both.
struct Cell {
  std::string text;
  const char* style = "";            // a class of kStyle
  std::optional<double> share = {};  // how full the bar is; 1 is full
};
using Row = std::vector<Cell>;  // its name first

struct Table {
  const char* title = "";
  const char* note = "";
  Row head = {};  // none: names and values
  std::vector<Row> rows = {};
};

// A counter, a gauge or a histogram with its labels.
struct MetricSample {
  double value = 0;
  const ClientMetric* metric = nullptr;

  std::string Label(absl::string_view name) const {
    for (const ClientMetric::Label& label : metric->label) {
      if (label.name == name) return label.value;
    }
    return "";
  }
};

std::vector<MetricSample> Read(const Families& families, absl::string_view name) {
  std::vector<MetricSample> samples;
  for (const MetricFamily& family : families) {
    if (family.name != name) continue;
    const bool counts = family.type == MetricType::Counter;
    for (const ClientMetric& metric : family.metric) {
      samples.push_back({counts ? metric.counter.value : metric.gauge.value, &metric});
    }
  }
  return samples;
}

// The samples of the family whose `label` is `value`.
std::vector<MetricSample> ReadWhere(const Families& families, absl::string_view name,
                                    absl::string_view label, absl::string_view value) {
  std::vector<MetricSample> samples = Read(families, name);
  std::erase_if(samples, [&](const MetricSample& sample) { return sample.Label(label) != value; });
  return samples;
}

// nullopt: none.
std::optional<MetricSample> First(const std::vector<MetricSample>& samples) {
  if (samples.empty()) return std::nullopt;
  return samples.front();
}

double Sum(const std::vector<MetricSample>& samples) {
  double sum = 0;
  for (const MetricSample& sample : samples) sum += sample.value;
  return sum;
}

// The values of a label, each once, in the order of the samples.
std::vector<std::string> LabelValues(const std::vector<MetricSample>& samples,
                                     absl::string_view label) {
  std::vector<std::string> values;
  for (const MetricSample& sample : samples) {
    const std::string value = sample.Label(label);
    if (std::ranges::find(values, value) == values.end()) values.push_back(value);
  }
  return values;
}

// 0, 1.23, 12.3, 123.
std::string ThreeDigits(double number) {
  if (number == 0) return "0";
  const int decimals = number < 9.995 ? 2 : number < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f", decimals, number);
}

std::string SecondsText(double seconds) {
  if (seconds < 1e-3) return absl::StrCat(ThreeDigits(seconds * 1e6), " µs");
  if (seconds < 1) return absl::StrCat(ThreeDigits(seconds * 1e3), " ms");
  return absl::StrCat(ThreeDigits(seconds), " s");
}

// 1,234,567.
std::string CountText(double number) {
  std::string text = absl::StrFormat("%.0f", number);
  for (size_t end = text.size(); end > 3 && text[end - 4] != '-'; end -= 3) {
    text.insert(end - 3, 1, ',');
  }
  return text;
}

// 1.23 M. `units`: a letter for each power of `base`.
std::string Scaled(double number, double base, absl::string_view units) {
  for (number /= base; number >= base && units.size() > 1; number /= base) units.remove_prefix(1);
  return absl::StrCat(ThreeDigits(number), " ", units.substr(0, 1));
}

std::string BytesText(double bytes) {
  if (bytes < 1024) return absl::StrCat(CountText(bytes), " B");
  return absl::StrCat(Scaled(bytes, 1024, "KMGTP"), "iB");
}

std::string ShortCount(double number) {
  return number < 1e5 ? CountText(number) : Scaled(number, 1e3, "kMGTP");
}

std::string Percent(double share) {
  return absl::StrCat(ThreeDigits(share * 100), " %");
}

// The two largest units: 3 d 4 h.
std::string Age(double seconds) {
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, 1e12));
  if (whole >= 86400) return absl::StrCat(whole / 86400, " d ", whole / 3600 % 24, " h");
  if (whole >= 3600) return absl::StrCat(whole / 3600, " h ", whole / 60 % 60, " min");
  if (whole >= 60) return absl::StrCat(whole / 60, " min ", whole % 60, " s");
  return absl::StrCat(whole, " s");
}

std::string Date(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

// The value that `share` of the observations do not exceed, on a line between two bounds, as
// Prometheus has it.
std::string Quantile(const Histogram& histogram, double share) {
  const double rank = share * static_cast<double>(histogram.sample_count);
  if (rank <= 0) return kNothing;
  double bound = 0;
  double below = 0;
  for (const ClientMetric::Bucket& bucket : histogram.bucket) {
    const auto count = static_cast<double>(bucket.cumulative_count);
    if (count < rank) {
      bound = bucket.upper_bound;
      below = count;
      continue;
    }
    if (std::isinf(bucket.upper_bound)) return absl::StrCat("> ", SecondsText(bound));
    return SecondsText(bound + (bucket.upper_bound - bound) * (rank - below) / (count - below));
  }
  return kNothing;
}

std::string Mean(const Histogram& histogram) {
  if (histogram.sample_count == 0) return kNothing;
  return SecondsText(histogram.sample_sum / static_cast<double>(histogram.sample_count));
}

double Share(double part, double whole) {
  if (whole > 0) return std::clamp(part / whole, 0.0, 1.0);
  return part > 0 ? 1 : 0;
}

Cell CountCell(double number, const char* style = "") {
  return {CountText(number), number == 0 ? "dim" : style};
}

// "full 3, timeout 1" of the samples that are not 0, by their label. A line does not end within
// an entry.
std::string ListOf(const std::vector<MetricSample>& samples, absl::string_view label) {
  std::string list;
  for (const MetricSample& sample : samples) {
    if (sample.value == 0) continue;
    absl::StrAppend(&list, list.empty() ? "" : ", ", sample.Label(label), "\u00a0",
                    CountText(sample.value));
  }
  return list;
}

Table RequestsTable(const Families& families) {
  Table table = {"Requests",
                 "Since the process started. Quantiles are of the time from arrival to answer.",
                 {{"Method"}, {"OK"}, {"p50"}, {"p99"}, {"Other codes", "list"}}};
  const char* const name = "rope_requests_total";
  for (const std::string& method : LabelValues(Read(families, name), "method")) {
    std::vector<MetricSample> others = ReadWhere(families, name, "method", method);
    const double all = Sum(others);
    std::erase_if(others, [](const MetricSample& sample) { return sample.Label("code") == "OK"; });
    const std::optional<MetricSample> duration =
        First(ReadWhere(families, "rope_request_duration_seconds", "method", method));
    const Histogram histogram = duration ? duration->metric->histogram : Histogram();
    table.rows.push_back({{method},
                          CountCell(all - Sum(others)),
                          {Quantile(histogram, 0.5)},
                          {Quantile(histogram, 0.99)},
                          {ListOf(others, "code"), "list"}});
  }
  return table;
}

Table StagesTable(const Families& families) {
  Table table = {"Stages of Rotate",
                 "Of requests that succeeded.",
                 {{"Stage"}, {"Mean"}, {"p50"}, {"p99"}, {"Share of time"}}};
  const std::vector<MetricSample> stages = Read(families, "rope_request_stage_seconds");
  double seconds = 0;
  for (const MetricSample& stage : stages) seconds += stage.metric->histogram.sample_sum;
  for (const MetricSample& stage : stages) {
    const Histogram& histogram = stage.metric->histogram;
    const double share = Share(histogram.sample_sum, seconds);
    table.rows.push_back({{stage.Label("stage")},
                          {Mean(histogram)},
                          {Quantile(histogram, 0.5)},
                          {Quantile(histogram, 0.99)},
                          {Percent(share), "", share}});
  }
  return table;
}

Table DevicesTable(const Families& families) {
  Table table = {"Devices", "", {{"Device"}, {"Batches"}, {"Faults"}, {"Closed by", "list"}}};
  const char* const name = "rope_batches_total";
  for (const std::string& device : LabelValues(Read(families, name), "device")) {
    const std::vector<MetricSample> batches = ReadWhere(families, name, "device", device);
    const std::vector<MetricSample> faults =
        ReadWhere(families, "rope_device_faults_total", "device", device);
    table.rows.push_back({{device},
                          CountCell(Sum(batches)),
                          CountCell(Sum(faults), "bad"),
                          {ListOf(batches, "closed_by"), "list"}});
  }
  return table;
}

// Whether the budget is one of a cache or a pool, which drops what is old once it is full.
bool FullIsNormal(absl::string_view budget) {
  return budget == "pool_bytes" || budget == "table_bytes" || budget == "spec_bytes" ||
         absl::StartsWith(budget, "prepared");
}

Table BudgetsTable(const Families& families) {
  Table table = {
      "Budgets",
      "Refusals are since the process started. A budget that is no cache is marked from 90 % on.",
      {{"Budget"}, {"Used"}, {"Limit"}, {"Share"}, {"Refusals", "list"}}};
  for (const MetricSample& limit : Read(families, "rope_budget_limit")) {
    const std::string name = limit.Label("budget");
    const std::optional<MetricSample> used =
        First(ReadWhere(families, "rope_budget_used", "budget", name));
    if (!used.has_value()) continue;
    const double share = Share(used->value, limit.value);
    const auto format = absl::EndsWith(name, "_bytes") ? &BytesText : &CountText;
    const char* style = share >= kNearlyFull && !FullIsNormal(name) ? "warn" : "";
    const std::vector<MetricSample> refusals =
        ReadWhere(families, "rope_budget_refusals_total", "budget", name);
    table.rows.push_back({{name},
                          {format(used->value), style},
                          {format(limit.value)},
                          {Percent(share), style, share},
                          {ListOf(refusals, "reason"), "list"}});
  }
  return table;
}

// Adds a row for the family's value, if there is one.
void AddValue(const Families& families, const char* family, const char* name,
              std::string (*format)(double), Table& table) {
  const std::optional<MetricSample> sample = First(Read(families, family));
  if (!sample.has_value()) return;
  table.rows.push_back({{name}, {format(sample->value), sample->value == 0 ? "dim" : ""}});
}

// Adds a row for the use of the budget, if there is one.
void AddBudget(const Families& families, const char* budget, const char* name,
               std::string (*format)(double), Table& table) {
  const std::optional<MetricSample> used =
      First(ReadWhere(families, "rope_budget_used", "budget", budget));
  if (used.has_value()) table.rows.push_back({{name}, {format(used->value)}});
}

// Adds a row for each reason that the family counts.
void AddReasons(const Families& families, const char* family, const char* before, Table& table) {
  for (const MetricSample& sample : Read(families, family)) {
    table.rows.push_back({{absl::StrCat(before, sample.Label("reason"))}, CountCell(sample.value)});
  }
}

Table CacheTable(const Families& families) {
  Table table = {"Table cache", ""};
  const std::optional<MetricSample> hits = First(Read(families, "rope_table_cache_hits_total"));
  const std::optional<MetricSample> misses = First(Read(families, "rope_table_cache_misses_total"));
  if (hits.has_value() && misses.has_value()) {
    const double lookups = hits->value + misses->value;
    const double share = Share(hits->value, lookups);
    table.rows.push_back(
        {{"Hits"},
         {absl::StrCat(lookups > 0 ? Percent(share) : kNothing, " of ", ShortCount(lookups)), "",
          share}});
  }
  const std::optional<MetricSample> bytes = First(Read(families, "rope_table_cache_bytes"));
  const std::optional<MetricSample> budget = First(Read(families, "rope_table_cache_budget_bytes"));
  if (bytes.has_value() && budget.has_value()) {
    table.rows.push_back({{"Bytes"},
                          {absl::StrCat(BytesText(bytes->value), " of ", BytesText(budget->value)),
                           "", Share(bytes->value, budget->value)}});
  }
  AddValue(families, "rope_table_cache_pages", "Pages", &CountText, table);
  AddValue(families, "rope_table_cache_tables", "Embeddings", &CountText, table);
  AddValue(families, "rope_table_cache_builds_total", "Pages built", &CountText, table);
  AddValue(families, "rope_table_cache_evictions_total", "Pages dropped", &CountText, table);
  return table;
}

Table ConnectionsTable(const Families& families) {
  Table table = {"Connections", ""};
  AddBudget(families, "connections", "Open", &CountText, table);
  AddValue(families, "rope_streams", "Open streams", &CountText, table);
  AddValue(families, "rope_rings", "Rings", &CountText, table);
  AddReasons(families, "rope_connections_closed_total", "Closed: ", table);
  return table;
}

Table HeldTable(const Families& families) {
  Table table = {"Models and memory regions", ""};
  AddValue(families, "rope_models", "Models", &CountText, table);
  AddValue(families, "rope_regions", "Regions", &CountText, table);
  AddValue(families, "rope_region_bytes", "Bytes of regions", &BytesText, table);
  AddValue(families, "rope_region_rejections_total", "Refused regions", &CountText, table);
  return table;
}

Cell CellOfLeft(absl::Duration left) {
  if (left <= absl::ZeroDuration()) return {"expired", "bad"};
  const bool is_short = left < absl::Hours(24 * kCertificateDaysMin);
  return {Age(absl::ToDoubleSeconds(left)), is_short ? "warn" : ""};
}

Table CertificateTable(const Families& families, absl::Time now) {
  Table table = {"TLS certificate", ""};
  const std::optional<MetricSample> expiry =
      First(Read(families, "rope_tls_certificate_expiry_timestamp_seconds"));
  if (!expiry.has_value()) {
    table.rows.push_back({{"Ends"}, {"no TLS", "dim"}});
    return table;
  }
  const absl::Time end = absl::UnixEpoch() + absl::Seconds(expiry->value);
  table.rows.push_back({{"Ends"}, {Date(end)}});
  table.rows.push_back({{"Left"}, CellOfLeft(end - now)});
  AddValue(families, "rope_tls_reload_failures_total", "Failed reloads", &CountText, table);
  return table;
}

Table LogTable(const Families& families) {
  Table table = {"Dropped log lines", ""};
  AddReasons(families, "rope_log_lines_dropped_total", "", table);
  return table;
}

Table ProcessTable(const Families& families) {
  Table table = {"Process and traffic", ""};
  AddValue(families, "process_resident_memory_bytes", "Resident memory", &BytesText, table);
  AddValue(families, "process_cpu_seconds_total", "Processor time", &Age, table);
  AddValue(families, "process_open_fds", "Open files", &CountText, table);
  AddValue(families, "rope_received_bytes_total", "Received", &BytesText, table);
  AddValue(families, "rope_sent_bytes_total", "Sent", &BytesText, table);
  AddValue(families, "rope_unknown_methods_total", "Calls of unknown methods", &CountText, table);
  return table;
}

// The figures at the top.
Table Summary(const Families& families) {
  Table table;
  const std::vector<MetricSample> answers = Read(families, "rope_requests_total");
  const double all = Sum(answers);
  const double ok = Sum(ReadWhere(families, "rope_requests_total", "code", "OK"));
  if (!answers.empty()) {
    table.rows.push_back({{"Requests"}, {ShortCount(all)}});
    table.rows.push_back({{"Not OK"}, {all > 0 ? Percent(Share(all - ok, all)) : kNothing}});
  }
  AddValue(families, "rope_requests_in_flight", "In flight", &CountText, table);
  AddValue(families, "rope_tokens_total", "Tokens", &ShortCount, table);
  AddBudget(families, "connections", "Connections", &CountText, table);
  AddBudget(families, "memory_bytes", "Memory", &BytesText, table);
  return table;
}

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

// <name attributes>text</name>.
void WriteElement(const char* name, absl::string_view attributes, absl::string_view text,
                  std::string& page) {
  absl::StrAppend(&page, "<", name, attributes, ">", Escaped(text), "</", name, ">");
}

std::string ClassOf(const Cell& cell) {
  return *cell.style == 0 ? "" : absl::StrCat(" class=\"", cell.style, "\"");
}

void WriteCell(const Cell& cell, std::string& page) {
  if (!cell.share.has_value()) {
    WriteElement("td", ClassOf(cell), cell.text, page);
    return;
  }
  absl::StrAppendFormat(&page, "<td>%s <meter%s value=\"%.3f\"></meter></td>", Escaped(cell.text),
                        ClassOf(cell), *cell.share);
}

void WriteRow(const Row& row, std::string& page) {
  absl::StrAppend(&page, "<tr>");
  WriteElement("th", " scope=\"row\"", row.front().text, page);
  for (size_t i = 1; i < row.size(); ++i) WriteCell(row[i], page);
  absl::StrAppend(&page, "</tr>\n");
}

void WriteHead(const Row& head, std::string& page) {
  absl::StrAppend(&page, "<thead><tr>");
  for (const Cell& name : head) {
    WriteElement("th", absl::StrCat(" scope=\"col\"", ClassOf(name)), name.text, page);
  }
  absl::StrAppend(&page, "</tr></thead>\n");
}

// A table without rows is left out.
void WriteTable(const Table& table, std::string& page) {
  if (table.rows.empty()) return;
  absl::StrAppend(&page, table.head.empty() ? "<section>" : "<section class=\"wide\">");
  WriteElement("h2", "", table.title, page);
  if (*table.note != 0) WriteElement("p", "", table.note, page);
  absl::StrAppend(&page, "<table>\n");
  if (!table.head.empty()) WriteHead(table.head, page);
  absl::StrAppend(&page, "<tbody>\n");
  for (const Row& row : table.rows) WriteRow(row, page);
  absl::StrAppend(&page, "</tbody></table></section>\n");
}

void WriteSummary(const Table& table, std::string& page) {
  absl::StrAppend(&page, "<dl>\n");
  for (const Row& row : table.rows) {
    absl::StrAppend(&page, "<div>");
    WriteElement("dt", "", row[0].text, page);
    WriteElement("dd", ClassOf(row[1]), row[1].text, page);
    absl::StrAppend(&page, "</div>\n");
  }
  absl::StrAppend(&page, "</dl>\n");
}

Cell State(const Families& families, bool serving) {
  const std::optional<MetricSample> draining = First(Read(families, "rope_draining"));
  if (draining.has_value() && draining->value != 0) return {"DRAINING", "warn"};
  return serving ? Cell{"SERVING", "ok"} : Cell{"NOT SERVING", "bad"};
}

// What runs, and since when.
std::string WhatRuns(const Families& families, absl::Time now) {
  std::vector<std::string> facts;
  if (const std::optional<MetricSample> build = First(Read(families, "rope_build_info"))) {
    for (const ClientMetric::Label& label : build->metric->label) {
      facts.push_back(absl::StrCat(label.name, " ", label.value));
    }
  }
  if (const std::optional<MetricSample> start =
          First(Read(families, "process_start_time_seconds"))) {
    const double now_seconds = absl::ToDoubleSeconds(now - absl::UnixEpoch());
    facts.push_back(absl::StrCat("up ", Age(now_seconds - start->value)));
  }
  facts.push_back(absl::StrCat("as of ", Date(now)));
  return absl::StrJoin(facts, " · ");
}

}  // namespace

std::string StatusPage(const Families& families, const StatusMoment& moment) {
  const Cell state = State(families, moment.serving);
  std::string page(kHead);
  absl::StrAppend(&page, "<style>", kStyle, "</style>\n");
  WriteElement("title", "", absl::StrCat(state.text, " · RopeServe"), page);
  absl::StrAppend(&page, "</head>\n<body>\n<header><h1>RopeServe</h1>");
  WriteElement("strong", ClassOf(state), state.text, page);
  WriteElement("a", " href=\"metrics\"", "/metrics", page);
  WriteElement("p", "", WhatRuns(families, moment.now), page);
  absl::StrAppend(&page, "</header>\n");
  WriteSummary(Summary(families), page);
  absl::StrAppend(&page, "<main>\n");
  for (const Table& table :
       {RequestsTable(families), StagesTable(families), BudgetsTable(families),
        DevicesTable(families), CacheTable(families), ConnectionsTable(families),
        HeldTable(families), CertificateTable(families, moment.now), LogTable(families),
        ProcessTable(families)}) {
    WriteTable(table, page);
  }
  absl::StrAppend(&page, "</main>\n</body>\n</html>\n");
  return page;
}

}  // namespace rope::server
