#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/table_cache.h"
#include "tests/conformance/implementations.h"
#include "tests/conformance/rotation.h"
#include "tests/support/status_matchers.h"

namespace rope::testing {
namespace {

using Layout = RotationSpec::Layout;
using Norm = RotationSpec::Norm;
using kernels::DType;
using kernels::PairArithmetic;
using kernels::PairGeometry;
using kernels::Pairing;
using kernels::RotateJob;

// Relative positions, and every combination of a job's options, compared with the exact answer.

constexpr int64_t kDim = 128;

std::vector<float> RandomHead(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> head(kDim);
  for (float& value : head) value = normal(random);
  return head;
}

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

class PropertyTest : public ::testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    kernels::RopeConfig config;
    config.rope_type = kernels::RopeType::kYarn;
    config.rope_theta = 150000;
    config.head_dim = kDim;
    config.factor = 32;
    config.original_max_position_embeddings = 4096;
    auto resolved = kernels::Resolve(config);
    ASSERT_THAT(resolved, IsOk());
    frequencies_ = (*resolved)->ForSeqLen(1, kernels::Multiplier::kAttentionFactor);
  }

  std::vector<float> Rotate(const std::vector<float>& head, int64_t position) {
    kernels::TokenRows rows;
    EXPECT_THAT(tables_.AppendRows(*frequencies_, {&position, 1}, rows), IsOk());
    std::vector<float> output(head.size());
    kernels::RotateJob job;
    job.input = head.data();
    job.output = output.data();
    job.input_strides = job.output_strides = {kDim, kDim};
    job.tokens = job.heads = 1;
    job.head_dim = kDim;
    job.geometry = WholeHead(Pairing::kHalf, kDim);
    job.rows = rows.rows;
    EXPECT_THAT(backend_->Rotate({&job, 1}), IsOk());
    return output;
  }

  std::unique_ptr<kernels::Backend> backend_ = GetParam().make({.threads = 1});
  kernels::TableCache tables_{int64_t{1} << 22};
  std::shared_ptr<const kernels::Frequencies> frequencies_;
};

TEST_P(PropertyTest, ProductsDependOnTheDifferenceOfPositionsAlone) {
  const std::vector<float> q = RandomHead(1);
  const std::vector<float> k = RandomHead(2);
  const double scale = std::sqrt(Dot(q, q) * Dot(k, k));
  for (const int64_t distance : {0, 1, 77, 4096}) {
    const double near = Dot(Rotate(q, distance), Rotate(k, 0));
    for (const int64_t shift : {1, 1000, 123456, 900000000}) {
      const double far = Dot(Rotate(q, distance + shift), Rotate(k, shift));
      EXPECT_NEAR(far, near, 1e-6 * scale) << distance << " + " << shift;
    }
    // The product must not be constant.
    EXPECT_GT(std::fabs(near - Dot(q, k)), 1e-3) << distance;
  }
}

// --- every combination ---

// Splits a number into one choice after another.
class Choices {
 public:
  explicit Choices(uint32_t number) : left_(number) {}
  template <typename T, size_t kCount>
  T Of(const std::array<T, kCount>& values) {
    const uint32_t choice = left_ % kCount;
    left_ /= kCount;
    return values[choice];
  }
  bool Flag() { return Of(std::array{false, true}); }
  bool done() const { return left_ == 0; }

 private:
  uint32_t left_;
};

enum class Window { kWhole, kPartial, kTrailing, kMiddleGap };

PairGeometry GeometryOf(Window window, Pairing pairing, int64_t head_dim) {
  const int64_t pairs = head_dim / 4;
  PairGeometry geometry{.pairing = pairing, .pairs = pairs, .offset = 0, .partner = pairs};
  switch (window) {
    case Window::kWhole:
      return WholeHead(pairing, head_dim);
    case Window::kPartial:
      break;
    case Window::kTrailing:
      geometry.offset = head_dim - 2 * pairs;
      break;
    case Window::kMiddleGap:  // half pairs: between the first and the second channels too
      geometry.pairs = geometry.offset = head_dim / 8;
      geometry.partner = head_dim / 2;
      break;
  }
  return geometry;
}

