#include "client/cli/lint/lint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/frequencies/frequencies.h"
#include "tests/support/matchers.h"
#include "tests/support/status_matchers.h"

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

TEST(FirstDifferenceTest, EqualTurnsHaveNone) {
  const Turns turns = {{1, 0.1L, 0}, 1.5};
  const FirstDifference first = FindFirstDifference(turns, turns, 1e-12, kEnd);
  EXPECT_FALSE(first.position.has_value());
  EXPECT_TRUE(first.exact);
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

constexpr char kConfig[] = R"({
  "model_type": "outer",
  "factor": 7,
  "layer_types": [{"rope_theta": 1}],
  "text_config": {
    "model_type": "inner",
    "rope_parameters": {
      "full_attention": {
        "factor": 2
      },
      "sliding_attention": {
        "factor": 1
      }
    }
  }
})";

TEST(KeyLinesTest, KeysOfTheRopeParametersAndOfTheLayerTypeComeFirst) {
  const KeyLines lines = KeyLines::Of(kConfig);
  EXPECT_EQ(lines.Find("factor", ""), 9);
  EXPECT_EQ(lines.Find("factor", "sliding_attention"), 12);
  EXPECT_EQ(lines.Find("sliding_attention.factor", ""), 12);
  EXPECT_EQ(lines.Find("text_config.rope_parameters", ""), 7);
  EXPECT_EQ(lines.Find("rope_theta", ""), 4);
  EXPECT_EQ(lines.Find("actor", ""), std::nullopt);
  EXPECT_EQ(lines.Find("", ""), std::nullopt);
  EXPECT_EQ(lines.error_line(), std::nullopt);
}

TEST(KeyLinesTest, ModelTypeIsThatOfTextConfig) {
  EXPECT_EQ(KeyLines::Of(kConfig).model_type(), "inner");
  EXPECT_EQ(KeyLines::Of(R"({"model_type": "llama"})").model_type(), "llama");
  EXPECT_EQ(KeyLines::Of(R"({"a": {"model_type": "llama"}, "model_type": 3})").model_type(), "");
}

TEST(KeyLinesTest, SyntaxErrorHasALineAndKeysBeforeItAreFound) {
  const KeyLines lines = KeyLines::Of("{\n\"a\": 1,\n\"b\": }\n");
  EXPECT_EQ(lines.error_line(), 3);
  EXPECT_EQ(lines.Find("a", ""), 2);
  EXPECT_EQ(KeyLines::Of("").error_line(), 1);
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

TEST(KeyLinesTest, KeyWithinAnObjectIsFoundThereOnly) {
  const KeyLines lines = KeyLines::Of(R"({
    "rope_theta": 1,
    "vision_config": {
      "rope_theta": 2
    }
  })");
  EXPECT_EQ(lines.Find("rope_theta", "", "vision_config"), 4);
  EXPECT_EQ(lines.Find("vision_config.rope_theta", "", "vision_config"), 4);
  EXPECT_EQ(lines.Find("rope_theta", ""), 2);
  EXPECT_EQ(lines.Find("rope_theta", "", "audio_config"), std::nullopt);
}

constexpr char kLlama[] = R"({
  "model_type": "llama",
  "head_dim": 64,
  "max_position_embeddings": 4096,
  "rope_theta": 10000
})";
constexpr char kMscale[] = R"({
  "model_type": "deepseek_v2",
  "qk_rope_head_dim": 64,
  "max_position_embeddings": 163840,
  "rope_scaling": {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "mscale": 0.707
  }
})";

MATCHER_P(OfRule, id, "") {
  return arg.rule->id == id;
}

FileReport Lint(const std::string& text, const kernels::EngineVersion& filter = {}) {
  return LintText("config.json", text, filter);
}

TEST(LintTest, PlainConfigHasNoFindings) {
  const FileReport report = Lint(kLlama);
  EXPECT_THAT(report.findings, IsEmpty());
  EXPECT_EQ(report.model_type, "llama");
  EXPECT_EQ(report.rope_type, "default");
  EXPECT_EQ(report.pairing, "half");
}

TEST(LintTest, WarningsAndReadingsNameTheirFieldAndLine) {
  const FileReport report = Lint(kMscale);
  EXPECT_EQ(report.rope_type, "yarn");
  EXPECT_EQ(report.CountOf(Weight::kError), 0);
  EXPECT_THAT(report.findings,
              Contains(AllOf(OfRule("lone-mscale"),
                             Field(&Finding::message, HasSubstr("mscale without mscale_all_dim")),
                             Field(&Finding::field, "mscale"), Field(&Finding::line, 9))));
  EXPECT_THAT(report.findings,
              Contains(AllOf(OfRule("read-differently"), Field(&Finding::engine, "deepseek"),
                             Field(&Finding::line, 9))));
}

