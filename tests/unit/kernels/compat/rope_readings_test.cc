#include "kernels/compat/rope_readings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "kernels/config/validate_config.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using ::rope::testing::IsOk;
using ::rope::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Compat kCompats[] = {Compat::kDefault, Compat::kHuggingFace, Compat::kVllm,
                               Compat::kLlamaCpp, Compat::kDeepSeek};

std::shared_ptr<const ResolvedRope> MustResolve(const RopeConfig& config) {
  auto rope = Resolve(config);
  EXPECT_THAT(rope, IsOk());
  return rope.ok() ? *rope : nullptr;
}

CompatConfig MustApply(const RopeConfig& config, Compat compat) {
  EXPECT_THAT(Validate(config), IsOk());
  auto applied = ApplyCompat(config, compat);
  EXPECT_THAT(applied, IsOk());
  return applied.ok() ? *std::move(applied) : CompatConfig();
}

std::vector<std::string> NamesOf(const std::vector<Reading>& readings) {
  std::vector<std::string> names;
  for (const Reading& reading : readings) names.push_back(reading.implementation);
  return names;
}

const Reading& Of(const std::vector<Reading>& readings, const std::string& name) {
  static const Reading none;
  for (const Reading& reading : readings) {
    if (reading.implementation == name) return reading;
  }
  ADD_FAILURE() << "no reading of " << name;
  return none;
}

RopeConfig Yarn(double factor) {
  RopeConfig config = {.rope_type = RopeType::kYarn, .head_dim = 64};
  config.factor = factor;
  config.original_max_position_embeddings = 4096;
  return config;
}

RopeConfig Dynamic() {
  RopeConfig config = {.rope_type = RopeType::kDynamic, .head_dim = 128};
  config.factor = 4;
  config.max_position_embeddings = 4096;
  return config;
}

RopeConfig Longrope() {
  RopeConfig config = {.rope_type = RopeType::kLongrope, .head_dim = 4};
  config.short_factor = {1, 2};
  config.long_factor = {1, 4};
  config.original_max_position_embeddings = 4096;
  config.max_position_embeddings = 131072;
  return config;
}

TEST(ApplyCompatTest, PlainConfigIsReadAlikeByAll) {
  const RopeConfig config = {.rope_theta = 500000, .head_dim = 128};
  for (const Compat compat : kCompats) {
    const CompatConfig applied = MustApply(config, compat);
    EXPECT_EQ(applied.config, config) << Name(compat);
    EXPECT_THAT(applied.changes, IsEmpty()) << Name(compat);
  }
}

TEST(ApplyCompatTest, HuggingFaceDecidesByTheBatch) {
  for (const RopeConfig& config : {Dynamic(), Longrope()}) {
    const CompatConfig applied = MustApply(config, Compat::kHuggingFace);
    EXPECT_EQ(applied.config.seq_len_policy, SeqLenPolicy::kBatch);
    EXPECT_THAT(applied.changes, ElementsAre(HasSubstr("longest sequence of the call")));
  }
  RopeConfig fixed = Longrope();
  fixed.longrope_branch = LongropeBranch::kShort;
  EXPECT_THAT(MustApply(fixed, Compat::kHuggingFace).changes, IsEmpty());
}

TEST(ApplyCompatTest, VllmHasOneDynamicBase) {
  const CompatConfig applied = MustApply(Dynamic(), Compat::kVllm);
  const auto rope = MustResolve(applied.config);
  EXPECT_FALSE(rope->DependsOnSeqLen());
  EXPECT_NEAR(rope->Evaluate(1).rope_theta, 135402, 0.5);
  EXPECT_THAT(applied.changes, ElementsAre(HasSubstr("one base for every length")));
}

TEST(ApplyCompatTest, VllmAndLlamaCppFixTheLongropeList) {
  RopeConfig config = Longrope();
  config.attention_factor = 1.5;
  for (const Compat compat : {Compat::kVllm, Compat::kLlamaCpp}) {
    const CompatConfig applied = MustApply(config, compat);
    EXPECT_EQ(applied.config.longrope_branch, LongropeBranch::kLong);
    EXPECT_NEAR(MustResolve(applied.config)->attention_factor(),
                std::sqrt(1 + std::log(32.0) / std::log(4096.0)), 1e-15);
    EXPECT_THAT(applied.changes, ElementsAre(HasSubstr("takes the long factors"),
                                             HasSubstr("length ratio, 1.19024")));
  }
  config.max_position_embeddings = 4096;
  EXPECT_EQ(MustApply(config, Compat::kVllm).config.longrope_branch, LongropeBranch::kShort);
}

TEST(ApplyCompatTest, VllmIgnoresWhatItsYarnDoesNotRead) {
  RopeConfig config = Yarn(64);
  config.attention_factor = 1;
  config.mscale = 1;
  config.mscale_all_dim = 1;
  const CompatConfig applied = MustApply(config, Compat::kVllm);
  EXPECT_NEAR(MustResolve(applied.config)->attention_factor(), 1.41589, 1e-5);
  EXPECT_THAT(applied.changes, ElementsAre(HasSubstr("ignores attention_factor"),
                                           HasSubstr("ignores mscale and mscale_all_dim")));
}

