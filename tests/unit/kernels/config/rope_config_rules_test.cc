// Each rule of a config, in JSON: values that it rejects, warns about, and accepts.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/compat/rope_remarks.h"
#include "kernels/config/config_json.h"
#include "kernels/config/rope_config.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/config/remark_texts.h"

namespace rope::kernels {
namespace {

using ::rope::testing::TextsOf;

struct Outcome {
  std::string value;
  std::string message;
};

struct Rule {
  std::string name;
  std::string json;  // $ stands for the value
  std::vector<Outcome> refused;
  std::vector<Outcome> warned;
  std::vector<std::string> passed;
};

// A valid config; each rule below varies one key.
constexpr char kYarn[] =
    R"({"head_dim": 64, "rope_theta": 10000, "max_position_embeddings": 16384, "rope_scaling":
        {"rope_type": "yarn", "original_max_position_embeddings": 4096, "truncate": true, )";
constexpr char kLlama3[] =
    R"({"head_dim": 64, "rope_theta": 10000, "rope_scaling": {"rope_type": "llama3", "factor": 8,
        "original_max_position_embeddings": 4096, )";
constexpr char kLongrope[] =
    R"({"head_dim": 8, "rope_theta": 10000, "max_position_embeddings": 64, "rope_scaling":
        {"original_max_position_embeddings": 16, )";

const Rule kRules[] = {
    {"NumbersAreFinite",
     R"({"head_dim": 64, "rope_theta": $})",
     {{"1e999", "a number that a double cannot hold"},
      {"NaN", "rope_theta: got \"NaN\", want a number"},
      {"-1", "rope_theta: got -1, want a finite number > 0"},
      {"0", "rope_theta: got 0, want a finite number > 0"}},
     {{"null", "rope_theta absent, taken as 10000"}},
     {"10000", "5e5", "0.5"}},
    {"FactorIsPositive",
     R"({"head_dim": 64, "rope_theta": 10000, "rope_scaling": {"type": "linear", "factor": $}})",
     {{"0", "factor: got 0, want a finite number > 0"},
      {"-2", "factor: got -2, want a finite number > 0"},
      {"null", "factor: got nothing, want a number > 0 for rope_type linear"}},
     {{"0.5", "factor 0.5 is below 1"}, {"1e-3", "factor 0.001 is below 1"}},
     {"1", "8"}},
    {"FactorIsTheLengthRatio",
     std::string(kYarn) + R"("factor": $}})",
     {{"0", "factor: got 0, want a finite number > 0"}},
     {{"8", "factor 8 contradicts max_position_embeddings / original_max_position_embeddings, 4"},
      {"null", "factor absent, taken as"}},
     {"4", "4.0"}},
    {"AttentionFactorIsNotNegative",
     std::string(kYarn) + R"("factor": 4, "attention_factor": $}})",
     {{"-0.5", "attention_factor: got -0.5, want a finite number >= 0"},
      {"1e39", "attention_factor: got 1e+39, want at most 3.4e38"}},
     {{"1", "attention_factor 1 replaces the computed one, 1.13863"},
      {"0", "attention_factor 0 replaces the computed one, 1.13863"}},
     {"1.138629436111989", "null"}},
    {"BetaFastIsNotBelowBetaSlow",
     std::string(kYarn) + R"("factor": 4, "beta_slow": 1, "beta_fast": $}})",
     {{"0.5", "beta_fast: got 0.5, want at least beta_slow, 1"},
      {"-1", "beta_fast: got -1, want a finite number >= 0"}},
     {{"0", "beta_fast 0 is read as 32"}},
     {"1", "32", "null"}},
    {"HighFreqFactorIsNotBelowLow",
     std::string(kLlama3) + R"("low_freq_factor": 1, "high_freq_factor": $}})",
     {{"0.5", "high_freq_factor: got 0.5, want at least low_freq_factor, 1"},
      {"null", "high_freq_factor: got nothing, want a number > 0 for rope_type llama3"}},
     {{"1", "high_freq_factor equals low_freq_factor, 1"}},
     {"4", "1.0000001"}},
    {"ListsHaveOneNumberForEachPair",
     std::string(kLongrope) + R"("type": "longrope", "short_factor": [1, 1, 1, 1],
         "long_factor": $}})",
     {{"[1, 2, 3]", "long_factor: got 3 numbers, want rotary_dim/2, 4"},
      {"[1, 2, 3, 4, 5]", "long_factor: got 5 numbers, want rotary_dim/2, 4"},
      {"[1, 2, 0, 4]", "long_factor[2]: got 0, want a finite number > 0"},
      {"[]", "long_factor: got nothing, want rotary_dim/2 numbers > 0 for rope_type longrope"}},
     {},
     {"[1, 2, 3, 4]"}},
    {"ListsBelongToLongrope",
     std::string(kLongrope) + R"("type": "linear", "factor": 4, "long_factor": $}})",
     {{"[1, 2, 3]", "long_factor: got 3 numbers, want rotary_dim/2, 4"}},
     {{"[1, 2, 3, 4]", "long_factor has no effect for rope_type linear"}},
     {"null"}},
    {"RotaryDimIsEven",
     R"({"head_dim": 64, "rope_theta": 10000, "partial_rotary_factor": 0.5, "rotary_dim": $})",
     {{"31", "rotary_dim: got 31, want an even number"},
      {"0", "rotary_dim: got 0, want an even number"},
      {"66", "rotary_dim: got 66, want at most head_dim, 64"}},
     {{"16", "rotary_dim 16 is used; partial_rotary_factor would give 32"}},
     {"32", "null"}},
    {"FractionGivesAnEvenRotaryDim",
     R"({"head_dim": 100, "rope_theta": 10000, "partial_rotary_factor": $})",
     {{"0", "partial_rotary_factor: got 0, want a number in (0, 1]"},
      {"1.5", "partial_rotary_factor: got 1.5, want a number in (0, 1]"},
      {"0.15", "partial_rotary_factor: got 0.15, want one that gives an even rotary_dim"}},
     {{"0.57", "truncated to a rotary_dim of 56"}},
     {"0.5", "1", "null"}},
    {"KeysAreKnown",
     R"({"head_dim": 64, "rope_theta": 10000, "rope_scaling": {$, "factor": 2}})",
     {{R"("rope_type": "spiral")", "rope_scaling.rope_type: got \"spiral\", want one of default"},
      {R"("type": "linear", "factor": 3)", "config_json: got key \"factor\" twice"}},
     {{R"("type": "linear", "facter": 4)", "key \"facter\" is not known and has no effect"},
      {R"("type": "linear", "alpha": 1000)", "alpha has no effect for rope_type linear"},
      {R"("type": "linear", "beta_fast": 32)", "beta_fast has no effect for rope_type linear"}},
     {R"("type": "linear")", R"("rope_type": "linear", "typo": null)"}},
    {"AttnFactorMultiplies",
     std::string(kYarn) + R"("factor": 4, "attn_factor": $}})",
     {{"-1", "attn_factor: got -1, want a finite number >= 0"},
      {"\"1\"", "attn_factor: got \"1\", want a number"}},
     {{"2, \"attention_factor\": 1.138629436111989", "no effect with attention_factor"}},
     {"0.87825", "0", "null"}},
    {"AlphaIsPositive",
     R"({"head_dim": 64, "rope_theta": 10000, "rope_scaling": {"type": "dynamic", "alpha": $}})",
     {{"0", "alpha: got 0, want a finite number > 0"},
      {"-1", "alpha: got -1, want a finite number > 0"},
      {"null", "factor: got nothing, want a number > 0 for rope_type dynamic"}},
     {{"1000", "alpha 1000 enlarges the base to"},
      {"1000, \"factor\": 4", "factor 4 has no effect with alpha"}},
     {}},
    {"MixedBIsNotNegative",
     R"({"head_dim": 64, "rope_theta": 10000, "rope_scaling": {"type": "ntk", $}})",
     {{R"("factor": 4, "mixed_b": -1)", "mixed_b: got -1, want a finite number >= 0"},
      {R"("mixed_b": 1)", "factor: got nothing, want a number > 0 for rope_type ntk"}},
     {{R"("factor": 0.5)", "factor 0.5 is below 1"}},
     {R"("factor": 4, "mixed_b": 0.625)", R"("factor": 4, "mixed_b": 0)", R"("factor": 4)"}},
    {"InvFreqIsComplete",
     R"({"head_dim": 8, "rope_theta": 10000, "rope_parameters": {$}})",
     {{R"("inv_freq": [1, 0.5, 0.1])", "inv_freq: got 3 numbers, want rotary_dim/2, 4"},
      {R"("inv_freq": [1, -0.5, 0.1, 0])", "inv_freq[1]: got -0.5, want a finite number >= 0"},
      {R"("inv_freq": [0, 0, 0, 0])", "inv_freq: got only zeros"},
      {R"("inv_freq": [1, 1, 1, 1], "rope_type": "linear", "factor": 2)",
       "rope_type: got linear, want default together with inv_freq"}},
     {{R"("inv_freq": [1, 0.5, 0.6, 0])", "inv_freq[2] 0.6 is larger than 0.5 before it"}},
     {R"("inv_freq": [1, 0.5, 0.5, 0])", R"("inv_freq": [2, 1, 0.1, 0.01], "attention_factor": 2)",
      R"("inv_freq": null)"}},
    {"RotaryOffsetLeavesRoom",
     R"({"head_dim": 64, "rope_theta": 10000, "rotary_dim": 16, "rotary_offset": $})",
     {{"65521", "rotary_offset: got 65521, want 0 to 65520"},
      {"-1", "rotary_offset: got -1, want 0 to"},
      {"0.5", "rotary_offset: got 0.5, want a whole number"}},
     {{"49", "the window ends at channel 65, past head_dim 64; tensors need at least 65"}},
     {"48", "0", "7", "null"}},
};

