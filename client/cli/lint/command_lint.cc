// lint: checks config.json files in this process.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/cli/commands.h"
#include "client/cli/files.h"
#include "client/cli/lint/config_files.h"
#include "client/cli/lint/engine_readings.h"
#include "client/cli/lint/lint.h"
#include "client/cli/lint/lint_output.h"
#include "kernels/config/model_file.h"

namespace rope::client {
namespace {

// The filter of --engine=NAME[@VERSION]. INVALID_ARGUMENT: an engine whose readings are not known.
Result<EngineFilter> FilterOf(const Arguments& arguments) {
  EngineFilter filter;
  if (!arguments.Has("engine")) return filter;
  const std::string text = arguments.Text("engine");
  const size_t at = text.find('@');
  filter.name = text.substr(0, at);
  if (at != std::string::npos) filter.version = text.substr(at + 1);
  const std::vector<std::string> names = EngineNames();
  const bool known = std::find(names.begin(), names.end(), filter.name) != names.end();
  if (known && (at == std::string::npos || !filter.version.empty())) return filter;
  return Status(StatusCode::kInvalidArgument,
                absl::StrCat("--engine: got ", text, ", want NAME or NAME@VERSION, NAME one of ",
                             absl::StrJoin(names, ", ")));
}

FileReport LintFile(const std::string& path, const EngineFilter& filter,
                    const std::string& sub_config) {
  if (IsGguf(path)) return LintModel(path, kernels::ReadModelFile(path, sub_config), filter);
  const Result<std::string> text = ReadFile(path, kConfigBytesMax);
  if (text.ok()) return LintText(path, *text, filter, sub_config);
  FileReport report;
  report.file = path;
  report.unreadable = text.status().message();
  return report;
}

std::vector<FileReport> LintAll(const std::vector<std::string>& paths, const EngineFilter& filter,
                                const std::string& sub_config) {
  std::vector<FileReport> reports;
  const ConfigFiles configs = FindConfigs(paths);
  for (const std::string& path : configs.files) {
    reports.push_back(LintFile(path, filter, sub_config));
  }
  for (const UnreadablePath& unreadable : configs.unreadable) {
    FileReport report;
    report.file = unreadable.path;
    report.unreadable = absl::StrCat(unreadable.path, ": ", unreadable.why);
    reports.push_back(std::move(report));
  }
  return reports;
}

int ExitOf(const std::vector<FileReport>& reports, Weight fail_on) {
  int exit = kExitOk;
  for (const FileReport& report : reports) {
    if (!report.unreadable.empty()) return kExitUsage;
    const bool fails =
        std::any_of(report.findings.begin(), report.findings.end(),
                    [fail_on](const Finding& finding) { return finding.weight >= fail_on; });
    if (fails) exit = kExitFailed;
  }
  return exit;
}

}  // namespace

std::vector<Flag> LintFlags() {
  return {
      {"engine", FlagKind::kText, "NAME[@VERSION]", "Only the readings of this engine."},
      {"sub_config", FlagKind::kText, "NAME",
       "Only the config of this path inside each file: vision_config."},
      {"fail_on", FlagKind::kText, "error|warning|reading",
       "The lightest finding that fails. Default error: the config is refused."},
      {"json", FlagKind::kSwitch, "", "Print an array with an object for each file."},
      {"sarif", FlagKind::kSwitch, "", "Print SARIF 2.1.0, for GitHub code scanning."},
  };
}

int RunLint(const Arguments& arguments) {
  if (arguments.positional().empty()) return Misuse("lint: got no file, want CONFIG...");
  if (arguments.Has("json") && arguments.Has("sarif")) {
    return Misuse("--json: got it and --sarif, want one of them");
  }
  const Result<EngineFilter> filter = FilterOf(arguments);
  if (!filter.ok()) return Misuse(filter.status().message());
  const Result<Weight> fail_on = ChoiceOf<Weight>(arguments, "fail_on",
                                                  {{"", Weight::kError},
                                                   {"error", Weight::kError},
                                                   {"warning", Weight::kWarning},
                                                   {"reading", Weight::kReading}});
  if (!fail_on.ok()) return Misuse(fail_on.status().message());
  const std::vector<FileReport> reports =
      LintAll(arguments.positional(), *filter, arguments.Text("sub_config"));
  const std::string text = arguments.Has("json")    ? LintJson(reports)
                           : arguments.Has("sarif") ? LintSarif(reports)
                                                    : LintPage(reports);
  absl::PrintF("%s", text);
  for (const FileReport& report : reports) {
    if (!report.unreadable.empty()) absl::FPrintF(stderr, "ropectl: %s\n", report.unreadable);
  }
  return ExitOf(reports, *fail_on);
}

}  // namespace rope::client
