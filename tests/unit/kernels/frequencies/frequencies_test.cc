#include "kernels/frequencies/frequencies.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "kernels/config/config_json.h"
#include "kernels/dtype/element.h"
#include "kernels/frequencies/inverse_frequencies.h"
#include "tests/support/golden_reader.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using ::rope::testing::GoldenCase;
using ::rope::testing::ReadGoldenFile;

std::shared_ptr<const ResolvedRope> MustResolve(const RopeConfig& config) {
  auto rope = Resolve(config);
  EXPECT_THAT(rope, IsOk());
  return rope.ok() ? *rope : nullptr;
}

class GoldenFrequenciesTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_OK(golden, ReadGoldenFile(GetParam()));
    golden_ = *golden;
    ASSERT_OK(model, ModelConfig::Parse(golden_.config));
    ASSERT_OK(layer, model->Layer({.layer_type = golden_.layer_type}));
    layer_ = *layer;
    ASSERT_OK(rope, Resolve(layer_.config));
    rope_ = *rope;
  }

  GoldenCase golden_;
  LayerConfig layer_;
  std::shared_ptr<const ResolvedRope> rope_;
};

TEST_P(GoldenFrequenciesTest, ConfigResolvesAsTheFileSays) {
  EXPECT_EQ(rope_->head_dim(), golden_.head_dim);
  EXPECT_EQ(rope_->rotary_dim(), golden_.rotary_dim);
  EXPECT_EQ(rope_->config().rope_theta, golden_.rope_theta);
  EXPECT_EQ(Name(rope_->config().rope_type), golden_.rope_type);
  ASSERT_EQ(rope_->config().mrope.has_value(), golden_.mrope.has_value());
  if (golden_.mrope.has_value()) {
    EXPECT_EQ(rope_->config().mrope->section, golden_.mrope->section);
    EXPECT_EQ(rope_->config().mrope->layout == Mrope::Layout::kInterleaved,
              golden_.mrope->layout == "interleaved");
  }
  if (layer_.pairing.has_value()) {
    EXPECT_EQ(Name(*layer_.pairing), golden_.pairing);
  }
}

TEST_P(GoldenFrequenciesTest, AttentionFactorAndInverseFrequenciesAreExact) {
  EXPECT_NEAR(rope_->attention_factor(), golden_.attention_factor, 1e-15);
  const ResolvedRope::AtSeqLen evaluated = rope_->Evaluate(golden_.seq_len);
  ASSERT_EQ(evaluated.inv_freq.size(), golden_.inv_freq_f64.size());
  for (size_t i = 0; i < evaluated.inv_freq.size(); ++i) {
    const double want = golden_.inv_freq_f64[i];
    EXPECT_LE(std::abs(static_cast<double>(evaluated.inv_freq[i]) - want), 1e-15 * want) << i;
  }
}

TEST_P(GoldenFrequenciesTest, CosAndSinAreExact) {
  const ResolvedRope::AtSeqLen evaluated = rope_->Evaluate(golden_.seq_len);
  const size_t columns = evaluated.inv_freq.size();
  for (size_t token = 0; token < golden_.positions[0].size(); ++token) {
    for (size_t i = 0; i < columns; ++i) {
      const auto& mrope = rope_->config().mrope;
      const auto axis = mrope.has_value() ? AxisOf(*mrope, static_cast<int64_t>(i)) : 0;
      const int64_t position = golden_.positions[static_cast<size_t>(axis)][token];
      const CosSin got = ExactCosSin(position, evaluated.inv_freq[i], rope_->attention_factor());
      // The last two bits of a 64-bit inverse frequency change the angle by this much.
      const double angle = static_cast<double>(position) * golden_.inv_freq_f64[i];
      const double tolerance = 1e-15 + angle * 0x1p-62;
      EXPECT_NEAR(got.cos, golden_.cos_f64[token * columns + i], tolerance) << position;
      EXPECT_NEAR(got.sin, golden_.sin_f64[token * columns + i], tolerance) << position;
    }
  }
}

TEST_P(GoldenFrequenciesTest, ResolvingTheResolvedConfigGivesTheSameTable) {
  const auto again = MustResolve(rope_->config());
  ASSERT_NE(again, nullptr);
  const int64_t seq_len = golden_.seq_len;
  EXPECT_EQ(again->ForSeqLen(seq_len, Multiplier::kAttentionFactor)->key,
            rope_->ForSeqLen(seq_len, Multiplier::kAttentionFactor)->key);
}

