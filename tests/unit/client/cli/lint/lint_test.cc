#include "client/cli/lint/lint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/lint/config_files.h"
#include "client/cli/lint/diff.h"
#include "client/cli/lint/lint_output.h"
#include "kernels/frequencies/frequencies.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"

namespace rope::client {
namespace {

constexpr int64_t kEnd = int64_t{1} << 30;

// Walks every position.
std::optional<int64_t> Walk(const Turns& a, const Turns& b, double error, int64_t end) {
  for (int64_t p = 0; p < end; ++p) {
    for (size_t i = 0; i < a.inv_freq.size(); ++i) {
      const kernels::CosSin first = kernels::ExactCosSin(p, a.inv_freq[i], a.factor);
      const kernels::CosSin second = kernels::ExactCosSin(p, b.inv_freq[i], b.factor);
      if (std::abs(first.cos - second.cos) > error) return p;
      if (std::abs(first.sin - second.sin) > error) return p;
    }
  }
  return std::nullopt;
}

TEST(FirstDifferenceTest, FactorsThatAreFurtherApartDifferAtPositionZero) {
  const Turns a = {{1}, 1};
  const Turns b = {{1}, 1.2};
  EXPECT_EQ(FindFirstDifference(a, b, 0.1, kEnd).position, 0);
  EXPECT_FALSE(FindFirstDifference(a, b, 0.21, kEnd).position.has_value());
}

TEST(FirstDifferenceTest, IsThePositionThatAWalkFinds) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int round = 0; round < 100; ++round) {
    Turns a;
    Turns b;
    for (int i = 0; i < 3; ++i) {
      const long double inv_freq = std::pow(10.0, -5 * uniform(random));
      a.inv_freq.push_back(inv_freq);
      b.inv_freq.push_back(inv_freq * (1 + 1e-3 * uniform(random)));
    }
    a.factor = 1 + uniform(random);
    b.factor = round % 2 == 0 ? a.factor : a.factor * (1 + 1e-3 * uniform(random));
    const double error = std::pow(10.0, -1 - 3 * uniform(random));
    const FirstDifference first = FindFirstDifference(a, b, error, 5000);
    EXPECT_EQ(first.position, Walk(a, b, error, 5000)) << round;
    EXPECT_TRUE(first.exact);
  }
}

TEST(FirstDifferenceTest, FrequenciesAboveAQuarterTurnAreWalkedRight) {
  const Turns a = {{3, 1.5L}, 1};
  const Turns b = {{0.5L, 1.5001L}, 1};
  for (const double error : {0.01, 0.3, 1.2, 1.9}) {
    EXPECT_EQ(FindFirstDifference(a, b, error, 100000).position, Walk(a, b, error, 100000))
        << error;
  }
}

TEST(FirstDifferenceTest, DistantPositionIsFoundAtOnce) {
  for (const long double inv_freq : {1.0L, 0.01L, 1e-4L, 1e-7L}) {
    const Turns a = {{inv_freq}, 1};
    const Turns b = {{inv_freq + 2e-12L}, 1};
    const FirstDifference first = FindFirstDifference(a, b, 1e-3, kEnd);
    ASSERT_TRUE(first.position.has_value());
    EXPECT_TRUE(first.exact);
    EXPECT_GE(*first.position, 500'000'000 - 1);
    EXPECT_LE(*first.position, 707'107'000);
    const kernels::CosSin one = kernels::ExactCosSin(*first.position, a.inv_freq[0], 1);
    const kernels::CosSin two = kernels::ExactCosSin(*first.position, b.inv_freq[0], 1);
    EXPECT_GT(std::max(std::abs(one.cos - two.cos), std::abs(one.sin - two.sin)), 1e-3);
  }
}

