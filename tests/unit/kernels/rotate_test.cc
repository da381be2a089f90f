#include "kernels/rotate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "kernels/backends.h"
#include "kernels/dtype/element.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using ::rope::testing::IsOk;
using ::rope::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kOutOfRange = absl::StatusCode::kOutOfRange;

std::shared_ptr<const ResolvedRope> Rope(const RopeConfig& config) {
  return Resolve(config).value();
}

class RotateTest : public ::testing::TestWithParam<std::string> {
 protected:
  Rotator rotator_ = Rotator::Create(GetParam(), {}).value();
};
INSTANTIATE_TEST_SUITE_P(Backends, RotateTest, ::testing::ValuesIn([] {
                           std::vector<std::string> names = ListBackends();
                           std::erase(names, "cuda");
                           return names;
                         }()));

// 2 tokens x 3 heads x 4 channels, half pairing.
TEST_P(RotateTest, EveryChannelIsThatOfTheFormulaInEveryDType) {
  const std::vector<int64_t> positions = {7, 100000};
  const auto rope = Rope({.head_dim = 4});
  const auto at = rope->Evaluate(1);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const auto size = static_cast<size_t>(ElementBytes(dtype));
    std::vector<uint8_t> input(24 * size);
    std::vector<uint8_t> output(24 * size);
    for (size_t i = 0; i < 24; ++i) {
      WriteElement(0.25 * static_cast<double>(i) - 2, dtype, &input[i * size]);
    }
    ASSERT_THAT(rotator_.Rotate({.rope = rope, .positions = {positions}},
                                {{input.data(), output.data(), Side::kQ, dtype, {2, 3, 4}}}),
                IsOk());
    for (size_t vector = 0; vector < 6; ++vector) {
      for (size_t pair = 0; pair < 2; ++pair) {
        const auto read = [&](const std::vector<uint8_t>& bytes, size_t channel) {
          return ReadElement(&bytes[(vector * 4 + channel) * size], dtype);
        };
        const CosSin turn = ExactCosSin(positions[vector / 3], at.inv_freq[pair], 1);
        const double a = read(input, pair);
        const double b = read(input, pair + 2);
        const double bound = dtype == DType::kFloat32 ? 1e-6 : 0.03;
        EXPECT_NEAR(read(output, pair), a * turn.cos - b * turn.sin, bound);
        EXPECT_NEAR(read(output, pair + 2), b * turn.cos + a * turn.sin, bound);
      }
    }
  }
}

TEST_P(RotateTest, InPlaceInterleavedQAndKInOneCall) {
  const std::vector<int64_t> positions = {1};
  std::vector<float> q = {1, 0};
  std::vector<float> k = {1, 0, 0, 1};
  const Rotation rotation = {
      .rope = Rope({.head_dim = 2}), .pairing = Pairing::kInterleaved, .positions = {positions}};
  ASSERT_THAT(
      rotator_.Rotate(rotation, {{q.data(), q.data(), Side::kQ, DType::kFloat32, {1, 1, 2}},
                                 {k.data(), k.data(), Side::kK, DType::kFloat32, {1, 2, 2}}}),
      IsOk());
  const auto cos = static_cast<float>(std::cos(1.0));
  const auto sin = static_cast<float>(std::sin(1.0));
  EXPECT_THAT(q, ElementsAre(cos, sin));
  EXPECT_THAT(k, ElementsAre(cos, sin, -sin, cos));
}

TEST_P(RotateTest, ThreeAxesTurnEachFrequencyByItsOwnPosition) {
  const std::vector<int64_t> t = {1};
  const std::vector<int64_t> h = {20};
  const std::vector<int64_t> w = {300};
  RopeConfig config = {.head_dim = 6};
  config.mrope = Mrope{.section = {1, 1, 1}};
  const auto rope = Rope(config);
  std::vector<float> q = {1, 1, 1, 0, 0, 0};
  ASSERT_THAT(rotator_.Rotate({.rope = rope, .positions = {t, h, w}},
                              {{q.data(), q.data(), Side::kQ, DType::kFloat32, {1, 1, 6}}}),
              IsOk());
  const auto at = rope->Evaluate(1);
  const int64_t positions[] = {1, 20, 300};
  for (size_t i = 0; i < 3; ++i) {
    const CosSin turn = ExactCosSin(positions[i], at.inv_freq[i], 1);
    EXPECT_NEAR(q[i], turn.cos, 1e-6) << i;
    EXPECT_NEAR(q[i + 3], turn.sin, 1e-6) << i;
  }
}