TEST(LintTest, EngineFilterLeavesItsReadingsAndEveryWarning) {
  const FileReport all = Lint(kMscale);
  const FileReport report = Lint(kMscale, {.engine = "hf"});
  EXPECT_EQ(report.CountOf(Weight::kWarning), all.CountOf(Weight::kWarning));
  EXPECT_LT(report.CountOf(Weight::kReading), all.CountOf(Weight::kReading));
  EXPECT_THAT(report.findings, Not(Contains(Field(&Finding::engine, "deepseek"))));
  EXPECT_THAT(Lint(kMscale, {.engine = "deepseek"}).findings,
              Contains(Field(&Finding::engine, "deepseek")));
}

TEST(LintTest, ReadingIsThatOfItsRangeOfVersions) {
  constexpr char kMinistral[] = R"({"model_type": "ministral3", "head_dim": 128,
    "max_position_embeddings": 262144, "rope_parameters": {"rope_type": "yarn", "factor": 16,
    "rope_theta": 1000000, "original_max_position_embeddings": 16384, "mscale": 1,
    "mscale_all_dim": 1}})";
  const auto reads = Contains(Field(&Finding::engine, "vllm"));
  for (const char* version : {"0.20.0", "0.22.0", "0.25.1", "0.29.0"}) {
    EXPECT_THAT(Lint(kMinistral, {.engine = "vllm", .version = version}).findings, reads)
        << version;
  }
  EXPECT_THAT(Lint(kMinistral, {.engine = "vllm", .version = "0.30.0"}).findings, Not(reads));
  // A commit is compared as text.
  const auto deepseek = Contains(Field(&Finding::engine, "deepseek"));
  EXPECT_THAT(Lint(kMscale, {.engine = "deepseek", .version = "VL2-8ed2d7f"}).findings, deepseek);
  EXPECT_THAT(Lint(kMscale, {.engine = "deepseek", .version = "99"}).findings,
              Not(Contains(OfRule("read-differently"))));
}

TEST(LintTest, VersionThatWasNeverComparedIsAReading) {
  for (const auto& [engine, version, compared] :
       {std::tuple("vllm", "99", false), std::tuple("vllm", "0.9.0", false),
        std::tuple("vllm", "0.21.1", false), std::tuple("hf", "4.45", false),
        std::tuple("llamacpp", "b4000", false), std::tuple("vllm", "0.33.0", true),
        std::tuple("sglang", "0.5.10.post1", true), std::tuple("hf", "5.23.0", true),
        std::tuple("llamacpp", "0c1e57098", true)}) {
    const FileReport report = Lint(kLlama, {.engine = engine, .version = version});
    EXPECT_EQ(report.CountOf(Weight::kReading), compared ? 0 : 1) << engine << version;
    if (compared) continue;
    EXPECT_THAT(report.findings, Contains(OfRule("version-not-compared"))) << engine << version;
  }
  EXPECT_THAT(Lint(kLlama, {.engine = "vllm", .version = "99"}).findings[0].message,
              HasSubstr("vllm 99 was never compared; compared were 0.10.2 to 0.11.0, 0.11.1 to"));
}

TEST(LintTest, FilterIsAnEngineAndAVersionOfItsForm) {
  EXPECT_EQ(ReadFilter("hf")->engine, "hf");
  for (const char* text : {"vllm@99", "sglang@0.5.10.post1", "llamacpp@b4000"}) {
    EXPECT_TRUE(ReadFilter(text).ok()) << text;
  }
  for (const auto& [text, want] : {std::pair("abacus", "want NAME or NAME@VERSION, NAME one of hf"),
                                   std::pair("vllm@", "want NAME or NAME@VERSION"),
                                   std::pair("vllm@abc", "want a version such as 0.33.0"),
                                   std::pair("llamacpp@b/1", "want a version such as 0c1e57098")}) {
    EXPECT_THAT(ReadFilter(text),
                StatusIs(StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("engine: got ", text, ", ", want))))
        << text;
  }
}

TEST(LintTest, EngineWithoutTheRotationIsNamedWithoutNumbers) {
  const FileReport report = Lint(R"({"model_type": "deepseek_v3", "head_dim": 64,
    "max_position_embeddings": 4096,
    "rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 1024}})");
  EXPECT_THAT(report.findings, Contains(AllOf(OfRule("no-such-rotation"),
                                              Field(&Finding::message,
                                                    "deepseek VL2-8ed2d7f (read) has no yarn "
                                                    "without factor"))));
}