TEST(FirstDifferenceTest, PositionsFromTheEndOnAreNotSearched) {
  const Turns a = {{1}, 1};
  const Turns b = {{1.001L}, 1};
  const auto position = FindFirstDifference(a, b, 0.1, kEnd).position;
  ASSERT_TRUE(position.has_value());
  EXPECT_FALSE(FindFirstDifference(a, b, 0.1, *position).position.has_value());
  EXPECT_EQ(FindFirstDifference(a, b, 0.1, *position + 1).position, position);
  EXPECT_FALSE(FindFirstDifference(a, b, 0.1, 0).position.has_value());
  EXPECT_FALSE(FindFirstDifference({}, b, 0.1, kEnd).position.has_value());
}

TEST(FirstDifferenceTest, SearchThatUsesUpItsStepsGivesAnUpperBound) {
  // Nearly a quarter turn for each position: seen at whole positions, the phase drifts slowly
  // between the axes, while cos and sin change too fast for long steps.
  const long double turn = std::numbers::pi_v<long double> / 2 + 1.2e-9L;
  const Turns a = {{turn}, 1};
  const Turns b = {{turn + 2e-12L}, 1};
  const FirstDifference first = FindFirstDifference(a, b, 1e-3, kEnd);
  EXPECT_FALSE(first.exact);
  ASSERT_TRUE(first.position.has_value());
  EXPECT_GT(*first.position, 600'000'000);
  EXPECT_LE(*first.position, 707'107'000);
  EXPECT_FALSE(FindFirstDifference(a, b, 1e-3, 600'000'000).position.has_value());
}

TEST(KeyLinesTest, DeepAndLargeTextsAreReadWithinTheLimits) {
  const std::string brackets(1 << 20, '[');
  EXPECT_TRUE(KeyLines::Of(brackets).error_line().has_value());
  std::string nested;
  for (int i = 0; i < 100000; ++i) nested += "{\"a\":";
  EXPECT_EQ(KeyLines::Of(nested).Find("a", ""), 1);
  std::string wide = "{\"a\": 1";
  for (int i = 0; i < 10000; ++i) wide += ",\n\"key" + std::to_string(i) + "\": 1";
  const KeyLines lines = KeyLines::Of(wide + "}");
  EXPECT_EQ(lines.Find("key10", ""), 12);
  EXPECT_EQ(lines.Find("key9999", ""), std::nullopt);
  const std::string long_key(1000, 'k');
  EXPECT_EQ(KeyLines::Of("{\"" + long_key + "\": 1}").Find(long_key, ""), std::nullopt);
}

using ::rope::testing::TemporaryFolder;
using Unread = std::pair<std::string, std::string>;  // a path, and why

void Write(const std::string& path) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << "{}";
}

TEST(FindConfigsTest, FilesAreKeptAndFoldersAreSearched) {
  const std::string folder = TemporaryFolder();
  Write(folder + "/b/config.json");
  Write(folder + "/a/deep/config.json");
  Write(folder + "/a/deep/other.json");
  const ConfigFiles found = FindConfigs({"some.json", folder});
  EXPECT_THAT(found.files,
              ElementsAre("some.json", folder + "/a/deep/config.json", folder + "/b/config.json"));
  EXPECT_THAT(found.unreadable, IsEmpty());
}

TEST(FindConfigsTest, LinksToFilesAreFollowedAndLoopsEnd) {
  const std::string folder = TemporaryFolder();
  Write(folder + "/blobs/x");
  std::filesystem::create_directory(folder + "/snapshot");
  std::filesystem::create_symlink("../blobs/x", folder + "/snapshot/config.json");
  std::filesystem::create_directory_symlink(folder, folder + "/snapshot/loop");
  const ConfigFiles found = FindConfigs({folder});
  EXPECT_THAT(found.files, ElementsAre(folder + "/snapshot/config.json"));
  EXPECT_THAT(found.unreadable, IsEmpty());
  std::filesystem::create_directory(folder + "/self");
  std::filesystem::create_symlink("config.json", folder + "/self/config.json");
  const ConfigFiles looped = FindConfigs({folder});
  EXPECT_THAT(looped.files, SizeIs(1));
  EXPECT_THAT(looped.unreadable, ElementsAre(Field(&Unread::first, folder + "/self/config.json")));
}