// Sizes are mostly small. Large sizes are frequent enough to meet every choice.
void ChooseShape(std::mt19937& random, RotationSpec& spec) {
  const auto pick = [&random](const auto& values) { return values[random() % values.size()]; };
  spec.tokens = pick(std::array<int64_t, 6>{0, 1, 1, 2, 3, 5});
  spec.heads = random() % 64 == 0 ? 71 : pick(std::array<int64_t, 4>{1, 1, 2, 3});
  spec.head_dim = random() % 4 == 0 ? pick(std::array<int64_t, 6>{80, 96, 112, 250, 256, 512})
                                    : pick(std::array<int64_t, 2>{2, 32});
  spec.misalignment = pick(std::array<int64_t, 5>{0, 0, 1, 2, 16});
  spec.seed = static_cast<uint32_t>(random());
}

// The combination with that number; nullopt: it does not exist. Past the last, sets `*end`.
std::optional<RotationSpec> Combination(uint32_t number, std::mt19937& random, bool* end) {
  Choices choices(number);
  RotationSpec spec;
  const Pairing pairing = choices.Of(std::array{Pairing::kHalf, Pairing::kInterleaved});
  spec.dtype = choices.Of(std::array{DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                                     DType::kFloat8E4M3, DType::kFloat8E5M2});
  spec.output_dtype = choices.Of(std::array<std::optional<DType>, 6>{
      std::nullopt, DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3,
      DType::kFloat8E5M2});
  const Window window = choices.Of(
      std::array{Window::kWhole, Window::kPartial, Window::kTrailing, Window::kMiddleGap});
  spec.layout = choices.Of(std::array{Layout::kTokenMajor, Layout::kHeadMajor, Layout::kPadded});
  spec.in_place = choices.Flag();
  spec.conjugate = choices.Flag();
  spec.norm = choices.Of(std::array{Norm::kNone, Norm::kPlain, Norm::kWeighted});
  spec.scale = choices.Of(std::array{1.0f, 0.08838835f});
  spec.token_scales = choices.Flag();
  spec.output_scale = choices.Of(std::array{1.0f, 0.0123f});
  *end = !choices.done();
  if (*end || (spec.in_place && spec.stored() != spec.dtype)) return std::nullopt;
  ChooseShape(random, spec);
  spec.geometry = GeometryOf(window, pairing, spec.head_dim);
  return spec;
}

// Runs jobs in batches, so that different kinds of jobs share a batch.
TEST_P(PropertyTest, EveryCombinationOfChoicesIsTheExactAnswer) {
  constexpr size_t kBatch = 61;
  const bool takes_float8 = GetParam().TakesFloat8();
  std::mt19937 random(20240601);
  std::vector<Rotation> batch;
  int64_t combinations = 0;
  bool end = false;
  for (uint32_t number = 0; !end; ++number) {
    const auto spec = Combination(number, random, &end);
    if (spec && (takes_float8 || !IsFloat8(spec->dtype))) batch.emplace_back(*spec);
    if (batch.size() < kBatch && !end) continue;
    std::vector<kernels::RotateJob> jobs;
    for (const Rotation& rotation : batch) jobs.push_back(rotation.job());
    ASSERT_THAT(backend_->Rotate(jobs), IsOk());
    for (const Rotation& rotation : batch) {
      ASSERT_EQ(rotation.Check(), "");
      if (takes_float8) {
        ASSERT_EQ(rotation.CheckSaturated(), "");
      }
    }
    combinations += static_cast<int64_t>(batch.size());
    batch.clear();
  }
  const int dtypes = takes_float8 ? 5 : 3;
  EXPECT_EQ(combinations, 2 * (dtypes * 6 + dtypes * 2) * 4 * 3 * 2 * 3 * 2 * 2 * 2);
}