// Reads and validates a config; sets `warnings` if both succeed.
absl::Status Check(const std::string& json, std::vector<std::string>& warnings) {
  const auto model = ModelConfig::Parse(json);
  if (!model.ok()) return model.status();
  const auto layer = model->Layer({});
  if (!layer.ok()) return layer.status();
  const absl::Status valid = Validate(layer->config);
  if (!valid.ok()) return valid;
  warnings = TextsOf(layer->remarks);
  for (const Remark& remark : Remarks(layer->config)) warnings.push_back(remark.text);
  return absl::OkStatus();
}

class ConfigRuleTest : public ::testing::TestWithParam<Rule> {
 protected:
  static std::string With(const std::string& value) {
    return absl::StrReplaceAll(GetParam().json, {{"$", value}});
  }
};

TEST_P(ConfigRuleTest, RefusesWithTheField) {
  ASSERT_FALSE(GetParam().refused.empty());
  for (const Outcome& refused : GetParam().refused) {
    std::vector<std::string> warnings;
    EXPECT_THAT(Check(With(refused.value), warnings), IsInvalid(refused.message)) << refused.value;
  }
}

TEST_P(ConfigRuleTest, WarnsWithTheNumbers) {
  for (const Outcome& warned : GetParam().warned) {
    std::vector<std::string> warnings;
    EXPECT_THAT(Check(With(warned.value), warnings), IsOk()) << warned.value;
    EXPECT_THAT(warnings, Contains(HasSubstr(warned.message))) << warned.value;
  }
}