TEST(FindConfigsTest, PipeInAFolderIsUnreadableAndIsNotOpened) {
  const std::string folder = TemporaryFolder();
  ASSERT_EQ(mkfifo((folder + "/config.json").c_str(), 0600), 0);
  const ConfigFiles found = FindConfigs({folder});
  EXPECT_THAT(found.files, IsEmpty());
  EXPECT_THAT(found.unreadable,
              ElementsAre(Field(&Unread::second, HasSubstr("got a special file"))));
}

TEST(FindConfigsTest, FolderWithoutAConfigIsUnreadable) {
  const ConfigFiles found = FindConfigs({TemporaryFolder()});
  EXPECT_THAT(found.files, IsEmpty());
  EXPECT_THAT(found.unreadable,
              ElementsAre(Field(&Unread::second, HasSubstr("got no config.json"))));
}

TEST(FindConfigsTest, FolderThatIsTooDeepIsSearchedAsFarAsTheLimitAndSaysSo) {
  const std::string folder = TemporaryFolder();
  std::string deep = folder;
  for (int i = 0; i < 40; ++i) deep += "/d";
  Write(deep + "/config.json");
  Write(folder + "/d/config.json");
  const ConfigFiles found = FindConfigs({folder});
  EXPECT_THAT(found.files, ElementsAre(folder + "/d/config.json"));
  EXPECT_THAT(found.unreadable, ElementsAre(Field(&Unread::second, HasSubstr("16 levels"))));
}

std::string Llama(const std::string& more) {
  return R"({"model_type": "llama", "head_dim": 64, "max_position_embeddings": 4096, )" + more +
         "}";
}

absl::StatusOr<kernels::ModelConfig> Parse(const std::string& json) {
  return kernels::ModelConfig::Parse(json);
}

Json Differences(const std::string& a, const std::string& b) {
  auto differences = Diff({Parse(a)}, {Parse(b)}, 1e-3);
  EXPECT_TRUE(differences.ok()) << differences.status().ToString();
  return differences.ok() ? *differences : Json::array();
}

TEST(DiffTest, LayerTypesAreComparedWithASingleOneAndByName) {
  const std::string gemma = R"({"model_type": "gemma3_text", "head_dim": 64,
    "max_position_embeddings": 4096, "rope_parameters": {
      "full_attention": {"rope_type": "default", "rope_theta": 1e6},
      "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}})";
  const auto differences = Differences(gemma, Llama(R"("rope_theta": 10000)"));
  ASSERT_THAT(differences, SizeIs(2));
  EXPECT_EQ(differences[0]["layer_type"], "full_attention");
  EXPECT_EQ(differences[0]["equal"], false);
  EXPECT_EQ(differences[1]["layer_type"], "sliding_attention");
  EXPECT_TRUE(differences[1]["inv_freq"].is_null());
  const auto same = Differences(gemma, gemma);
  ASSERT_THAT(same, SizeIs(2));
  for (const auto& each : same) EXPECT_EQ(each["equal"], true);
}

TEST(DiffTest, ConfigThatFollowsTheLengthIsComparedAtBothEnds) {
  const std::string dynamic = R"({"model_type": "llama", "head_dim": 64,
    "max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 2}})";
  const std::string longer = R"({"model_type": "llama", "head_dim": 64,
    "max_position_embeddings": 16384})";
  const auto differences = Differences(dynamic, longer);
  ASSERT_THAT(differences, SizeIs(2));
  EXPECT_EQ(differences[0]["seq_len"], 1);
  EXPECT_EQ(differences[0]["equal"], true);
  EXPECT_EQ(differences[1]["seq_len"], 16384);
  EXPECT_EQ(differences[1]["equal"], false);
}

