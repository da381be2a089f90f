#include "kernels/frequencies/eager_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/config/config_json.h"
#include "kernels/dtype/element.h"
#include "kernels/frequencies/frequencies.h"
#include "tests/support/golden_reader.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

std::shared_ptr<const ResolvedRope> MustResolve(RopeConfig config) {
  config.precision = Precision::kHf;
  auto rope = Resolve(config);
  EXPECT_THAT(rope, IsOk());
  return rope.ok() ? *rope : nullptr;
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
    const auto got = MustResolve(layer->config)->Evaluate(golden->seq_len).inv_freq;
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
  const auto rope = MustResolve({.head_dim = 64});
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

TEST(EagerPrecisionTest, XPosIsNotHuggingFaces) {
  RopeConfig config = {.head_dim = 8, .precision = Precision::kHf};
  config.xpos = XPos{};
  EXPECT_THAT(Resolve(config), IsInvalid("xpos: got xpos with precision hf"));
}

TEST(EagerPrecisionTest, DifferencesTurnByExactAnglesOfTheSameFrequencies) {
  const auto rope = MustResolve({.head_dim = 64});
  const auto differences = rope->ForDifferences(1);
  EXPECT_EQ(differences->eager, std::nullopt);
  EXPECT_EQ(differences->inv_freq, rope->Evaluate(1).inv_freq);
}

}  // namespace
}  // namespace rope::kernels