TEST_P(ConfigRuleTest, PassesInSilence) {
  // Some settings warn with every value.
  ASSERT_FALSE(GetParam().passed.empty() && GetParam().warned.empty());
  for (const std::string& passed : GetParam().passed) {
    std::vector<std::string> warnings;
    EXPECT_THAT(Check(With(passed), warnings), IsOk()) << passed;
    EXPECT_THAT(warnings, IsEmpty()) << passed;
  }
}

// Protobuf can carry these numbers, JSON cannot.
TEST(NotFiniteTest, EveryNumberOfAConfigIsRefusedByName) {
  const std::pair<const char*, std::function<void(RopeConfig&, double)>> fields[] = {
      {"rope_theta", [](RopeConfig& c, double x) { c.rope_theta = x; }},
      {"partial_rotary_factor", [](RopeConfig& c, double x) { c.partial_rotary_factor = x; }},
      {"factor", [](RopeConfig& c, double x) { c.factor = x; }},
      {"attention_factor", [](RopeConfig& c, double x) { c.attention_factor = x; }},
      {"attn_factor", [](RopeConfig& c, double x) { c.attn_factor = x; }},
      {"mscale", [](RopeConfig& c, double x) { c.mscale = x; }},
      {"mscale_all_dim", [](RopeConfig& c, double x) { c.mscale_all_dim = x; }},
      {"beta_fast", [](RopeConfig& c, double x) { c.beta_fast = x; }},
      {"beta_slow", [](RopeConfig& c, double x) { c.beta_slow = x; }},
      {"low_freq_factor", [](RopeConfig& c, double x) { c.low_freq_factor = x; }},
      {"high_freq_factor", [](RopeConfig& c, double x) { c.high_freq_factor = x; }},
      {"alpha", [](RopeConfig& c, double x) { c.alpha = x; }},
      {"mixed_b", [](RopeConfig& c, double x) { c.mixed_b = x; }},
      {"short_factor[1]",
       [](RopeConfig& c, double x) {
         c.short_factor = {1, x, 1, 1};
       }},
      {"long_factor[3]",
       [](RopeConfig& c, double x) {
         c.long_factor = {1, 1, 1, x};
       }},
      {"inv_freq[2]",
       [](RopeConfig& c, double x) {
         c.inv_freq = {1, 1, x, 1};
       }},
      {"xpos.scale_base", [](RopeConfig& c, double x) { c.xpos = XPos{.scale_base = x}; }},
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const auto& [field, set] : fields) {
    for (const double value : {std::nan(""), kInfinity, -kInfinity}) {
      RopeConfig config = {.head_dim = 8};
      set(config, value);
      EXPECT_THAT(Validate(config), StatusIs(absl::StatusCode::kInvalidArgument,
                                             StartsWith(absl::StrCat(field, ": got "))))
          << value;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, ConfigRuleTest, ::testing::ValuesIn(kRules),
                         [](const auto& rule) { return rule.param.name; });

}  // namespace
}  // namespace rope::kernels