TEST(LintTest, ReadingThatDiffersAtTheModelsLengthOnlyIsFound) {
  const FileReport report = Lint(R"({"model_type": "llama", "head_dim": 64,
    "max_position_embeddings": 4096, "rope_scaling": {"rope_type": "dynamic", "factor": 4}})");
  EXPECT_THAT(report.findings, Contains(Field(&Finding::engine, "vllm")));
}

TEST(LintTest, RefusedConfigIsAnErrorAtItsField) {
  const FileReport report = Lint(
      "{\n\"head_dim\": 64,\n\"rope_scaling\": {\n\"type\": \"yarn\",\n"
      "\"factor\": \"much\"}}");
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.findings[0].rule->weight, Weight::kError);
  EXPECT_EQ(report.findings[0].field, "rope_scaling.factor");
  EXPECT_EQ(report.findings[0].line, 5);
  EXPECT_EQ(report.rope_type, "");
}

TEST(LintTest, MissingFieldIsAnErrorAtTheLineOfTheRopeType) {
  const FileReport report =
      Lint("{\n\"head_dim\": 64,\n\"rope_scaling\": {\n\"type\": \"linear\"}}");
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.findings[0].rule->weight, Weight::kError);
  EXPECT_THAT(report.findings[0].message, HasSubstr("factor: got nothing"));
  EXPECT_EQ(report.findings[0].line, 4);
}

TEST(LintTest, BrokenJsonIsAnErrorAtItsLine) {
  const FileReport report = Lint("{\n\"head_dim\": 64,\n}");
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.findings[0].rule->weight, Weight::kError);
  EXPECT_THAT(report.findings[0].message, HasSubstr("a trailing comma before } in line 3"));
  EXPECT_EQ(report.findings[0].line, 3);
}

TEST(LintTest, AMebibyteOfNestedBracketsIsAnError) {
  for (const std::string& text :
       {std::string(1 << 20, '['), std::string(1 << 19, '[') + std::string(1 << 19, ']')}) {
    const FileReport report = Lint(text);
    ASSERT_THAT(report.findings, SizeIs(1));
    EXPECT_EQ(report.findings[0].rule->weight, Weight::kError);
  }
}

TEST(LintTest, EveryLayerTypeIsLintedAndACommonFindingIsOne) {
  const FileReport report = Lint(R"({
    "model_type": "gemma3_text", "head_dim": 64, "max_position_embeddings": 4096,
    "rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 1e6, "nonsense": 1,
                         "beta_fast": 1},
      "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "beta_fast": 1}}})");
  EXPECT_EQ(report.rope_type, "linear, default");
  EXPECT_THAT(report.findings,
              Contains(AllOf(Field(&Finding::message, HasSubstr("nonsense")),
                             Field(&Finding::layer_types, ElementsAre("full_attention")))));
  EXPECT_THAT(report.findings,
              Contains(Field(&Finding::message, "beta_fast has no effect for rope_type default")));
  EXPECT_THAT(report.findings, Each(Field(&Finding::layer_types, Not(IsEmpty()))));
}

TEST(LintTest, ConfigWithoutHeadDimIsANote) {
  const FileReport report = Lint(R"({"rope_theta": 10000})");
  EXPECT_EQ(report.CountOf(Weight::kError), 0);
  EXPECT_THAT(report.findings,
              Contains(Field(&Finding::message, HasSubstr("head_dim: got nothing"))));
  EXPECT_EQ(report.pairing, "");
}

TEST(LintTest, HeavierFindingsComeFirst) {
  const FileReport report = Lint(kMscale);
  for (size_t i = 1; i < report.findings.size(); ++i) {
    EXPECT_GE(report.findings[i - 1].rule->weight, report.findings[i].rule->weight);
  }
}

constexpr char kComposite[] = R"({
  "model_type": "llama",
  "head_dim": 64,
  "rope_theta": 10000,
  "vision_config": {
    "model_type": "glm",
    "head_dim": 64,
    "rope_theta": -1
  },
  "projector_config": {
    "hidden_size": 7
  }
})";

TEST(LintSubConfigTest, EachWithRopeParametersIsLintedByItself) {
  const FileReport report = Lint(kComposite);
  ASSERT_THAT(report.findings, SizeIs(1));
  const Finding& finding = report.findings[0];
  EXPECT_EQ(finding.rule->id, "invalid-value");
  EXPECT_EQ(finding.sub_config, "vision_config");
  EXPECT_EQ(finding.line, 8);
  EXPECT_THAT(finding.message, HasSubstr("rope_theta: got -1"));
  EXPECT_EQ(report.model_type, "llama");  // the columns are the file's own
  EXPECT_EQ(report.pairing, "half");
}