TEST(DiffTest, LayerThatDoesNotRotateIsDifferent) {
  const std::string some = R"({"model_type": "smollm3", "head_dim": 64, "num_hidden_layers": 2,
    "no_rope_layers": [0, 0]})";
  const auto differences = Differences(some, Llama(R"("rope_theta": 10000)"));
  ASSERT_THAT(differences, SizeIs(1));
  EXPECT_EQ(differences[0]["equal"], false);
  EXPECT_EQ(differences[0]["a"]["rotates"], false);
  EXPECT_TRUE(differences[0]["first_position"].is_null());
}

TEST(DiffTest, EngineThatPermutesQAndKTurnsTheSamePairs) {
  const std::string config = R"({"model_type": "mistral", "head_dim": 128, "rope_theta": 1e6})";
  const std::string params = R"({"dim": 4096, "n_layers": 2, "n_heads": 32, "hidden_dim": 14336,
    "head_dim": 128, "vocab_size": 32000, "rope_theta": 1e6})";
  struct Case {
    std::string a;
    std::string engine_a;
    std::string b;
    std::string engine_b;
    bool equal;
    std::string permuter;
  };
  for (const auto& [a, engine_a, b, engine_b, equal, permuter] :
       std::vector<Case>{{config, "", config, "llamacpp", true, "llama.cpp"},
                         {config, "", config, "vllm", true, ""},
                         {params, "", params, "vllm", true, "vLLM"},
                         {params, "", params, "llamacpp", true, ""},
                         {params, "vllm", config, "vllm", true, "vLLM"},
                         {params, "llamacpp", config, "llamacpp", true, "llama.cpp"},
                         {params, "vllm", config, "llamacpp", true, "vLLM"},
                         {params, "", config, "", false, ""},
                         {params, "sglang", config, "sglang", false, ""}}) {
    SCOPED_TRACE(engine_a + " " + engine_b);
    const auto differences = Diff(*SideOf(a, "", engine_a), *SideOf(b, "", engine_b), 1e-3);
    ASSERT_TRUE(differences.ok()) << differences.status().ToString();
    EXPECT_EQ(differences->front().at("equal"), equal);
    EXPECT_EQ(differences->front().at("note"),
              permuter.empty() ? ""
                               : permuter +
                                     " permutes q and k of this model: its channels "
                                     "stand in another order");
  }
}

TEST(DiffTest, EngineThatMisreadsThePairsTurnsOthers) {
  const std::string config = R"({"model_type": "chatglm", "kv_channels": 128, "seq_length": 8192,
    "original_rope": false})";
  for (const auto& [engine, equal] : {std::pair("vllm", true), std::pair("sglang", false)}) {
    const auto differences = Diff(*SideOf(config, "", ""), *SideOf(config, "", engine), 1e-3);
    ASSERT_TRUE(differences.ok()) << differences.status().ToString();
    EXPECT_EQ(differences->front().at("equal"), equal) << engine;
    EXPECT_EQ(differences->front().at("b").at("pairing"), equal ? "half" : "interleaved");
    EXPECT_EQ(differences->front().at("note"), "");
  }
}

TEST(DiffTest, ConfigThatIsRefusedIsNamed) {
  const std::string good = Llama(R"("rope_theta": 10000)");
  EXPECT_THAT(
      Diff({Parse(good)}, {Parse("{")}, 1e-3),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("B: config_json: got a syntax error")));
  const auto invalid = Diff({Parse(Llama(R"("rope_theta": -1)"))}, {Parse(good)}, 1e-3);
  EXPECT_THAT(invalid.status().message(), HasSubstr("A: rope_theta: got -1"));
}

FileReport Report(const std::string& file) {
  return {.file = file,
          .model_type = "llama",
          .rope_type = "yarn",
          .pairing = "half",
          .findings = {{.rule = &RuleOf("near-miss-key"),
                        .layer_types = {"full_attention"},
                        .field = "truncate",
                        .line = 12,
                        .message = "truncate absent"},
                       {.rule = &RuleOf("read-differently"),
                        .line = 3,
                        .message = "vllm: differs",
                        .engine = "vllm"}}};
}

