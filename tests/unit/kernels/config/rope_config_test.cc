#include "kernels/config/rope_config.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

RopeConfig Valid(RopeType type) {
  RopeConfig config = {.rope_type = type, .head_dim = 8};
  config.max_position_embeddings = 64;
  config.original_max_position_embeddings = 16;
  config.factor = 4;
  config.low_freq_factor = 1;
  config.high_freq_factor = 4;
  config.short_factor = {1, 1, 1, 1};
  config.long_factor = {1, 2, 3, 4};
  return config;
}

// One rule: how to break it in a valid config, and the expected error.
struct Rule {
  const char* name;
  RopeType type;
  std::function<void(RopeConfig&)> breaks;
  const char* message;
};

class ValidateTest : public ::testing::TestWithParam<Rule> {};

TEST_P(ValidateTest, BrokenRuleNamesTheField) {
  RopeConfig config = Valid(GetParam().type);
  ASSERT_THAT(Validate(config), IsOk());
  GetParam().breaks(config);
  EXPECT_THAT(Validate(config), IsInvalid(GetParam().message));
}

// ConfigRuleTest has the rules for a value by itself, and NotFiniteTest those for infinity and NaN.
const Rule kRules[] = {
    {"MscaleNegative", RopeType::kYarn, [](RopeConfig& config) { config.mscale = -1; },
     "mscale: got -1"},
    {"BetaSlowNegative", RopeType::kYarn, [](RopeConfig& config) { config.beta_slow = -1; },
     "beta_slow: got -1"},
    {"LowZero", RopeType::kLlama3, [](RopeConfig& config) { config.low_freq_factor = 0; },
     "low_freq_factor: got 0"},
    {"HeadDimOne", RopeType::kDefault, [](RopeConfig& config) { config.head_dim = 1; },
     "head_dim: got 1, want 2 to"},
    {"HeadDimHuge", RopeType::kDefault, [](RopeConfig& config) { config.head_dim = 65538; },
     "head_dim: got 65538"},
    {"HeadDimOdd", RopeType::kDefault, [](RopeConfig& config) { config.head_dim = 9; },
     "head_dim: got 9, want an even"},
    {"RotaryDimProportional", RopeType::kProportional,
     [](RopeConfig& config) { config.rotary_dim = 4; }, "rotary_dim: got 4, want head_dim, 8"},
    {"FractionGivesOdd", RopeType::kDefault,
     [](RopeConfig& config) { config.partial_rotary_factor = 0.4; },
     "partial_rotary_factor: got 0.4, want one that gives an even rotary_dim >= 2, which is 3"},
    {"FractionGivesNothing", RopeType::kDefault,
     [](RopeConfig& config) { config.partial_rotary_factor = 0.1; }, "which is 0 of head_dim 8"},
    {"FractionProportional", RopeType::kProportional,
     [](RopeConfig& config) { config.partial_rotary_factor = 0.2; },
     "want at least one rotating pair"},
    {"MaxPositionsZero", RopeType::kDefault,
     [](RopeConfig& config) { config.max_position_embeddings = 0; },
     "max_position_embeddings: got 0"},
    {"OriginalNegative", RopeType::kDefault,
     [](RopeConfig& config) { config.original_max_position_embeddings = -1; },
     "original_max_position_embeddings: got -1"},
    {"OriginalHuge", RopeType::kDefault,
     [](RopeConfig& config) {
       config.original_max_position_embeddings = std::numeric_limits<int64_t>::max();
     },
     "original_max_position_embeddings: got 9223372036854775807"},
    {"Llama3WithoutFactor", RopeType::kLlama3, [](RopeConfig& config) { config.factor.reset(); },
     "factor: got nothing, want a number > 0 for rope_type llama3"},
    {"Llama3WithoutLow", RopeType::kLlama3,
     [](RopeConfig& config) { config.low_freq_factor.reset(); }, "low_freq_factor: got nothing"},
    {"Llama3WithoutLength", RopeType::kLlama3,
     [](RopeConfig& config) {
       config.original_max_position_embeddings.reset();
       config.max_position_embeddings.reset();
     },
     "original_max_position_embeddings: got nothing"},
    {"DynamicWithoutLength", RopeType::kDynamic,
     [](RopeConfig& config) { config.max_position_embeddings.reset(); },
     "max_position_embeddings: got nothing"},
    {"DynamicRotaryDimTwo", RopeType::kDynamic,
     [](RopeConfig& config) {
       config.rotary_dim = 2;
       config.short_factor = {};
       config.long_factor = {};
     },
     "rotary_dim: got 2, want at least 4 for rope_type dynamic"},
    {"YarnThetaOne", RopeType::kYarn, [](RopeConfig& config) { config.rope_theta = 1; },
     "rope_theta: got 1"},
    {"YarnWithoutFactor", RopeType::kYarn,
     [](RopeConfig& config) {
       config.factor.reset();
       config.original_max_position_embeddings.reset();
     },
     "factor: got nothing, want a number > 0 for rope_type yarn"},
    {"YarnWithoutLength", RopeType::kYarn,
     [](RopeConfig& config) {
       config.original_max_position_embeddings.reset();
       config.max_position_embeddings.reset();
     },
     "original_max_position_embeddings: got nothing"},
    {"LongropeWithoutShort", RopeType::kLongrope,
     [](RopeConfig& config) { config.short_factor.clear(); }, "short_factor: got nothing"},
    {"LongropeWithoutLength", RopeType::kLongrope,
     [](RopeConfig& config) {
       config.original_max_position_embeddings.reset();
       config.max_position_embeddings.reset();
     },
     "original_max_position_embeddings: got nothing"},
    {"LongropeWithoutRatio", RopeType::kLongrope,
     [](RopeConfig& config) {
       config.factor.reset();
       config.max_position_embeddings.reset();
     },
     "factor: got nothing, want a number > 0, or max_position_embeddings"},
    {"LongropeLengthOne", RopeType::kLongrope,
     [](RopeConfig& config) { config.original_max_position_embeddings = 1; },
     "original_max_position_embeddings: got 1"},
    {"MropeSum", RopeType::kDefault,
     [](RopeConfig& config) {
       config.mrope = Mrope{.section = {1, 1, 1}};
     },
     "mrope_section: got [1, 1, 1], want counts whose sum is rotary_dim/2, 4"},
    {"MropeNegative", RopeType::kDefault,
     [](RopeConfig& config) {
       config.mrope = Mrope{.section = {6, -1, -1}};
     },
     "mrope_section: got [6, -1, -1]"},
};

