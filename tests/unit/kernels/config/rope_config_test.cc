#include "kernels/config/rope_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/config/remark.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

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
