#include "client/cli/lint/lint_output.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

FileReport Report(const std::string& file) {
  FileReport report;
  report.file = file;
  report.model_type = "llama";
  report.rope_type = "yarn";
  report.pairing = "half";
  report.findings = {
      {.rule = &RuleOf("near-miss-key"),
       .layer_types = {"full_attention"},
       .field = "truncate",
       .line = 12,
       .message = "truncate absent"},
      {.rule = &RuleOf(kReadDifferently), .line = 3, .message = "vllm: differs", .engine = "vllm"}};
  return report;
}

FileReport Unreadable() {
  FileReport report;
  report.file = "/no/such.json";
  report.unreadable = "/no/such.json: cannot be read";
  return report;
}

TEST(LintPageTest, SubConfigIsNamedBesideTheLayerTypes) {
  FileReport report = Report("a.json");
  for (Finding& finding : report.findings) finding.sub_config = "vision_config";
  EXPECT_EQ(LintPage({report}),
            "a.json:12: warning: truncate absent [vision_config: full_attention] "
            "[near-miss-key]\n"
            "a.json:3: reading: vllm: differs [vision_config] [read-differently]\n");
  EXPECT_THAT(LintJson({report}), HasSubstr("\"sub_config\": \"vision_config\""));
  EXPECT_THAT(LintSarif({report}), HasSubstr("vllm: differs [vision_config]"));
}

TEST(LintPageTest, SeveralFilesEndInATable) {
  FileReport unknown = Report("b.json");
  unknown.pairing.clear();
  unknown.findings.clear();
  const std::string page = LintPage({Report("a.json"), unknown, Unreadable()});
  EXPECT_THAT(page, HasSubstr("\nfile           model_type  rope_type  pairing      errors  "
                              "warnings  readings  notes\n"));
  EXPECT_THAT(page, HasSubstr("a.json         llama       yarn       half              0         1 "
                              "        1      0\n"));
  EXPECT_THAT(page, HasSubstr("b.json         llama       yarn       not known "));
  EXPECT_THAT(page, HasSubstr("/no/such.json  -           -          unreadable "));
}

TEST(LintPageTest, ControlCharactersAreEscaped) {
  FileReport report = Report("a\x1b.json");
  report.findings[0].message = "key \"\x1b[31m\" is not known";
  const std::string page = LintPage({report});
  EXPECT_THAT(page, Not(HasSubstr("\x1b")));
  EXPECT_THAT(page, HasSubstr("\\x1b[31m"));
}

// What GitHub's code scanning requires of a SARIF 2.1.0 file.
TEST(LintSarifTest, HasWhatCodeScanningRequires) {
  FileReport report = Report("./models/a b/config.json");
  report.findings.push_back(
      {.rule = &RuleOf(kInvalidValue), .line = 1, .message = "factor: got -1"});
  const auto sarif = nlohmann::json::parse(LintSarif({report}));
  EXPECT_EQ(sarif["version"], "2.1.0");
  EXPECT_THAT(sarif["$schema"].get<std::string>(), EndsWith("sarif-2.1.0.json"));
  ASSERT_EQ(sarif["runs"].size(), 1u);
  const auto& run = sarif["runs"][0];
  const auto& driver = run["tool"]["driver"];
  EXPECT_EQ(driver["name"], "ropectl");
  ASSERT_EQ(driver["rules"].size(), Rules().size());
  for (const auto& rule : driver["rules"]) {
    EXPECT_FALSE(rule["shortDescription"]["text"].get<std::string>().empty());
    EXPECT_FALSE(rule["fullDescription"]["text"].get<std::string>().empty());
    EXPECT_THAT(rule["help"]["markdown"].get<std::string>(),
                HasSubstr("RULES.md#" + rule["id"].get<std::string>()));
  }
  ASSERT_EQ(run["results"].size(), 3u);
  const char* levels[] = {"warning", "note", "error"};
  const int lines[] = {12, 3, 1};
  for (size_t i = 0; i < 3; ++i) {
    const auto& result = run["results"][i];
    const auto& rule = driver["rules"][result["ruleIndex"].get<size_t>()];
    EXPECT_EQ(rule["id"], result["ruleId"]);
    EXPECT_EQ(rule["defaultConfiguration"]["level"], result["level"]);
    EXPECT_EQ(result["level"], levels[i]);
    EXPECT_FALSE(result["message"]["text"].get<std::string>().empty());
    const auto& location = result["locations"][0]["physicalLocation"];
    EXPECT_EQ(location["artifactLocation"]["uri"], "models/a%20b/config.json");
    EXPECT_EQ(location["region"]["startLine"], lines[i]);
  }
  EXPECT_EQ(run["invocations"][0]["executionSuccessful"], true);
}

TEST(LintSarifTest, FileThatCannotBeReadIsANotificationAndNoResult) {
  const auto sarif = nlohmann::json::parse(LintSarif({Unreadable()}));
  const auto& run = sarif["runs"][0];
  EXPECT_TRUE(run["results"].is_array());
  EXPECT_TRUE(run["results"].empty());
  const auto& invocation = run["invocations"][0];
  EXPECT_EQ(invocation["executionSuccessful"], false);
  const auto& notification = invocation["toolExecutionNotifications"][0];
  EXPECT_EQ(notification["level"], "error");
  EXPECT_THAT(notification["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
                  .get<std::string>(),
              StartsWith("file:///no/such.json"));
}

TEST(LintSarifTest, BytesThatAreNotUtf8AreReplaced) {
  FileReport report = Report("a.json");
  report.findings[0].message = "key \"\xff\"";
  EXPECT_TRUE(nlohmann::json::accept(LintSarif({report})));
  EXPECT_TRUE(nlohmann::json::accept(LintJson({report})));
}

std::vector<FileReport> Reports(const std::string& file, int64_t line, const std::string& message) {
  FileReport report;
  report.file = file;
  report.findings = {{.rule = &RuleOf(kSyntax), .line = line, .message = message},
                     {.rule = &RuleOf(kInvalidValue), .message = "factor: got \"\xff\""}};
  return {report};
}

TEST(BaselineTest, FindingIsKnownAgainInAnotherLineAndNotInAnotherFile) {
  ASSERT_OK(baseline, ParseBaseline(BaselineText(BaselineOf(Reports("a.json", 3, "a comma")))));
  std::vector<FileReport> moved = Reports("./a.json", 8, "a comma");
  EXPECT_EQ(RemoveKnown(*baseline, moved), 1);  // the other one has bytes that are no UTF-8
  EXPECT_THAT(moved[0].findings, SizeIs(1));
  std::vector<FileReport> other = Reports("b.json", 3, "a comma");
  EXPECT_EQ(RemoveKnown(*baseline, other), 0);
  std::vector<FileReport> changed = Reports("a.json", 3, "another comma");
  EXPECT_EQ(RemoveKnown(*baseline, changed), 0);
}

TEST(BaselineTest, OtherTextsAreRefused) {
  for (const std::string text : {"", "{}", "[1]", R"([{"file": "a"}])", "[", R"([{"file": 1,
      "rule": "a", "sub_config": "", "message": ""}])"}) {
    EXPECT_FALSE(ParseBaseline(text).ok()) << text;
  }
  EXPECT_TRUE(ParseBaseline("[]").ok());
}

}  // namespace
}  // namespace rope::client