INSTANTIATE_TEST_SUITE_P(GoldenFiles, GoldenFrequenciesTest,
                         ::testing::ValuesIn(rope::testing::GoldenFiles()),
                         [](const auto& file_info) {
                           return std::filesystem::path(file_info.param).stem().string();
                         });

TEST(ExactCosSinTest, MultiplesOfARightAngleAtLargePositions) {
  // The long double nearest pi/2 is 2.5082788063341661e-20 above it, so that the true result is
  // known.
  const InverseFrequency quarter = std::numbers::pi_v<long double> / 2;
  const double excess = 2.5082788063341661e-20;
  const auto position = int64_t{1} << 30;
  const double slip = static_cast<double>(position) * excess;
  EXPECT_NEAR(ExactCosSin(position, quarter, 1).sin, slip, 1e-17);
  EXPECT_EQ(ExactCosSin(position, quarter, 1).cos, 1);
  EXPECT_NEAR(ExactCosSin(position - 1, quarter, 1).cos, slip - excess, 1e-17);
  EXPECT_EQ(ExactCosSin(position - 1, quarter, 1).sin, -1);
}

TEST(ExactCosSinTest, NegativePositionTurnsBack) {
  const CosSin forward = ExactCosSin(1000000007, 0.7L, 1.5);
  const CosSin back = ExactCosSin(-1000000007, 0.7L, 1.5);
  EXPECT_EQ(forward.cos, back.cos);
  EXPECT_EQ(forward.sin, -back.sin);
}

TEST(ExactCosSinTest, ZeroFrequencyOnlyMultiplies) {
  const CosSin got = ExactCosSin(123456789, 0, 1.25);
  EXPECT_EQ(got.cos, 1.25);
  EXPECT_EQ(got.sin, 0);
}

RopeConfig Llama3() {
  RopeConfig config = {.rope_type = RopeType::kLlama3, .rope_theta = 500000, .head_dim = 128};
  config.factor = 16;
  config.low_freq_factor = 1;
  config.high_freq_factor = 1;
  config.original_max_position_embeddings = 8192;
  return config;
}

TEST(Llama3Test, EqualFrequencyFactorsKeepOrDivide) {
  const auto evaluated = MustResolve(Llama3())->Evaluate(1);
  const auto plain = MustResolve({.rope_theta = 500000, .head_dim = 128})->Evaluate(1);
  int kept = 0;
  int divided = 0;
  for (size_t i = 0; i < plain.inv_freq.size(); ++i) {
    kept += evaluated.inv_freq[i] == plain.inv_freq[i] ? 1 : 0;
    divided += evaluated.inv_freq[i] == plain.inv_freq[i] / 16 ? 1 : 0;
  }
  EXPECT_EQ(kept, 35);
  EXPECT_EQ(divided, 29);
}

TEST(YarnTest, CollapsedRampIsAStep) {
  RopeConfig config = {.rope_type = RopeType::kYarn, .head_dim = 64};
  config.factor = 4;
  config.original_max_position_embeddings = 6;  // both edges are 0
  const auto inv_freq = MustResolve(config)->Evaluate(1).inv_freq;
  const auto plain = MustResolve({.head_dim = 64})->Evaluate(1).inv_freq;
  EXPECT_EQ(inv_freq[0], 1);
  for (size_t i = 1; i < inv_freq.size(); ++i) EXPECT_EQ(inv_freq[i], plain[i] / 4) << i;
}

TEST(YarnTest, UpperEdgeIsAtMostTheLastChannel) {
  RopeConfig config = {.rope_type = RopeType::kYarn, .rope_theta = 10, .head_dim = 8};
  config.factor = 4;
  config.beta_fast = 1e6;  // lower edge 0
  config.original_max_position_embeddings = 1000000;
  const auto inv_freq = MustResolve(config)->Evaluate(1).inv_freq;
  const auto plain = MustResolve({.rope_theta = 10, .head_dim = 8})->Evaluate(1).inv_freq;
  const long double ramp = 3.0L / 7;  // index 3 on a ramp from 0 to rotary_dim - 1
  EXPECT_NEAR(static_cast<double>(inv_freq[3] / plain[3]), static_cast<double>(1 - ramp + ramp / 4),
              1e-15);
}

RopeConfig Dynamic() {
  RopeConfig config = {.rope_type = RopeType::kDynamic, .head_dim = 128};
  config.factor = 4;
  config.max_position_embeddings = 4096;
  return config;
}