TEST_P(RotateTest, LengthDecidesWhereTheEmbeddingFollowsIt) {
  RopeConfig config = {.rope_type = RopeType::kDynamic, .head_dim = 4};
  config.max_position_embeddings = 16;
  config.factor = 2;
  const std::vector<int64_t> positions = {3};
  const auto second_channel = [&](std::optional<int64_t> seq_len) {
    std::vector<float> q = {0, 1, 0, 0};
    const Rotation rotation = {.rope = Rope(config), .positions = {positions}, .seq_len = seq_len};
    EXPECT_THAT(
        rotator_.Rotate(rotation, {{q.data(), q.data(), Side::kQ, DType::kFloat32, {1, 1, 4}}}),
        IsOk());
    return q[3];
  };
  EXPECT_EQ(second_channel(std::nullopt), second_channel(16));
  EXPECT_NE(second_channel(std::nullopt), second_channel(1000));
}

TEST_P(RotateTest, NoTokensAndNoHeadsAreRight) {
  EXPECT_THAT(rotator_.Rotate({.rope = Rope({.head_dim = 4}), .positions = {{}}},
                              {{nullptr, nullptr, Side::kQ, DType::kFloat32, {0, 8, 4}}}),
              IsOk());
}

TEST_P(RotateTest, BadInputIsRefusedByTheNameOfItsField) {
  const std::vector<int64_t> two = {0, 1};
  const std::vector<int64_t> one = {0};
  const std::vector<int64_t> negative = {-1, 0};
  const std::vector<int64_t> large = {0, (int64_t{1} << 30) + 1};
  std::vector<float> q(8, 1);
  const auto rope = Rope({.head_dim = 4});
  const RotateTensor good = {q.data(), q.data(), Side::kQ, DType::kFloat32, {2, 1, 4}};
  const auto with = [&good](auto change) {
    RotateTensor tensor = good;
    change(tensor);
    return tensor;
  };
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const struct {
    Rotation rotation;
    RotateTensor tensor;
    absl::StatusCode code;
    const char* message;
  } cases[] = {
      {{.positions = {two}}, good, kInvalid, "rope: got nothing"},
      {{.rope = rope}, good, kInvalid, "positions: got 0 axes"},
      {{.rope = rope, .positions = {two, two, two}}, good, kInvalid, "the embedding has no mrope"},
      {{.rope = rope, .positions = {negative}}, good, kOutOfRange, "positions[0][0]: got -1"},
      {{.rope = rope, .positions = {large}}, good, kOutOfRange, "positions[0][1]: got 1073741825"},
      {{.rope = rope, .positions = {two}, .seq_len = 0}, good, kInvalid, "seq_len: got 0"},
      {{.rope = rope, .positions = {one}}, good, kInvalid, "tensors[0].shape: got [2, 1, 4]"},
      {{.rope = rope, .positions = {two}},
       with([](RotateTensor& t) {
         t.shape = {2, 1, 6};
       }),
       kInvalid,
       "tensors[0].shape: got a head_dim of 6, want 4"},
      {{.rope = rope, .positions = {two}},
       with([](RotateTensor& t) {
         t.shape = {2, -1, 4};
       }),
       kInvalid,
       "tensors[0].shape: got [2, -1, 4]"},
      {{.rope = rope, .positions = {two}},
       with([](RotateTensor& t) {
         t.shape = {2, kMax, 4};
       }),
       kInvalid,
       "want less than 2^63 bytes"},
      {{.rope = rope, .positions = {two}},
       with([](RotateTensor& t) { t.dtype = DType::kFloat8E4M3; }),
       kInvalid,
       "tensors[0].dtype: got fp8_e4m3"},
      {{.rope = rope, .positions = {two}},
       with([](RotateTensor& t) { t.output = nullptr; }),
       kInvalid,
       "tensors[0]: got no memory"},
  };
  for (const auto& [rotation, tensor, code, message] : cases) {
    EXPECT_THAT(rotator_.Rotate(rotation, {tensor}), StatusIs(code, HasSubstr(message)));
  }
  EXPECT_EQ(q, std::vector<float>(8, 1));
}

TEST(RotatorTest, BackendThatIsNotBuiltIsRefused) {
  EXPECT_THAT(Rotator::Create("abacus", {}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("backend: got abacus")));
}

}  // namespace
}  // namespace rope::kernels