INSTANTIATE_TEST_SUITE_P(All, PropertyTest, ::testing::ValuesIn(Implementations()),
                         ImplementationName);

// The arithmetic of kernels/dtype/dtype.h other than the plain turn, over every backend and every
// instruction set: a rotation in the rounded steps of eager code, and the addition of a sinusoidal
// table.

constexpr std::array kDTypes = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr std::array kPairings = {Pairing::kHalf, Pairing::kInterleaved};

// A whole head; partial; trailing; with channels between the two of a pair.
std::array<PairGeometry, 4> Geometries(Pairing pairing, int64_t head_dim) {
  const int64_t quarter = head_dim / 4;
  const int64_t eighth = head_dim / 8;
  return {
      WholeHead(pairing, head_dim),
      PairGeometry{.pairing = pairing, .pairs = quarter, .offset = 0, .partner = quarter},
      PairGeometry{.pairing = pairing,
                   .pairs = quarter,
                   .offset = head_dim - 2 * quarter,
                   .partner = quarter},
      PairGeometry{.pairing = pairing, .pairs = eighth, .offset = eighth, .partner = head_dim / 2}};
}

// Irregular shapes, some with sizes and addresses that 16-byte accesses cannot serve.
void ReadShape(uint32_t number, RotationSpec& spec) {
  spec.tokens = std::array<int64_t, 5>{1, 3, 0, 2, 5}[number % 5];
  spec.heads = number % 97 == 0 ? 71 : std::array<int64_t, 3>{1, 2, 3}[number % 3];
  spec.head_dim =
      std::array<int64_t, 11>{2, 32, 80, 128, 2, 96, 32, 112, 250, 256, 512}[number % 11];
  spec.misalignment = std::array<int64_t, 4>{0, 1, 2, 16}[number % 4];
  spec.seed = number + 1;
}

class PairArithmeticTest : public ::testing::TestWithParam<Implementation> {
 protected:
  void Rotate(const std::vector<Rotation>& rotations) {
    std::vector<RotateJob> jobs;
    for (const Rotation& rotation : rotations) jobs.push_back(rotation.job());
    ASSERT_THAT(backend_->Rotate(jobs), IsOk());
  }
  void Rotate(const Rotation& rotation) {
    const RotateJob job = rotation.job();
    ASSERT_THAT(backend_->Rotate({&job, 1}), IsOk());
  }

  // True if the result is bit-equal to the reference backend's.
  static void ExpectOneAnswer(const Rotation& rotation) {
    const Rotation again(rotation.spec());
    const RotateJob job = again.job();
    ASSERT_THAT(Listed("reference", "").make({})->Rotate({&job, 1}), IsOk());
    EXPECT_EQ(rotation.OutputBytes(), again.OutputBytes()) << rotation.spec().Describe();
  }

  // Tests every choice other than the arithmetic; `beside(spec, number)` adds fused operations.
  template <typename Beside>
  std::vector<Rotation> EveryCombination(PairArithmetic arithmetic, int besides,
                                         const Beside& beside) {
    std::vector<DType> dtypes(kDTypes.begin(), kDTypes.end());
    if (arithmetic == PairArithmetic::kAdd && GetParam().TakesFloat8()) {
      dtypes.insert(dtypes.end(), {DType::kFloat8E4M3, DType::kFloat8E5M2});
    }
    std::vector<Rotation> rotations;
    uint32_t number = 0;
    for (const Pairing pairing : kPairings) {
      for (const DType dtype : dtypes) {
        for (const Layout layout : {Layout::kTokenMajor, Layout::kHeadMajor, Layout::kPadded}) {
          for (size_t window = 0; window < 4; ++window) {
            for (int choice = 0; choice < 4 * besides; ++choice) {
              RotationSpec spec{.dtype = dtype, .layout = layout};
              spec.arithmetic = arithmetic;
              ReadShape(number++, spec);
              spec.geometry = Geometries(pairing, spec.head_dim)[window];
              spec.conjugate = choice % 2 == 1;
              spec.in_place = choice / 2 % 2 == 1;
              beside(spec, choice / 4);
              if (spec.in_place && spec.stored() != dtype) continue;
              rotations.emplace_back(spec);
            }
          }
        }
      }
    }
    return rotations;
  }