TEST(DynamicTest, OnlyLengthsPastTheModelsAreNotCacheable) {
  const auto rope = MustResolve(Dynamic());
  const auto within = rope->ForSeqLen(1, Multiplier::kAttentionFactor);
  EXPECT_EQ(rope->ForSeqLen(4096, Multiplier::kAttentionFactor), within);
  EXPECT_TRUE(within->cacheable);
  const auto past = rope->ForSeqLen(4097, Multiplier::kAttentionFactor);
  EXPECT_FALSE(past->cacheable);
  EXPECT_FALSE(past->key == within->key);
}

RopeConfig Longrope() {
  RopeConfig config = {.rope_type = RopeType::kLongrope, .head_dim = 4};
  config.short_factor = {1, 1};
  config.long_factor = {1, 2};
  config.original_max_position_embeddings = 16;
  config.max_position_embeddings = 64;
  return config;
}

TEST(LongropeTest, BranchChangesPastTheOriginalLength) {
  const auto rope = MustResolve(Longrope());
  const auto within = rope->ForSeqLen(16, Multiplier::kAttentionFactor);
  const auto past = rope->ForSeqLen(17, Multiplier::kAttentionFactor);
  EXPECT_EQ(rope->ForSeqLen(1, Multiplier::kAttentionFactor), within);
  EXPECT_EQ(rope->ForSeqLen(1000000, Multiplier::kAttentionFactor), past);
  EXPECT_EQ(past->inv_freq[1] * 2, within->inv_freq[1]);
  EXPECT_TRUE(past->cacheable);
  EXPECT_TRUE(rope->DependsOnSeqLen());
}

TEST(LongropeTest, EqualListsDoNotDependOnTheLength) {
  RopeConfig config = Longrope();
  config.long_factor = config.short_factor;
  const auto rope = MustResolve(config);
  EXPECT_FALSE(rope->DependsOnSeqLen());
  EXPECT_EQ(rope->ForSeqLen(1, Multiplier::kOne)->key, rope->ForSeqLen(99, Multiplier::kOne)->key);
}

TEST(ForSeqLenTest, MultipliersAreTheAttentionFactorOneAndItsInverseIfThereIsOne) {
  RopeConfig config = Longrope();
  config.attention_factor = 0.8;
  const auto rope = MustResolve(config);
  EXPECT_EQ(rope->ForSeqLen(1, Multiplier::kAttentionFactor)->multiplier, 0.8);
  EXPECT_EQ(rope->ForSeqLen(1, Multiplier::kOne)->multiplier, 1);
  EXPECT_EQ(rope->ForSeqLen(1, Multiplier::kInverseAttentionFactor)->multiplier, 1.25);
  config.attention_factor = 0;
  const auto still = MustResolve(config);
  EXPECT_EQ(still->ForSeqLen(1, Multiplier::kInverseAttentionFactor), nullptr);
  EXPECT_EQ(still->ForSeqLen(1, Multiplier::kAttentionFactor)->multiplier, 0);
}

TEST(ForSeqLenTest, TrailingZerosAreDropped) {
  const RopeConfig config = {
      .rope_type = RopeType::kProportional, .head_dim = 64, .partial_rotary_factor = 0.25};
  const auto rope = MustResolve(config);
  EXPECT_EQ(rope->Evaluate(1).inv_freq.size(), 32u);
  EXPECT_EQ(rope->ForSeqLen(1, Multiplier::kAttentionFactor)->inv_freq.size(), 8u);
}

TEST(ResolvedRopeTest, KeptBytesCountWhatAScaleTakes) {
  RopeConfig config;
  config.head_dim = 65536;
  ASSERT_OK(plain, Resolve(config));
  config.xpos.emplace();
  ASSERT_OK(scaled, Resolve(config));
  EXPECT_GE((*scaled)->KeptBytes(), 4 * (*plain)->KeptBytes())
      << "twice the lists, for q and for k";
}

TEST(TableKeyTest, MeaningDecidesAndNotSpelling) {
  RopeConfig linear = {.rope_type = RopeType::kLinear, .head_dim = 64};
  linear.factor = 1;
  RopeConfig longer = {.head_dim = 128, .rotary_dim = 64};
  longer.max_position_embeddings = 77;
  longer.mrope = Mrope{.section = {8, 12, 12}};
  const RopeConfig plain = {.head_dim = 64};
  const auto key = MustResolve(plain)->ForSeqLen(1, Multiplier::kAttentionFactor)->key;
  EXPECT_EQ(MustResolve(linear)->ForSeqLen(9, Multiplier::kOne)->key, key);
  EXPECT_EQ(MustResolve(longer)->ForSeqLen(9, Multiplier::kAttentionFactor)->key, key);
}