TEST(LintSubConfigTest, ChosenOneAloneIsLintedAndDescribed) {
  const FileReport vision = LintText("config.json", kComposite, {}, "vision_config");
  EXPECT_THAT(vision.findings, SizeIs(1));
  EXPECT_EQ(vision.model_type, "glm");
  EXPECT_EQ(vision.pairing, "interleaved");
  const FileReport unknown = LintText("config.json", kComposite, {}, "audio_config");
  EXPECT_THAT(unknown.findings,
              ElementsAre(Field(&Finding::message,
                                HasSubstr("want one of projector_config, vision_config"))));
}

TEST(LintSubConfigTest, FileWithRopeInSubConfigsOnlyIsNoError) {
  const FileReport report = Lint(R"({"model_type": "qwen3_omni_moe", "thinker_config": {
      "text_config": {"model_type": "qwen3_omni_moe_text", "head_dim": 128, "rope_theta": 1000000,
                      "max_position_embeddings": 32768}}})");
  EXPECT_EQ(report.CountOf(Weight::kError), 0);
  EXPECT_EQ(report.rope_type, "default");
  EXPECT_EQ(report.pairing, "half");
}

TEST(LintSubConfigTest, RotationThatIsNotSupportedIsNoErrorOfTheFile) {
  const FileReport report = Lint(R"({"model_type": "gemma4", "text_config": {"head_dim": 64,
      "rope_theta": 10000}, "vision_config": {"model_type": "gemma4_vision", "rope_theta": 100}})");
  EXPECT_EQ(report.CountOf(Weight::kError), 0);
  EXPECT_THAT(
      report.findings,
      Contains(AllOf(OfRule("tower-not-supported"), Field(&Finding::sub_config, "vision_config"),
                     Field(&Finding::message, HasSubstr("gemma4_vision")))));
}

std::string ReadText(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Published configs that are read as their owners have them: nobody wants a warning of one. The
// other files have code of their own that is not followed here.
TEST(LintFilesTest, PublishedConfigsHaveNoWarning) {
  const std::set<std::string> remote = {"baichuan2-7b", "internlm2-chat-7b", "minimax-text-01",
                                        "qwen-7b"};
  const auto folder = std::filesystem::path(ROPE_SOURCE_DIR) / "tests" / "conformance" / "configs";
  std::set<std::string> warned;
  int linted = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    ++linted;
    for (const Finding& finding : Lint(ReadText(entry.path())).findings) {
      if (finding.rule->weight < Weight::kWarning) continue;
      warned.insert(entry.path().stem());
      EXPECT_EQ(finding.rule->id, "remote-code") << entry.path() << finding.message;
    }
  }
  EXPECT_EQ(warned, remote);
  EXPECT_GE(linted, 61);
}

// A case of broken_configs.txt.
struct Broken {
  std::string name;
  std::string weight;
  std::string rule;
  int64_t line = 0;
  std::string words;
  std::string text;
};

std::vector<Broken> ReadBroken() {
  const auto path = std::filesystem::path(ROPE_SOURCE_DIR) / "tests" / "unit" / "client" / "cli" /
                    "lint" / "broken_configs.txt";
  std::vector<std::string> blocks = absl::StrSplit(ReadText(path), "\n=== ");
  std::vector<Broken> cases;
  for (size_t i = 1; i < blocks.size(); ++i) {
    const std::vector<std::string> parts = absl::StrSplit(blocks[i], absl::MaxSplits('\n', 2));
    Broken& broken = cases.emplace_back();
    broken.name = parts.at(0);
    std::istringstream head(parts.at(1));
    head >> broken.weight >> broken.rule >> broken.line;
    broken.words = parts.at(1).substr(parts.at(1).find(" | ") + 3);
    broken.text = parts.at(2);
  }
  return cases;
}

TEST(LintFilesTest, BrokenConfigsAreNamedWithRuleWeightAndLine) {
  const std::vector<Broken> cases = ReadBroken();
  EXPECT_EQ(cases.size(), 55u);
  for (const Broken& broken : cases) {
    EXPECT_THAT(Lint(broken.text).findings,
                Contains(AllOf(OfRule(broken.rule), Field(&Finding::line, broken.line),
                               Field(&Finding::message, HasSubstr(broken.words)))))
        << broken.name;
    const Rule* const rule = FindRule(broken.rule);
    ASSERT_NE(rule, nullptr) << broken.rule;
    EXPECT_EQ(Name(rule->weight), broken.weight) << broken.name;
  }
}

}  // namespace
}  // namespace rope::client