FileReport Unreadable() {
  return {.file = "/no/such.json", .unreadable = "/no/such.json: cannot be read"};
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
      {.rule = &RuleOf("invalid-value"), .line = 1, .message = "factor: got -1"});
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
  return {{.file = file,
           .findings = {{.rule = &RuleOf("syntax"), .line = line, .message = message},
                        {.rule = &RuleOf("invalid-value"), .message = "factor: got \"\xff\""}}}};
}

TEST(BaselineTest, FindingIsKnownAgainInAnotherLineAndNotInAnotherFile) {
  const std::string baseline = BaselineText(Reports("a.json", 3, "a comma"));
  const auto left_of = [&baseline](std::vector<FileReport> reports) {
    EXPECT_TRUE(RemoveKnown(baseline, reports).ok());
    return reports[0].findings.size();
  };
  EXPECT_EQ(left_of(Reports("./a.json", 8, "a comma")), 1);  // it has bytes that are no UTF-8
  EXPECT_EQ(left_of(Reports("b.json", 3, "a comma")), 2);
  EXPECT_EQ(left_of(Reports("a.json", 3, "another comma")), 2);
}

TEST(BaselineTest, OtherTextsAreRefused) {
  std::vector<FileReport> reports;
  for (const std::string text : {"", "{}", "[1]", R"([{"file": "a"}])", "[", R"([{"file": 1,
      "rule": "a", "sub_config": "", "message": ""}])"}) {
    EXPECT_FALSE(RemoveKnown(text, reports).ok()) << text;
  }
  EXPECT_TRUE(RemoveKnown("[]", reports).ok());
}

TEST(RulesTest, PageHasASectionForEachRuleAndNoOther) {
  std::ifstream page(absl::StrCat(ROPE_SOURCE_DIR, "/client/cli/lint/RULES.md"));
  std::set<std::string> sections;
  std::string weight;  // of the chapter
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("### ")) {
      const std::string_view title = std::string_view(line).substr(4);
      ASSERT_NE(FindRule(title), nullptr) << title;
      EXPECT_EQ(absl::StrCat("## ", Name(FindRule(title)->weight), "s"), weight) << title;
      sections.insert(std::string(title));
    } else if (line.starts_with("## ")) {
      weight = line;
      weight[3] = static_cast<char>(std::tolower(weight[3]));
    }
  }
  std::set<std::string> rules;
  for (const Rule& rule : Rules()) rules.insert(std::string(rule.id));
  EXPECT_EQ(sections, rules);
  EXPECT_EQ(rules.size(), Rules().size());  // each id once
}

TEST(RulesTest, EveryRemarkIsARuleOfItsWeight) {
  for (int i = 0; i <= static_cast<int>(kernels::RemarkKind::kSizesDoNotDivide); ++i) {
    const auto kind = static_cast<kernels::RemarkKind>(i);
    const Rule& rule = RuleOf(kernels::Name(kind));
    const kernels::RemarkWeight weight = kernels::WeightOf(kind);
    const Weight want = weight == kernels::RemarkWeight::kNote      ? Weight::kNote
                        : weight == kernels::RemarkWeight::kWarning ? Weight::kWarning
                                                                    : Weight::kError;
    EXPECT_EQ(rule.weight, want) << rule.id;
  }
}

TEST(RulesTest, HeavierRulesComeFirstAndLinksNameTheSection) {
  for (size_t i = 1; i < Rules().size(); ++i) {
    EXPECT_GE(Rules()[i - 1].weight, Rules()[i].weight) << Rules()[i].id;
  }
  EXPECT_EQ(HelpLink(RuleOf("near-miss-key")), "client/cli/lint/RULES.md#near-miss-key");
  EXPECT_EQ(FindRule("nothing"), nullptr);
}

}  // namespace
}  // namespace rope::client