TEST(TableKeyTest, EveryBitCounts) {
  const long double next = std::nextafter(0.5L, 1.0L);
  EXPECT_FALSE(TableKey({{0.5L}, 1}) == TableKey({{next}, 1}));
  EXPECT_FALSE(TableKey({{0.5L}, 1}) == TableKey({{0.5L}, std::nextafter(1.0, 2.0)}));
  EXPECT_FALSE(TableKey({{0.5L}, 1}) == TableKey({{0.5L, 0.5L}, 1}));
  EXPECT_TRUE(TableKey({{0.0L}, 1}) == TableKey({{-0.0L}, 1}));
}

// --- Formulas that no golden file covers ---

using Numbers = std::vector<long double>;

Numbers At(const RopeConfig& config, int64_t seq_len = 1) {
  return MustResolve(config)->Evaluate(seq_len).inv_freq;
}

void ExpectNear(const Numbers& got, const Numbers& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(std::abs(got[i] - want[i]), 1e-17L * want[i]) << i;
  }
}

RopeConfig Yarn() {
  RopeConfig config = {.rope_type = RopeType::kYarn, .rope_theta = 500000, .head_dim = 128};
  config.factor = 8;
  config.original_max_position_embeddings = 8192;
  config.beta_slow = 1;
  config.beta_fast = 4;
  return config;
}

TEST(YarnByTurnsTest, IsLlama3TimesTheAttentionFactor) {
  RopeConfig yarn = Yarn();
  yarn.ramp = YarnRamp::kTurns;
  RopeConfig llama3 = yarn;
  llama3.rope_type = RopeType::kLlama3;
  llama3.low_freq_factor = yarn.beta_slow;
  llama3.high_freq_factor = yarn.beta_fast;
  EXPECT_EQ(At(yarn), At(llama3));
  EXPECT_NEAR(MustResolve(yarn)->attention_factor(), 0.1 * std::log(8.0) + 1, 1e-15);
  EXPECT_EQ(MustResolve(llama3)->attention_factor(), 1);
}

TEST(AttnFactorTest, MultipliesTheComputedFactor) {
  RopeConfig config = Yarn();
  config.factor = 4;
  config.attn_factor = 0.8782488562869419;  // 1 / (0.1 ln 4 + 1), as one public model ships
  EXPECT_NEAR(MustResolve(config)->attention_factor(), 1, 1e-15);
  config.mscale = 0.5;
  config.mscale_all_dim = 2;
  config.attn_factor = 3;
  const double log4 = std::log(4.0);
  EXPECT_NEAR(MustResolve(config)->attention_factor(), 3 * (0.05 * log4 + 1) / (0.2 * log4 + 1),
              1e-15);
  config.attention_factor = 1.5;  // replaces all of them
  EXPECT_EQ(MustResolve(config)->attention_factor(), 1.5);
}

TEST(LongropeBranchTest, OneListForEveryLength) {
  const Numbers at_16 = At(Longrope(), 16);
  const Numbers at_17 = At(Longrope(), 17);
  RopeConfig config = Longrope();
  for (const auto& [branch, want] :
       {std::pair(LongropeBranch::kShort, at_16), std::pair(LongropeBranch::kLong, at_17)}) {
    config.longrope_branch = branch;
    const auto rope = MustResolve(config);
    EXPECT_FALSE(rope->DependsOnSeqLen());
    for (const int64_t seq_len : {1, 16, 17, 1000000}) {
      EXPECT_EQ(rope->Evaluate(seq_len).inv_freq, want);
      EXPECT_EQ(rope->ForSeqLen(seq_len, Multiplier::kOne)->inv_freq, want);
    }
  }
}

