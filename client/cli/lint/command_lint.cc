// lint: checks config.json files in this process.

#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/lint/config_files.h"
#include "client/cli/lint/lint.h"
#include "client/cli/lint/lint_output.h"
#include "kernels/status_macros.h"
#include "proto/nearest_name.h"

namespace rope::client {
namespace {

Result<kernels::EngineVersion> FilterOf(const Arguments& arguments) {
  if (!arguments.Has("engine")) return kernels::EngineVersion();
  Result<kernels::EngineVersion> filter = ReadFilter(arguments.Text("engine"));
  if (!filter.ok()) return Misused(absl::StrCat("--", filter.status().message()));
  return filter;
}

std::vector<FileReport> LintAll(const std::vector<std::string>& paths,
                                const kernels::EngineVersion& filter,
                                const std::string& sub_config) {
  std::vector<FileReport> reports;
  const auto refuse = [&reports](const std::string& path, const std::string& why) {
    reports.push_back({.file = path, .unreadable = why});
  };
  const ConfigFiles configs = FindConfigs(paths);
  for (const std::string& path : configs.files) {
    const Result<std::string> text = ReadConfig(path);
    if (text.ok()) {
      reports.push_back(LintText(path, *text, filter, sub_config));
    } else {
      refuse(path, text.status().message());
    }
  }
  for (const auto& [path, why] : configs.unreadable) refuse(path, absl::StrCat(path, ": ", why));
  return reports;
}

int ExitOf(const std::vector<FileReport>& reports, Weight fail_on) {
  int exit = kExitOk;
  const auto fails = [&](const Finding& finding) { return finding.rule->weight >= fail_on; };
  for (const FileReport& report : reports) {
    if (!report.unreadable.empty()) return kExitUsage;
    if (std::ranges::any_of(report.findings, fails)) exit = kExitFailed;
  }
  return exit;
}

// Removes the findings of the rules that --ignore names. INVALID_ARGUMENT: a rule that is none.
Status Ignore(const std::vector<std::string>& rules, std::vector<FileReport>& reports) {
  for (const std::string& id : rules) {
    const Rule* const rule = FindRule(id);
    if (rule == nullptr) {
      std::vector<std::string> known;
      for (const Rule& each : Rules()) known.emplace_back(each.id);
      return Misused(absl::StrCat("--ignore: got ", id, ", want a rule of client/cli/lint/RULES.md",
                                  proto::DidYouMean(proto::NearestName(id, known))));
    }
    for (FileReport& report : reports) {
      std::erase_if(report.findings,
                    [rule](const Finding& finding) { return finding.rule == rule; });
    }
  }
  return {};
}

// Removes the findings of the baseline, and writes the one that is left, as the flags say.
Status ApplyBaseline(const Arguments& arguments, std::vector<FileReport>& reports) {
  if (arguments.Has("baseline")) {
    const std::string path = arguments.Text("baseline");
    ROPE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kBaselineBytesMax));
    const Status known = RemoveKnown(text, reports);
    if (!known.ok()) return Misused(absl::StrCat(path, ": ", known.message()));
  }
  if (!arguments.Has("write_baseline")) return {};
  ROPE_RETURN_IF_ERROR(WriteFile(arguments.Text("write_baseline"), BaselineText(reports), ""));
  for (FileReport& report : reports) report.findings.clear();
  return {};
}

Result<int> RunLint(const Arguments& arguments) {
  if (arguments.positional().empty()) return Misused("lint: got no file, want CONFIG...");
  if (arguments.Has("json") && arguments.Has("sarif")) {
    return Misused("--json: got it and --sarif, want one of them");
  }
  ROPE_ASSIGN_OR_RETURN(const kernels::EngineVersion filter, FilterOf(arguments));
  ROPE_ASSIGN_OR_RETURN(const Weight fail_on, ChoiceOf<Weight>(arguments, "fail_on",
                                                               {{"error", Weight::kError},
                                                                {"warning", Weight::kWarning},
                                                                {"reading", Weight::kReading},
                                                                {"note", Weight::kNote}}));
  if (arguments.Has("baseline") && arguments.Has("write_baseline")) {
    return Misused("--baseline: got it and --write_baseline, want one of them");
  }
  std::vector<FileReport> reports =
      LintAll(arguments.positional(), filter, arguments.Text("sub_config"));
  ROPE_RETURN_IF_ERROR(Ignore(arguments.Texts("ignore"), reports));
  const Status applied = ApplyBaseline(arguments, reports);
  if (!applied.ok()) return Misused(applied.message());
  const std::string text = arguments.Has("json")    ? LintJson(reports)
                           : arguments.Has("sarif") ? LintSarif(reports)
                                                    : LintPage(reports);
  absl::PrintF("%s", text);
  for (const FileReport& report : reports) {
    if (!report.unreadable.empty()) absl::FPrintF(stderr, "ropectl: %s\n", report.unreadable);
  }
  return ExitOf(reports, fail_on);
}

}  // namespace

Command LintCommand() {
  return {"lint",
          "CONFIG...",
          "Checks config.json files, and folders of them, without a server.",
          {{"engine", FlagKind::kText, "NAME[@VERSION]", "Only the readings of this engine."},
           {"sub_config", FlagKind::kText, "NAME",
            "Only the config of this path inside each file: vision_config."},
           {"fail_on", FlagKind::kText, "error|warning|reading|note",
            "The lightest finding that fails. Default error: the config is refused."},
           {"ignore", FlagKind::kTexts, "RULE", "No findings of these rules: A,B; more than once."},
           {"baseline", FlagKind::kText, "FILE", "No findings that this file has."},
           {"write_baseline", FlagKind::kText, "FILE", "Write the findings there, and count none."},
           {"json", FlagKind::kSwitch, "", "Print an array with an object for each file."},
           {"sarif", FlagKind::kSwitch, "", "Print SARIF 2.1.0, for GitHub code scanning."}},
          &RunLint,
          Command::Asks::kNobody,
          "Exit status 0: no finding of the weight --fail_on or heavier; 1: findings; 2: a file "
          "cannot be read, or wrong usage."};
}

}  // namespace rope::client
