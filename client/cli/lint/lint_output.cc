#include "client/cli/lint/lint_output.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/arguments.h"
#include "proto/version.h"

namespace rope::client {
namespace {

// Text of a file without the control characters that a terminal would obey.
std::string Printable(absl::string_view text) {
  std::string printable;
  for (const char c : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppendFormat(&printable, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      printable.push_back(c);
    }
  }
  return printable;
}

// Where in the model the finding holds: " [full_attention]", " [vision_config]",
// " [vision_config: full_attention]", or nothing.
std::string PlaceOf(const Finding& finding) {
  const std::string types = absl::StrJoin(finding.layer_types, ", ");
  if (finding.sub_config.empty() && types.empty()) return "";
  const char* between = finding.sub_config.empty() || types.empty() ? "" : ": ";
  return absl::StrCat(" [", finding.sub_config, between, types, "]");
}

std::string LineOf(const FileReport& report, const Finding& finding) {
  return absl::StrCat(Printable(report.file), ":", finding.line, ": ", Name(finding.rule->weight),
                      ": ", Printable(finding.message), Printable(PlaceOf(finding)), " [",
                      finding.rule->id, "]\n");
}

// The cells of a file's line, in the order of the table's head.
std::array<std::string, 8> CellsOf(const FileReport& report) {
  const std::string file = Printable(report.file);
  if (!report.unreadable.empty()) return {file, "-", "-", "unreadable", "-", "-", "-", "-"};
  const auto or_dash = [](const std::string& text) { return text.empty() ? "-" : text; };
  const auto count = [&report](Weight weight) { return absl::StrCat(report.CountOf(weight)); };
  return {file,
          or_dash(Printable(report.model_type)),
          or_dash(report.rope_type),
          report.pairing.empty() ? "not known" : report.pairing,
          count(Weight::kError),
          count(Weight::kWarning),
          count(Weight::kReading),
          count(Weight::kNote)};
}

std::string Table(const std::vector<FileReport>& reports) {
  std::vector<std::array<std::string, 8>> lines = {
      {"file", "model_type", "rope_type", "pairing", "errors", "warnings", "readings", "notes"}};
  for (const FileReport& report : reports) lines.push_back(CellsOf(report));
  std::array<int, 3> widths = {};  // of the columns whose texts may be long
  for (const auto& cells : lines) {
    for (size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], static_cast<int>(cells[i].size()));
    }
  }
  std::string table;
  for (const auto& [file, model, type, pairing, errors, warnings, readings, notes] : lines) {
    absl::StrAppendFormat(&table, "%-*s  %-*s  %-*s  %-11s  %6s  %8s  %8s  %5s\n", widths[0], file,
                          widths[1], model, widths[2], type, pairing, errors, warnings, readings,
                          notes);
  }
  return table;
}

Json JsonOf(const Finding& finding) {
  Json json = {{"weight", std::string(Name(finding.rule->weight))},
               {"rule", finding.rule->id},
               {"help", HelpLink(*finding.rule)},
               {"sub_config", finding.sub_config},
               {"layer_types", finding.layer_types},
               {"field", finding.field},
               {"line", finding.line},
               {"message", finding.message}};
  if (finding.rule->weight == Weight::kReading) {
    json["engine"] = finding.engine;
    json["version"] = finding.version;
  }
  return json;
}

const char* LevelOf(Weight weight) {
  return weight == Weight::kError ? "error" : weight == Weight::kWarning ? "warning" : "note";
}

Json RulesJson() {
  Json rules = Json::array();
  for (const Rule& rule : Rules()) {
    const std::string& summary = rule.summary;
    rules.push_back(
        {{"id", rule.id},
         {"shortDescription", {{"text", summary}}},
         {"fullDescription", {{"text", summary}}},
         {"help",
          {{"text", absl::StrCat(summary, " See ", HelpLink(rule), ".")},
           {"markdown", absl::StrCat(summary, " See [", rule.id, "](", HelpLink(rule), ").")}}},
         {"defaultConfiguration", {{"level", LevelOf(rule.weight)}}},
         {"properties", {{"weight", std::string(Name(rule.weight))}}}});
  }
  return rules;
}