TEST(AlphaTest, EnlargesTheBaseAtEveryLength) {
  RopeConfig config = {.rope_type = RopeType::kDynamic, .head_dim = 128};
  config.alpha = 1000;
  const auto rope = MustResolve(config);  // neither factor nor length is needed
  EXPECT_FALSE(rope->DependsOnSeqLen());
  EXPECT_NEAR(rope->Evaluate(1).rope_theta, 11158839.925, 5e-4);
  EXPECT_EQ(rope->Evaluate(1).inv_freq, rope->Evaluate(1000000).inv_freq);
  EXPECT_EQ(rope->ForSeqLen(1000000, Multiplier::kOne), rope->ForSeqLen(1, Multiplier::kOne));
  EXPECT_TRUE(rope->ForSeqLen(1000000, Multiplier::kOne)->cacheable);
  ExpectNear({rope->Evaluate(1).inv_freq[63]},
             {std::pow(10000.0L * std::pow(1000.0L, 128.0L / 126), -126.0L / 128)});
}

TEST(NtkTest, FixedMultipliesTheBaseAndDividesEveryFrequency) {
  RopeConfig config = {.rope_type = RopeType::kNtk, .head_dim = 8};
  config.factor = 16;
  Numbers want;
  for (int i = 0; i < 4; ++i) {
    want.push_back(std::pow(160000.0L, -2.0L * i / 8) / 2);  // 16^(2/8) = 2
  }
  ExpectNear(At(config), want);
}

TEST(NtkTest, MixedDividesMoreAndMore) {
  RopeConfig config = {.rope_type = RopeType::kNtk, .head_dim = 8};
  config.factor = 16;
  config.mixed_b = 2;
  const Numbers plain = At({.head_dim = 8});
  Numbers want;
  // a = ln 16 / 4^2, so frequency i is divided by 16^((i+1)^2 / 16): the last by the factor.
  for (int i = 0; i < 4; ++i) {
    want.push_back(plain[static_cast<size_t>(i)] / std::pow(16.0L, (i + 1) * (i + 1) / 16.0L));
  }
  ExpectNear(At(config), want);
  config.mixed_b = 0;  // every frequency is divided by the factor
  RopeConfig linear = {.rope_type = RopeType::kLinear, .head_dim = 8};
  linear.factor = 16;
  ExpectNear(At(config), At(linear));
}

TEST(AxialTest, LinearDividesAndOtherTypesAreInvalid) {
  RopeConfig config = {.rope_type = RopeType::kLinear, .head_dim = 16};
  config.factor = 4;
  config.mrope = Mrope{.section = {0, 4, 4}, .layout = Mrope::Layout::kAxial};
  EXPECT_EQ(At(config)[4], 0.25);
  config.rope_type = RopeType::kNtk;
  EXPECT_THAT(Resolve(config), IsInvalid("rope_type: got ntk, want default or linear"));
}

TEST(MropeRulesTest, SectionsThatDoNotFitAreInvalid) {
  RopeConfig config = {.head_dim = 16};
  config.mrope = Mrope{.section = {2, 4, 2}, .layout = Mrope::Layout::kHwInterleaved};
  EXPECT_THAT(Resolve(config), IsInvalid("mrope_section: got [2, 4, 2], want equal counts of h"));
  config.mrope->section = {2, 3, 3};
  EXPECT_THAT(Resolve(config), IsOk());
  for (const auto layout : {Mrope::Layout::kSections, Mrope::Layout::kInterleaved,
                            Mrope::Layout::kHwInterleaved, Mrope::Layout::kAxial}) {
    config.mrope = Mrope{.section = {1, 3, 3}, .layout = layout};
    EXPECT_THAT(Resolve(config), IsInvalid("sum is rotary_dim/2, 8"));
  }
}

TEST(UnscaledTest, IsTheDefaultOfTheSameBase) {
  const auto rope = MustResolve(Yarn());
  EXPECT_EQ(UnscaledFrequencies(rope->config()), At({.rope_theta = 500000, .head_dim = 128}));
  RopeConfig proportional = {
      .rope_type = RopeType::kProportional, .head_dim = 8, .partial_rotary_factor = 0.5};
  proportional.factor = 2;
  const Numbers unscaled = UnscaledFrequencies(MustResolve(proportional)->config());
  EXPECT_EQ(unscaled[0], 1);
  EXPECT_EQ(unscaled[1], At({.head_dim = 8})[1]);
  EXPECT_THAT(std::vector(unscaled.begin() + 2, unscaled.end()), Each(0));
}

// --- Precision hf ---

std::shared_ptr<const ResolvedRope> ResolveHf(RopeConfig config) {
  config.precision = Precision::kHf;
  return MustResolve(config);
}

// float32 numbers that Hugging Face's code computed on one machine.
std::vector<float> EagerNumbers(const std::string& path) {
  std::ifstream file(path);
  const auto numbers = nlohmann::json::parse(file).at("inv_freq_f32").get<std::vector<double>>();
  return std::vector<float>(numbers.begin(), numbers.end());
}