INSTANTIATE_TEST_SUITE_P(AllRules, ValidateTest, ::testing::ValuesIn(kRules),
                         [](const auto& rule_info) { return rule_info.param.name; });

TEST(ValidateTest, HeadDimOfTheTensorIsTakenWhereTheConfigHasNone) {
  RopeConfig config = Valid(RopeType::kLongrope);
  config.head_dim.reset();
  EXPECT_THAT(Validate(config), IsOk());
  EXPECT_THAT(Validate(config, 8), IsOk());
  EXPECT_THAT(Validate(config, 16), IsInvalid("short_factor: got 4 num"));
  config.head_dim = 8;
  EXPECT_THAT(Validate(config, 16), IsOk());
}

TEST(ValidateTest, LimitsThemselvesAreLegal) {
  RopeConfig config = {.head_dim = 65536, .partial_rotary_factor = 1};
  config.attention_factor = 0;
  config.max_position_embeddings = 1;
  EXPECT_THAT(Validate(config), IsOk());
  config = {.head_dim = 2};
  EXPECT_THAT(Validate(config), IsOk());
}

TEST(ParseRopeTypeTest, EveryNameReadsBack) {
  for (const RopeType type :
       {RopeType::kDefault, RopeType::kLinear, RopeType::kDynamic, RopeType::kYarn,
        RopeType::kLongrope, RopeType::kLlama3, RopeType::kProportional}) {
    ASSERT_OK(read, ParseRopeType(Name(type)));
    EXPECT_EQ(*read, type);
  }
}

TEST(ParseRopeTypeTest, OldNamesAreRead) {
  EXPECT_EQ(*ParseRopeType("su"), RopeType::kLongrope);
  EXPECT_EQ(*ParseRopeType("mrope"), RopeType::kDefault);
  EXPECT_EQ(*ParseRopeType("ernie_3d"), RopeType::kDefault);
}

TEST(ParseRopeTypeTest, UnknownNameListsTheNames) {
  EXPECT_THAT(ParseRopeType("spiral"),
              IsInvalid("rope_type: got \"spiral\", want one of default, linear"));
}

TEST(ParseRopeTypeTest, TypesOfOtherImplementationsSayWhatToWrite) {
  for (const auto& [name, want] : {std::pair("deepseek_yarn", "want yarn, with compat deepseek"),
                                   std::pair("telechat3-yarn", "want yarn; if"),
                                   std::pair("xdrope", "want a type for one or three axes"),
                                   std::pair("openpangu", "want default, with mrope_section")}) {
    EXPECT_THAT(ParseRopeType(name), IsInvalid(want));
  }
}

std::vector<int> Axes(const Mrope& mrope, int64_t count) {
  std::vector<int> axes;
  for (int64_t i = 0; i < count; ++i) axes.push_back(AxisOf(mrope, i));
  return axes;
}

TEST(MropeTest, SectionsTakeAxesInBlocks) {
  EXPECT_THAT(Axes({.section = {1, 2, 1}}, 4), ElementsAre(0, 1, 1, 2));
}

TEST(MropeTest, InterleavedTakesAxesInTurnAndTheRestFromT) {
  const Mrope mrope = {.section = {4, 2, 1}, .layout = Mrope::Layout::kInterleaved};
  EXPECT_THAT(Axes(mrope, 7), ElementsAre(0, 1, 2, 0, 1, 0, 0));
}

TEST(MropeTest, HwInterleavedTakesHAndWInTurnAndTLast) {
  const Mrope mrope = {.section = {3, 2, 2}, .layout = Mrope::Layout::kHwInterleaved};
  EXPECT_THAT(Axes(mrope, 7), ElementsAre(1, 2, 1, 2, 0, 0, 0));
}

TEST(MropeTest, AxialTakesAxesInBlocks) {
  const Mrope mrope = {.section = {0, 2, 2}, .layout = Mrope::Layout::kAxial};
  EXPECT_THAT(Axes(mrope, 4), ElementsAre(1, 1, 2, 2));
}

}  // namespace
}  // namespace rope::kernels
