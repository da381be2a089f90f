#include "kernels/config/rope_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string_view>

#include "kernels/config/remark.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

// Protobuf can carry these numbers, JSON cannot. The recorder sets every other number to NaN.
TEST(NotFiniteTest, FrequenciesAndTheBaseAreRefusedByName) {
  RopeConfig config = {.head_dim = 8};
  config.inv_freq = {1, 1, std::nan(""), 1};
  EXPECT_THAT(Validate(config), IsInvalid("inv_freq[2]: got "));
  config.inv_freq[2] = -HUGE_VAL;
  EXPECT_THAT(Validate(config), IsInvalid("inv_freq[2]: got "));
  EXPECT_THAT(Validate({.rope_theta = HUGE_VAL, .head_dim = 8}), IsInvalid("rope_theta: got "));
}

TEST(ValidateTest, HeadDimOfTheTensorIsTakenWhereTheConfigHasNone) {
  RopeConfig config = {.rope_type = RopeType::kLongrope};
  config.max_position_embeddings = 64;
  config.short_factor = {1, 1, 1, 1};
  config.long_factor = {1, 2, 3, 4};
  EXPECT_THAT(Validate(config), IsOk());
  EXPECT_THAT(Validate(config, 8), IsOk());
  EXPECT_THAT(Validate(config, 16), IsInvalid("short_factor: got 4 num"));
  config.head_dim = 8;
  EXPECT_THAT(Validate(config, 16), IsOk());
}

TEST(RemarkKindTest, NamesAreDifferent) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(RemarkKind::kSizesDoNotDivide); ++i) {
    EXPECT_TRUE(names.insert(Name(static_cast<RemarkKind>(i))).second) << i;
  }
}

}  // namespace
}  // namespace rope::kernels