float Ulp(float number) {
  return std::nextafter(number, INFINITY) - number;
}

TEST(EagerFrequenciesTest, AreThoseOfTheGoldenFilesButForVectorLibraries) {
  int64_t total = 0;
  int64_t equal = 0;
  double worst = 0;
  for (const std::string& path : rope::testing::GoldenFiles()) {
    ASSERT_OK(golden, rope::testing::ReadGoldenFile(path));
    ASSERT_OK(model, ModelConfig::Parse(golden->config));
    ASSERT_OK(layer, model->Layer({.layer_type = golden->layer_type}));
    const auto got = ResolveHf(layer->config)->Evaluate(golden->seq_len).inv_freq;
    const std::vector<float> want = EagerNumbers(path);
    ASSERT_EQ(got.size(), want.size()) << path;
    for (size_t i = 0; i < want.size(); ++i) {
      const auto number = static_cast<float>(got[i]);
      ASSERT_EQ(number, got[i]);  // a float32
      const double units = want[i] == number ? 0 : std::abs(number - want[i]) / Ulp(want[i]);
      EXPECT_LE(units, 2) << golden->name << " " << i;
      worst = std::max(worst, units);
      total += 1;
      equal += number == want[i] ? 1 : 0;
    }
  }
  std::printf("%ld of %ld inverse frequencies are bit-equal, the worst is %g units off\n", equal,
              total, worst);
  EXPECT_GE(equal * 100, total * 95);
}

TEST(EagerCosSinTest, RoundsThePositionTheAngleAndTheResult) {
  const float inv_freq = 0.7F;
  // 2^24 + 1 is not a float32.
  EXPECT_EQ(EagerCosSin(16777217, inv_freq, 1, DType::kFloat32).cos,
            EagerCosSin(16777216, inv_freq, 1, DType::kFloat32).cos);
  const float angle = 1000.0F * inv_freq;
  const auto cos = static_cast<float>(std::cos(static_cast<double>(angle)));
  const CosSin plain = EagerCosSin(1000, inv_freq, 1, DType::kFloat32);
  EXPECT_EQ(plain.cos, cos);
  EXPECT_EQ(plain.sin, static_cast<float>(std::sin(static_cast<double>(angle))));
  EXPECT_NE(plain.cos, ExactCosSin(1000, inv_freq, 1).cos);
  EXPECT_EQ(EagerCosSin(1000, inv_freq, 1.2F, DType::kFloat32).cos, cos * 1.2F);
  EXPECT_EQ(EagerCosSin(1000, inv_freq, 1.2F, DType::kFloat16).cos,
            FromFloat16(ToFloat16(cos * 1.2F)));
  EXPECT_EQ(EagerCosSin(1000, inv_freq, 1.2F, DType::kBFloat16).cos,
            FromBFloat16(ToBFloat16(cos * 1.2F)));
}

TEST(EagerPrecisionTest, DTypesHaveTablesOfTheirOwn) {
  const auto rope = ResolveHf({.head_dim = 64});
  const auto of = [&](DType dtype) {
    return rope->ForSeqLen(1, Multiplier::kAttentionFactor, {.dtype = dtype});
  };
  EXPECT_EQ(of(DType::kBFloat16)->eager, DType::kBFloat16);
  EXPECT_FALSE(of(DType::kBFloat16)->key == of(DType::kFloat16)->key);
  EXPECT_FALSE(of(DType::kBFloat16)->key == of(DType::kFloat32)->key);
  EXPECT_EQ(of(DType::kBFloat16), of(DType::kBFloat16));
  ASSERT_OK(exact, Resolve({.head_dim = 64}));
  const auto plain = (*exact)->ForSeqLen(1, Multiplier::kOne, {.dtype = DType::kBFloat16});
  EXPECT_EQ(plain, (*exact)->ForSeqLen(1, Multiplier::kOne));
  EXPECT_EQ(plain->eager, std::nullopt);
}

TEST(EagerPrecisionTest, DifferencesTurnByExactAnglesOfTheSameFrequencies) {
  const auto rope = ResolveHf({.head_dim = 64});
  const auto differences = rope->ForDifferences(1);
  EXPECT_EQ(differences->eager, std::nullopt);
  EXPECT_EQ(differences->inv_freq, rope->Evaluate(1).inv_freq);
}

}  // namespace
}  // namespace rope::kernels