// A path as a relative URI, or as a file URI where it is absolute.
std::string UriOf(absl::string_view path) {
  while (absl::StartsWith(path, "./")) path.remove_prefix(2);
  std::string uri = absl::StartsWith(path, "/") ? "file://" : "";
  for (const char c : path) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("-._~/", c)) {
      uri.push_back(c);
    } else {
      absl::StrAppendFormat(&uri, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return uri;
}

Json LocationsJson(const std::string& file, int64_t line) {
  return Json::array(
      {{{"physicalLocation",
         {{"artifactLocation", {{"uri", UriOf(file)}}}, {"region", {{"startLine", line}}}}}}});
}

Json ResultJson(const FileReport& report, const Finding& finding) {
  const std::string text = absl::StrCat(finding.message, PlaceOf(finding));
  return {{"ruleId", finding.rule->id},
          {"ruleIndex", finding.rule - Rules().data()},
          {"level", LevelOf(finding.rule->weight)},
          {"message", {{"text", text}}},
          {"locations", LocationsJson(report.file, finding.line)}};
}

// Of a finding of a baseline.
constexpr const char* kKeys[] = {"file", "rule", "sub_config", "message"};
using Baseline = std::set<std::array<std::string, std::size(kKeys)>>;

Baseline::value_type KeyOf(const FileReport& report, const Finding& finding) {
  absl::string_view file = report.file;
  while (absl::StartsWith(file, "./")) file.remove_prefix(2);
  return {std::string(file), finding.rule->id, finding.sub_config, finding.message};
}

}  // namespace

std::string LintPage(const std::vector<FileReport>& reports) {
  std::string page;
  for (const FileReport& report : reports) {
    for (const Finding& finding : report.findings) absl::StrAppend(&page, LineOf(report, finding));
    if (reports.size() == 1 && report.findings.empty() && report.unreadable.empty()) {
      absl::StrAppend(&page, Printable(report.file), ": no findings\n");
    }
  }
  if (reports.size() < 2) return page;
  return absl::StrCat(page, page.empty() ? "" : "\n", Table(reports));
}

std::string LintJson(const std::vector<FileReport>& reports) {
  Json files = Json::array();
  for (const FileReport& report : reports) {
    Json file = {{"file", report.file}};
    if (!report.unreadable.empty()) {
      file["unreadable"] = report.unreadable;
      files.push_back(std::move(file));
      continue;
    }
    Json findings = Json::array();
    for (const Finding& finding : report.findings) findings.push_back(JsonOf(finding));
    file["model_type"] = report.model_type;
    file["rope_type"] = report.rope_type;
    file["pairing"] = report.pairing.empty() ? "unspecified" : report.pairing;
    file["errors"] = report.CountOf(Weight::kError);
    file["warnings"] = report.CountOf(Weight::kWarning);
    file["readings"] = report.CountOf(Weight::kReading);
    file["notes"] = report.CountOf(Weight::kNote);
    file["findings"] = std::move(findings);
    files.push_back(std::move(file));
  }
  return JsonText(files);
}

std::string LintSarif(const std::vector<FileReport>& reports) {
  Json results = Json::array();
  Json notifications = Json::array();
  for (const FileReport& report : reports) {
    for (const Finding& finding : report.findings) results.push_back(ResultJson(report, finding));
    if (report.unreadable.empty()) continue;
    notifications.push_back({{"level", "error"},
                             {"message", {{"text", report.unreadable}}},
                             {"locations", LocationsJson(report.file, 1)}});
  }
  const Json invocation = {{"executionSuccessful", notifications.empty()},
                           {"toolExecutionNotifications", notifications}};
  const Json driver = {
      {"name", "ropectl"}, {"semanticVersion", proto::kVersion}, {"rules", RulesJson()}};
  const Json run = {{"tool", {{"driver", driver}}},
                    {"invocations", Json::array({invocation})},
                    {"results", results}};
  return JsonText({{"$schema", "https://json.schemastore.org/sarif-2.1.0.json"},
                   {"version", "2.1.0"},
                   {"runs", Json::array({run})}});
}

std::string BaselineText(const std::vector<FileReport>& reports) {
  Baseline baseline;
  for (const FileReport& report : reports) {
    for (const Finding& finding : report.findings) baseline.insert(KeyOf(report, finding));
  }
  std::string text = "[";
  for (const Baseline::value_type& values : baseline) {
    Json line;
    for (size_t i = 0; i < values.size(); ++i) line[kKeys[i]] = values[i];
    absl::StrAppend(&text, text.size() == 1 ? "\n" : ",\n",
                    line.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return absl::StrCat(text, "\n]\n");
}

Status RemoveKnown(absl::string_view baseline, std::vector<FileReport>& reports) {
  const Json json =
      Json::parse(baseline.begin(), baseline.end(), nullptr, /*allow_exceptions=*/false);
  const auto refuse = [] {
    return Status(StatusCode::kInvalidArgument,
                  "got another file, want what --write_baseline writes");
  };
  if (!json.is_array()) return refuse();
  Baseline known;
  for (const Json& line : json) {
    Baseline::value_type values;
    for (size_t i = 0; i < values.size(); ++i) {
      const Json value = line.is_object() ? line.value(kKeys[i], Json()) : Json();
      if (!value.is_string()) return refuse();
      values[i] = value;
    }
    known.insert(std::move(values));
  }
  for (FileReport& report : reports) {
    std::erase_if(report.findings,
                  [&](const Finding& finding) { return known.contains(KeyOf(report, finding)); });
  }
  return {};
}

}  // namespace rope::client
