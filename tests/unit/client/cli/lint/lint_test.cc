#include "client/cli/lint/lint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace rope::client {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

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

FileReport Lint(const std::string& text, const EngineFilter& filter = {}) {
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
              Contains(AllOf(Field(&Finding::weight, Weight::kWarning),
                             Field(&Finding::message, HasSubstr("mscale without mscale_all_dim")),
                             Field(&Finding::field, "mscale"), Field(&Finding::line, 9))));
  EXPECT_THAT(report.findings,
              Contains(AllOf(Field(&Finding::weight, Weight::kReading),
                             Field(&Finding::engine, "deepseek"), Field(&Finding::line, 9))));
}

TEST(LintTest, EngineFilterLeavesItsReadingsAndEveryWarning) {
  const FileReport all = Lint(kMscale);
  const FileReport report = Lint(kMscale, {.name = "hf"});
  EXPECT_EQ(report.CountOf(Weight::kWarning), all.CountOf(Weight::kWarning));
  EXPECT_LT(report.CountOf(Weight::kReading), all.CountOf(Weight::kReading));
  EXPECT_THAT(report.findings, Not(Contains(Field(&Finding::engine, "deepseek"))));
  EXPECT_THAT(Lint(kMscale, {.name = "deepseek"}).findings,
              Contains(Field(&Finding::engine, "deepseek")));
}

TEST(LintTest, ReadingIsThatOfItsRangeOfVersions) {
  constexpr char kMinistral[] = R"({"model_type": "ministral3", "head_dim": 128,
    "max_position_embeddings": 262144, "rope_parameters": {"rope_type": "yarn", "factor": 16,
    "rope_theta": 1000000, "original_max_position_embeddings": 16384, "mscale": 1,
    "mscale_all_dim": 1}})";
  const auto reads = Contains(Field(&Finding::engine, "vllm"));
  for (const char* version : {"0.22.0", "0.25.1", "0.29.0"}) {
    EXPECT_THAT(Lint(kMinistral, {.name = "vllm", .version = version}).findings, reads) << version;
  }
  EXPECT_THAT(Lint(kMinistral, {.name = "vllm", .version = "0.30.0"}).findings, Not(reads));
  // A commit is compared as text.
  const auto deepseek = Contains(Field(&Finding::engine, "deepseek"));
  EXPECT_THAT(Lint(kMscale, {.name = "deepseek", .version = "VL2-8ed2d7f"}).findings, deepseek);
  EXPECT_THAT(Lint(kMscale, {.name = "deepseek", .version = "99"}).findings, Not(deepseek));
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
  EXPECT_EQ(report.findings[0].weight, Weight::kError);
  EXPECT_EQ(report.findings[0].field, "rope_scaling.factor");
  EXPECT_EQ(report.findings[0].line, 5);
  EXPECT_EQ(report.rope_type, "");
}

TEST(LintTest, MissingFieldIsAnErrorAtTheLineOfTheRopeType) {
  const FileReport report =
      Lint("{\n\"head_dim\": 64,\n\"rope_scaling\": {\n\"type\": \"linear\"}}");
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.findings[0].weight, Weight::kError);
  EXPECT_THAT(report.findings[0].message, HasSubstr("factor: got nothing"));
  EXPECT_EQ(report.findings[0].line, 4);
}

TEST(LintTest, BrokenJsonIsAnErrorAtItsLine) {
  const FileReport report = Lint("{\n\"head_dim\": 64,\n}");
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.findings[0].weight, Weight::kError);
  EXPECT_THAT(report.findings[0].message, HasSubstr("syntax error"));
  EXPECT_EQ(report.findings[0].line, 3);
}

TEST(LintTest, AMebibyteOfNestedBracketsIsAnError) {
  for (const std::string& text :
       {std::string(1 << 20, '['), std::string(1 << 19, '[') + std::string(1 << 19, ']')}) {
    const FileReport report = Lint(text);
    ASSERT_THAT(report.findings, SizeIs(1));
    EXPECT_EQ(report.findings[0].weight, Weight::kError);
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

TEST(LintTest, ConfigWithoutHeadDimIsAWarning) {
  const FileReport report = Lint(R"({"rope_theta": 10000})");
  EXPECT_EQ(report.CountOf(Weight::kError), 0);
  EXPECT_THAT(report.findings,
              Contains(Field(&Finding::message, HasSubstr("head_dim: got nothing"))));
  EXPECT_EQ(report.pairing, "");
}

TEST(LintTest, HeavierFindingsComeFirst) {
  const FileReport report = Lint(kMscale);
  for (size_t i = 1; i < report.findings.size(); ++i) {
    EXPECT_GE(report.findings[i - 1].weight, report.findings[i].weight);
  }
}

constexpr char kComposite[] = R"({
  "model_type": "llama",
  "head_dim": 64,
  "rope_theta": 10000,
  "vision_config": {
    "model_type": "gptj",
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
  EXPECT_EQ(finding.weight, Weight::kError);
  EXPECT_EQ(finding.sub_config, "vision_config");
  EXPECT_EQ(finding.line, 8);
  EXPECT_THAT(finding.message, HasSubstr("rope_theta: got -1"));
  EXPECT_EQ(report.model_type, "llama");  // the columns are the file's own
  EXPECT_EQ(report.pairing, "half");
}

TEST(LintSubConfigTest, ChosenOneAloneIsLintedAndDescribed) {
  const FileReport vision = LintText("config.json", kComposite, {}, "vision_config");
  EXPECT_THAT(vision.findings, SizeIs(1));
  EXPECT_EQ(vision.model_type, "gptj");
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
  EXPECT_THAT(report.findings,
              Contains(AllOf(Field(&Finding::weight, Weight::kWarning),
                             Field(&Finding::sub_config, "vision_config"),
                             Field(&Finding::message, HasSubstr("gemma4_vision")))));
}

}  // namespace
}  // namespace rope::client
