#include "client/cli/lint/baseline.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace rope::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kKeys[] = {"file", "rule", "sub_config", "message"};

Baseline::value_type KeyOf(const FileReport& report, const Finding& finding) {
  absl::string_view file = report.file;
  while (absl::StartsWith(file, "./")) file.remove_prefix(2);
  return {std::string(file), std::string(finding.rule->id), finding.sub_config, finding.message};
}

}  // namespace

Baseline BaselineOf(const std::vector<FileReport>& reports) {
  Baseline baseline;
  for (const FileReport& report : reports) {
    for (const Finding& finding : report.findings) baseline.insert(KeyOf(report, finding));
  }
  return baseline;
}

std::string BaselineText(const Baseline& baseline) {
  std::string text = "[";
  for (const auto& [file, rule, sub_config, message] : baseline) {
    const Json line = {
        {kKeys[0], file}, {kKeys[1], rule}, {kKeys[2], sub_config}, {kKeys[3], message}};
    absl::StrAppend(&text, text.size() == 1 ? "\n" : ",\n",
                    line.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return absl::StrCat(text, "\n]\n");
}

Result<Baseline> ParseBaseline(absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  const auto refuse = [] {
    return Status(StatusCode::kInvalidArgument,
                  "got another file, want what --write_baseline writes");
  };
  if (!json.is_array()) return refuse();
  Baseline baseline;
  for (const Json& line : json) {
    std::vector<std::string> values;
    for (const char* key : kKeys) {
      if (!line.is_object() || !line.contains(key) || !line[key].is_string()) return refuse();
      values.push_back(line[key]);
    }
    baseline.emplace(values[0], values[1], values[2], values[3]);
  }
  return baseline;
}

int64_t RemoveKnown(const Baseline& baseline, std::vector<FileReport>& reports) {
  int64_t removed = 0;
  for (FileReport& report : reports) {
    removed += static_cast<int64_t>(std::erase_if(report.findings, [&](const Finding& finding) {
      return baseline.contains(KeyOf(report, finding));
    }));
  }
  return removed;
}

}  // namespace rope::client