TEST(ApplyCompatTest, VllmEnlargesTheOriginalLengthOfMrope) {
  RopeConfig config = Yarn(4);
  config.mrope = Mrope{.section = {8, 12, 12}};
  EXPECT_EQ(MustApply(config, Compat::kVllm).config.original_max_position_embeddings, 16384);
}

TEST(ApplyCompatTest, VllmIgnoresTheFactorOfProportional) {
  RopeConfig config = {.rope_type = RopeType::kProportional, .head_dim = 64};
  config.factor = 4;
  EXPECT_EQ(MustResolve(MustApply(config, Compat::kVllm).config)->Evaluate(1).inv_freq[0], 1);
}

TEST(ApplyCompatTest, LlamaCppAlwaysRoundsTheRamp) {
  RopeConfig config = Yarn(32);
  config.rope_theta = 150000;
  config.truncate = false;
  const CompatConfig applied = MustApply(config, Compat::kLlamaCpp);
  EXPECT_EQ(applied.config.truncate, true);
  EXPECT_THAT(applied.changes, ElementsAre(HasSubstr("rounds the ramp's edges")));
  EXPECT_THAT(MustApply(config, Compat::kVllm).changes, IsEmpty());
}

TEST(ApplyCompatTest, LlamaCppRefusesWhatItDoesNotHave) {
  const auto refused = [](const RopeConfig& config, const char* what) {
    EXPECT_THAT(ApplyCompat(config, Compat::kLlamaCpp),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  };
  refused(Dynamic(), "compat: got llamacpp, which has no rope_type dynamic");
  RopeConfig ntk = {.rope_type = RopeType::kNtk, .head_dim = 64};
  ntk.factor = 2;
  refused(ntk, "rope_type ntk");
  RopeConfig mrope = {.head_dim = 128};
  mrope.mrope = Mrope{.section = {24, 20, 20}, .layout = Mrope::Layout::kInterleaved};
  refused(mrope, "a fourth row of positions");
  mrope.head_dim = 64;
  mrope.mrope->section = {11, 11, 10};
  EXPECT_THAT(ApplyCompat(mrope, Compat::kLlamaCpp), IsOk());
}

TEST(ApplyCompatTest, DeepSeekTakesMscaleAlone) {
  RopeConfig config = Yarn(40);
  config.mscale = 0.707;
  const CompatConfig applied = MustApply(config, Compat::kDeepSeek);
  EXPECT_NEAR(MustResolve(applied.config)->attention_factor(), 1.26080, 1e-5);
  EXPECT_THAT(applied.changes, ElementsAre(HasSubstr("attention factor 1.2608")));
  config.mscale.reset();
  config.mscale_all_dim = 0.707;
  EXPECT_NEAR(MustResolve(MustApply(config, Compat::kDeepSeek).config)->attention_factor(),
              1.36889 / 1.26080, 1e-5);
  config.mscale = 0.707;  // both are set: the same as Hugging Face
  EXPECT_THAT(MustApply(config, Compat::kDeepSeek).changes, IsEmpty());
}

TEST(ReadingsTest, NoneWhereAllAgree) {
  const RopeConfig config = {.rope_theta = 500000, .head_dim = 128};
  EXPECT_THAT(Readings(config, *MustResolve(config), 1), IsEmpty());
  EXPECT_THAT(Readings(Yarn(4), *MustResolve(Yarn(4)), 1), IsEmpty());
}

TEST(ReadingsTest, GptOssWithoutTruncationIsOffInLlamaCpp) {
  RopeConfig config = Yarn(32);
  config.rope_theta = 150000;
  config.truncate = false;
  const auto readings = Readings(config, *MustResolve(config), 1);
  EXPECT_THAT(NamesOf(readings), ElementsAre("llamacpp", "deepseek"));
  EXPECT_NEAR(readings[0].inv_freq_max_relative, 0.763, 5e-4);
  EXPECT_NEAR(readings[0].attention_factor, 1.34657, 1e-5);
}

TEST(ReadingsTest, MscaleAloneIsReadInTwoWays) {
  RopeConfig config = Yarn(40);
  config.mscale = 0.707;
  const auto readings = Readings(config, *MustResolve(config), 1);
  EXPECT_THAT(NamesOf(readings), ElementsAre("deepseek"));
  EXPECT_NEAR(readings[0].attention_factor, 1.26080, 1e-5);
  EXPECT_EQ(readings[0].inv_freq_max_relative, 0);
}

TEST(ReadingsTest, DynamicDiffersWithinTheLengthToo) {
  const auto readings = Readings(Dynamic(), *MustResolve(Dynamic()), 4096);
  EXPECT_THAT(NamesOf(readings), ElementsAre("vllm", "llamacpp"));
  EXPECT_GT(Of(readings, "vllm").inv_freq_max_relative, 0.9);
  EXPECT_THAT(Of(readings, "llamacpp").difference, HasSubstr("no rope_type dynamic"));
  EXPECT_EQ(Of(readings, "llamacpp").attention_factor, 0);
  // At the length of vLLM's base the two agree.
  EXPECT_THAT(NamesOf(Readings(Dynamic(), *MustResolve(Dynamic()), 16384)),
              ElementsAre("llamacpp"));
}

TEST(ReadingsTest, AreRelativeToTheAnswerUnderACompat) {
  const auto as_vllm = MustResolve(MustApply(Dynamic(), Compat::kVllm).config);
  const auto readings = Readings(Dynamic(), *as_vllm, 4096);
  EXPECT_THAT(NamesOf(readings), ElementsAre("hf", "llamacpp", "deepseek"));
  EXPECT_THAT(Of(readings, "deepseek").difference, "reads the config as written");
}

TEST(RampOfTest, ClassicCaseHasItsEdgesAtTheTwoWavelengths) {
  RopeConfig config = {.rope_type = RopeType::kLlama3, .head_dim = 256};
  config.factor = 8;
  config.low_freq_factor = 1;
  config.high_freq_factor = 4;
  config.original_max_position_embeddings = 8192;
  const auto llama3 = RampOf(*MustResolve(config));
  ASSERT_TRUE(llama3.has_value());
  EXPECT_NEAR(llama3->low_wavelength, 2048, 1e-9);
  EXPECT_NEAR(llama3->high_wavelength, 8192, 1e-9);
  const auto rope = MustResolve(config);
  const auto scaling = ScalingOf(*rope, rope->Evaluate(1));
  for (size_t i = 0; i < scaling.size(); ++i) {
    const auto index = static_cast<double>(i);
    EXPECT_EQ(scaling[i], index <= llama3->low_index    ? ColumnScaling::kKept
                          : index >= llama3->high_index ? ColumnScaling::kScaled
                                                        : ColumnScaling::kBlended)
        << i;
  }
  config.rope_type = RopeType::kYarn;
  config.beta_fast = 4;
  config.beta_slow = 1;
  config.ramp = YarnRamp::kTurns;
  EXPECT_EQ(RampOf(*MustResolve(config))->low_index, llama3->low_index);
}

TEST(RampOfTest, YarnByIndexHasRoundedEdges) {
  RopeConfig config = Yarn(32);
  config.rope_theta = 150000;
  const auto rounded = RampOf(*MustResolve(config));
  EXPECT_EQ(rounded->low_index, 8);
  EXPECT_EQ(rounded->high_index, 18);
  config.truncate = false;
  EXPECT_NEAR(RampOf(*MustResolve(config))->low_index, 8.0928, 5e-5);
  EXPECT_NEAR(RampOf(*MustResolve(config))->high_index, 17.3980, 5e-5);
  EXPECT_NEAR(rounded->low_wavelength, 2 * std::numbers::pi * std::pow(150000.0, 16.0 / 64), 1e-9);
  EXPECT_FALSE(RampOf(*MustResolve({.head_dim = 64})).has_value());
}

TEST(ScalingOfTest, EachTypeSaysWhatItDid) {
  const auto of = [](const RopeConfig& config) {
    const auto rope = MustResolve(config);
    return ScalingOf(*rope, rope->Evaluate(1));
  };
  EXPECT_THAT(of({.head_dim = 4}), ElementsAre(ColumnScaling::kKept, ColumnScaling::kKept));
  EXPECT_THAT(of(Longrope()), ElementsAre(ColumnScaling::kKept, ColumnScaling::kScaled));
  RopeConfig hf = Longrope();
  hf.precision = Precision::kHuggingFace;
  EXPECT_THAT(of(hf), ElementsAre(ColumnScaling::kKept, ColumnScaling::kScaled));
  EXPECT_THAT(
      of({.rope_type = RopeType::kProportional, .head_dim = 4, .partial_rotary_factor = 0.5}),
      ElementsAre(ColumnScaling::kKept, ColumnScaling::kStill));
  RopeConfig given = {.head_dim = 4};
  given.inv_freq = {3, 0};
  EXPECT_THAT(of(given), ElementsAre(ColumnScaling::kKept, ColumnScaling::kStill));
}

TEST(Float32AngleErrorTest, GrowsWithThePosition) {
  const auto evaluated = MustResolve({.rope_theta = 500000, .head_dim = 128})->Evaluate(1);
  EXPECT_LT(Float32AngleError(evaluated, 0), 1e-15);
  EXPECT_GT(Float32AngleError(evaluated, 131071), 1e-3);
  EXPECT_LT(Float32AngleError(evaluated, 131071), 1e-2);
  EXPECT_GT(Float32AngleError(evaluated, 10485759), 0.1);
  EXPECT_LE(Float32AngleError(evaluated, int64_t{1} << 31), 2);
}

}  // namespace
}  // namespace rope::kernels