  std::unique_ptr<kernels::Backend> backend_ = GetParam().make({.threads = 2});
};

INSTANTIATE_TEST_SUITE_P(All, PairArithmeticTest, ::testing::ValuesIn(Implementations()),
                         ImplementationName);

TEST_P(PairArithmeticTest, StepwiseHasOneAnswerInEveryCombination) {
  const auto rotations =
      EveryCombination(PairArithmetic::kTurnStepwise, 4, [](RotationSpec& spec, int choice) {
        if (choice == 1) spec.scale = 0.0884f;
        if (choice == 2) spec.output_dtype = DType::kFloat32;
        if (choice == 3) spec.output_dtype = DType::kFloat8E4M3;
      });
  Rotate(rotations);
  for (const Rotation& rotation : rotations) {
    ASSERT_EQ(rotation.Check(), "");
    if (rotation.spec().OnlyPairs()) ExpectOneAnswer(rotation);
  }
}

// (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24, which the product's rounding loses.
TEST_P(PairArithmeticTest, StepwiseFloat32ProductsAreNotFused) {
  for (const Pairing pairing : kPairings) {
    RotationSpec spec{.head_dim = 128, .geometry = WholeHead(pairing, 128)};
    spec.arithmetic = PairArithmetic::kTurnStepwise;
    Rotation rotation(spec);
    const int64_t second = pairing == Pairing::kHalf ? 64 : 1;
    for (int64_t pair = 0; pair < 64; ++pair) {
      const int64_t first = pairing == Pairing::kHalf ? pair : 2 * pair;
      rotation.SetChannel(first, 1 + 0x1p-12);
      rotation.SetChannel(first + second, 1 + 0x1p-11);
      rotation.SetRow(pair, 1 + 0x1p-12f, 1);
    }
    Rotate(rotation);
    for (int64_t pair = 0; pair < 64; ++pair) {
      const int64_t first = pairing == Pairing::kHalf ? pair : 2 * pair;
      ASSERT_EQ(rotation.Output(1, 1, first), 0) << pair;
      // 1 + 2^-11 + 2^-12 + 2^-23 from b c, and 1 + 2^-12 from a s.
      ASSERT_EQ(rotation.Output(1, 1, first + second), 2 + 0x1p-10) << pair;
    }
  }
}

// bf16 has 8 significant bits: 1.0078125 * 0.99609375 = 1.00388... rounds to 1.0 or 1.0078125. A
// sum of two such rounded products differs from a sum that is rounded once.
TEST_P(PairArithmeticTest, StepwiseSixteenBitProductsAreRoundedBeforeTheSum) {
  RotationSpec spec{
      .head_dim = 64, .dtype = DType::kBFloat16, .geometry = WholeHead(Pairing::kHalf, 64)};
  for (const bool stepwise : {false, true}) {
    spec.arithmetic = stepwise ? PairArithmetic::kTurnStepwise : PairArithmetic::kTurn;
    Rotation rotation(spec);
    for (int64_t pair = 0; pair < 32; ++pair) {
      rotation.SetChannel(pair, 1.0078125);
      rotation.SetChannel(pair + 32, 1.0);
      rotation.SetRow(pair, 0.99609375f, 1.0f);
    }
    Rotate(rotation);
    EXPECT_EQ(rotation.Output(2, 1, 5), stepwise ? 0.0 : 1.0078125 * 0.99609375 - 1);
  }
}

TEST_P(PairArithmeticTest, StepwiseKeepsDenormalsInfinitiesAndNaN) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::array specials = {infinity, -infinity, std::nan(""), 0.0,    -0.0, 1e-40,      1.2e-41,
                               -6e-8,    1.5e-7,    3e-39,        -1e-40, 6e-5, 65504.0 / 4};
  constexpr int64_t kCount = specials.size();
  for (const DType dtype : kDTypes) {
    for (const Pairing pairing : kPairings) {
      RotationSpec spec{.tokens = kCount, .heads = kCount, .head_dim = 72, .dtype = dtype};
      spec.geometry = WholeHead(pairing, 72);
      spec.arithmetic = PairArithmetic::kTurnStepwise;
      Rotation rotation(spec);
      for (int64_t i = 0; i < kCount; ++i) {
        for (int64_t j = 0; j < kCount; ++j) {
          for (int64_t pair = 0; pair < 36; ++pair) {
            const bool half = pairing == Pairing::kHalf;
            rotation.SetElement(i, j, half ? pair : 2 * pair, specials[static_cast<size_t>(i)]);
            rotation.SetElement(i, j, half ? pair + 36 : 2 * pair + 1,
                                specials[static_cast<size_t>(j)]);
          }
        }
      }
      Rotate(rotation);
      EXPECT_EQ(rotation.Check(), "");
    }
  }
}

TEST_P(PairArithmeticTest, AddIsOneRoundedSumInEveryCombination) {
  const auto rotations =
      EveryCombination(PairArithmetic::kAdd, 6, [](RotationSpec& spec, int choice) {
        if (choice == 1) spec.scale = 0.0884f;
        if (choice == 2) spec.output_dtype = DType::kBFloat16;
        if (choice == 3) spec.output_dtype = DType::kFloat8E5M2;
        if (choice == 4) spec.norm = Norm::kWeighted;
        if (choice == 5) spec.token_scales = true;
      });
  Rotate(rotations);
  for (const Rotation& rotation : rotations) ASSERT_EQ(rotation.Check(), "");
}

TEST_P(PairArithmeticTest, SineGoesToTheFirstChannelAndCosineToTheSecond) {
  for (const Pairing pairing : kPairings) {
    RotationSpec spec{.head_dim = 64, .geometry = WholeHead(pairing, 64)};
    spec.arithmetic = PairArithmetic::kAdd;
    Rotation rotation(spec);
    for (int64_t channel = 0; channel < 64; ++channel) rotation.SetChannel(channel, 10);
    for (int64_t pair = 0; pair < 32; ++pair) rotation.SetRow(pair, 0.5f, 0.25f);
    Rotate(rotation);
    for (int64_t pair = 0; pair < 32; ++pair) {
      const bool half = pairing == Pairing::kHalf;
      EXPECT_EQ(rotation.Output(0, 1, half ? pair : 2 * pair), 10.25) << pair;
      EXPECT_EQ(rotation.Output(0, 1, half ? pair + 32 : 2 * pair + 1), 10.5) << pair;
    }
  }
}

// Exceeds the caches, a slice and a chunk; every arithmetic in one batch.
TEST_P(PairArithmeticTest, LargeBatchOfEveryArithmetic) {
  std::vector<Rotation> rotations;
  uint32_t seed = 1;
  for (const PairArithmetic arithmetic :
       {PairArithmetic::kTurn, PairArithmetic::kTurnStepwise, PairArithmetic::kAdd}) {
    for (const Layout layout : {Layout::kTokenMajor, Layout::kHeadMajor}) {
      RotationSpec spec{.tokens = 150, .heads = 40, .head_dim = 128, .layout = layout};
      spec.dtype = kDTypes[seed % 3];
      spec.geometry = {.pairing = kPairings[seed % 2], .pairs = 32, .offset = 64, .partner = 32};
      spec.arithmetic = arithmetic;
      spec.in_place = seed % 4 == 0;
      spec.seed = seed++;
      rotations.emplace_back(spec);
    }
  }
  Rotate(rotations);
  for (const Rotation& rotation : rotations) EXPECT_EQ(rotation.Check(), "");
}

}  // namespace
}  // namespace rope::testing
