// The contract of kernels/backend/backend.h, tested over every backend and every instruction set of
// this machine.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "kernels/backend/backend.h"
#include "kernels/backends.h"
#include "kernels/dtype/element.h"
#include "tests/conformance/implementations.h"
#include "tests/conformance/rotation.h"
#include "tests/support/status_matchers.h"

namespace rope::testing {
namespace {

using kernels::DType;
using kernels::PairGeometry;
using kernels::Pairing;
using kernels::RotateJob;
using Layout = RotationSpec::Layout;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3,
                             DType::kFloat8E5M2};
constexpr Pairing kPairings[] = {Pairing::kHalf, Pairing::kInterleaved};

class BackendContractTest : public ::testing::TestWithParam<Implementation> {
 protected:
  std::unique_ptr<kernels::Backend> backend_ = GetParam().make({.threads = 2});
  const bool takes_float8_ = GetParam().TakesFloat8();
  const absl::Span<const DType> inputs_{kDTypes, takes_float8_ ? size_t{5} : size_t{3}};

  void Rotate(const Rotation& rotation) {
    const RotateJob job = rotation.job();
    ASSERT_THAT(backend_->Rotate({&job, 1}), IsOk());
  }
  void RotateAndCheck(const RotationSpec& spec) {
    const Rotation rotation(spec);
    Rotate(rotation);
    Check(rotation);
  }
  void Check(const Rotation& rotation) const {
    EXPECT_EQ(rotation.Check(), "");
    if (takes_float8_) {
      EXPECT_EQ(rotation.CheckSaturated(), "");
    }
  }
  // Tests every dtype and pairing (with its geometry), in place and out of place.
  template <typename GeometryOf>
  void RotateAndCheckAll(RotationSpec spec, const GeometryOf& geometry) {
    for (const DType dtype : inputs_) {
      for (const Pairing pairing : kPairings) {
        for (const bool in_place : {false, true}) {
          spec.dtype = dtype;
          spec.geometry = geometry(pairing);
          spec.in_place = in_place;
          RotateAndCheck(spec);
        }
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(All, BackendContractTest, ::testing::ValuesIn(Implementations()),
                         ImplementationName);

TEST_P(BackendContractTest, NamesItselfAndWhatItRunsOn) {
  EXPECT_EQ(backend_->name(), GetParam().backend_name);
  EXPECT_NE(backend_->detail(), "");
}

TEST_P(BackendContractTest, EveryCountOfTokensAndHeads) {
  for (const int64_t tokens : {0, 1, 3, 65}) {
    for (const int64_t heads : {0, 1, 3, 71}) {
      RotateAndCheckAll({.tokens = tokens, .heads = heads, .head_dim = 32},
                        [](Pairing pairing) { return WholeHead(pairing, 32); });
    }
  }
}

TEST_P(BackendContractTest, EveryHeadSize) {
  for (const int64_t head_dim : {2, 4, 6, 10, 18, 34, 64, 66, 80, 96, 112, 128, 256, 512}) {
    RotateAndCheckAll({.head_dim = head_dim},
                      [&](Pairing pairing) { return WholeHead(pairing, head_dim); });
  }
}

TEST_P(BackendContractTest, EveryCountOfPairsUpToTwoSteps) {
  for (int64_t pairs = 0; pairs <= 66; ++pairs) {
    RotateAndCheckAll({.tokens = 2, .heads = 1, .head_dim = 136}, [&](Pairing pairing) {
      return PairGeometry{.pairing = pairing, .pairs = pairs, .offset = 3, .partner = pairs};
    });
  }
}

TEST_P(BackendContractTest, ChannelsOutsideThePairsAreCopied) {
  const std::pair<PairGeometry, int64_t> cases[] = {
      {{.pairs = 16, .offset = 0, .partner = 16}, 128},  // partial rotary
      {{.pairs = 20, .offset = 0, .partner = 20},
       80},  // the same with a size that is no power of two
      {{.pairs = 32, .offset = 128, .partner = 32}, 192},  // trailing window
      {{.pairs = 14, .offset = 7, .partner = 14}, 100},    // a window in the middle
      {{.pairs = 16, .offset = 0, .partner = 32}, 64},  // proportional: zero frequencies left out
      {{.pairs = 0, .offset = 0, .partner = 32}, 64},   // no pairs
  };
  for (const auto& [geometry, head_dim] : cases) {
    RotateAndCheckAll({.tokens = 5, .heads = 3, .head_dim = head_dim}, [&](Pairing pairing) {
      PairGeometry result = geometry;
      result.pairing = pairing;
      return result;
    });
  }
}

TEST_P(BackendContractTest, EveryLayoutAndAlignment) {
  for (const Layout layout : {Layout::kTokenMajor, Layout::kHeadMajor, Layout::kPadded}) {
    for (const int64_t misalignment : {0, 1, 2, 4, 16, 63}) {
      for (const int64_t head_dim : {64, 80}) {
        RotateAndCheckAll({.tokens = 7,
                           .heads = 5,
                           .head_dim = head_dim,
                           .layout = layout,
                           .misalignment = misalignment},
                          [&](Pairing pairing) { return WholeHead(pairing, head_dim); });
      }
    }
  }
}

TEST_P(BackendContractTest, InputAndOutputMayHaveDifferentStrides) {
  const Rotation from({.tokens = 9,
                       .heads = 4,
                       .geometry = WholeHead(Pairing::kHalf, 64),
                       .layout = Layout::kHeadMajor});
  const Rotation to({.tokens = 9, .heads = 4, .geometry = WholeHead(Pairing::kHalf, 64)});
  RotateJob job = from.job();
  const RotateJob other = to.job();
  ASSERT_THAT(backend_->Rotate({&other, 1}), IsOk());
  std::vector<float> expected(9 * 4 * 64);
  ASSERT_THAT(backend_->Rotate({&job, 1}), IsOk());
  std::memcpy(expected.data(), job.output, expected.size() * sizeof(float));
  job.output = other.output;
  job.output_strides = other.output_strides;
  ASSERT_THAT(backend_->Rotate({&job, 1}), IsOk());
  for (int64_t token = 0; token < 9; ++token) {
    for (int64_t head = 0; head < 4; ++head) {
      EXPECT_EQ(std::memcmp(static_cast<const float*>(job.output) + (token * 4 + head) * 64,
                            expected.data() + (head * 9 + token) * 64, 64 * sizeof(float)),
                0)
          << token << " " << head;
    }
  }
}

TEST_P(BackendContractTest, ConjugateTurnsTheOtherWay) {
  for (const int64_t head_dim : {64, 80}) {
    RotateAndCheckAll({.head_dim = head_dim, .conjugate = true},
                      [&](Pairing pairing) { return WholeHead(pairing, head_dim); });
  }
}

TEST_P(BackendContractTest, ConjugateAfterRotateRestores) {
  for (const Pairing pairing : kPairings) {
    RotationSpec spec{.tokens = 4, .head_dim = 80, .geometry = WholeHead(pairing, 80)};
    const Rotation forward(spec);
    Rotate(forward);
    spec.conjugate = true;
    Rotation back(spec);
    back.TakeInput(forward);
    Rotate(back);
    for (int64_t token = 0; token < spec.tokens; ++token) {
      for (int64_t channel = 0; channel < 80; ++channel) {
        EXPECT_NEAR(back.Output(token, 1, channel) / (1.25 * 1.25),
                    forward.Input(token, 1, channel), 2e-6);
      }
    }
  }
}

TEST_P(BackendContractTest, RaggedBatchOfDifferentJobs) {
  std::vector<Rotation> rotations;
  std::vector<RotateJob> jobs;
  uint32_t seed = 1;
  for (const int64_t tokens : {1, 0, 70, 2, 513}) {
    for (const DType dtype : inputs_) {
      for (const Pairing pairing : kPairings) {
        const int64_t head_dim = 64 + 16 * (seed % 4);
        rotations.emplace_back(RotationSpec{.tokens = tokens,
                                            .heads = 1 + seed % 7,
                                            .head_dim = head_dim,
                                            .dtype = dtype,
                                            .geometry = WholeHead(pairing, head_dim),
                                            .in_place = seed % 3 == 0,
                                            .conjugate = seed % 5 == 0,
                                            .misalignment = seed % 2,
                                            .seed = seed});
        ++seed;
      }
    }
  }
  for (const Rotation& rotation : rotations) jobs.push_back(rotation.job());
  ASSERT_THAT(backend_->Rotate(jobs), IsOk());
  for (const Rotation& rotation : rotations) Check(rotation);
}

TEST_P(BackendContractTest, EmptyBatchIsOk) {
  EXPECT_THAT(backend_->Rotate({}), IsOk());
}

// Larger than any piece of a backend, and written past the caches; once aligned, so that streaming
// stores may be used, and once unaligned.
TEST_P(BackendContractTest, LargeBatch) {
  for (const Layout layout : {Layout::kTokenMajor, Layout::kHeadMajor}) {
    for (const Pairing pairing : kPairings) {
      RotateAndCheck({.tokens = 300,
                      .heads = 71,
                      .head_dim = 128,
                      .dtype = DType::kFloat32,
                      .geometry = WholeHead(pairing, 128),
                      .layout = layout,
                      .streams = true});
      RotateAndCheck({.tokens = 300,
                      .heads = 71,
                      .head_dim = 256,
                      .dtype = pairing == Pairing::kHalf ? DType::kBFloat16 : DType::kFloat16,
                      .geometry = {.pairing = pairing, .pairs = 64, .offset = 64, .partner = 64},
                      .layout = layout,
                      .streams = true,
                      .misalignment = layout == Layout::kTokenMajor ? 0 : 2});
      RotateAndCheck({.tokens = 300,
                      .heads = 71,
                      .head_dim = 256,
                      .dtype = inputs_.back(),
                      .geometry = {.pairing = pairing, .pairs = 64, .offset = 64, .partner = 64},
                      .layout = layout,
                      .streams = true});
    }
  }
}

TEST_P(BackendContractTest, OneTokenLargerThanASlice) {
  RotateAndCheckAll({.tokens = 2, .heads = 1500, .head_dim = 128},
                    [](Pairing pairing) { return WholeHead(pairing, 128); });
}

TEST_P(BackendContractTest, SpecialNumbersFollowTheArithmetic) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double denormal = GetParam().flushes_bfloat16_denormals ? 1e-30 : 1e-40;
  const double specials[] = {infinity,      -infinity, nan,          -nan,    0.0,
                             -0.0,          denormal,  denormal / 8, -6e-8,   1.5e-7,
                             denormal * 30, -denormal, 6e-5,         6.1e-05, 65504.0 / 4,
                             0x1p-9,        -0x5p-9,   0x3p-16,      448};
  constexpr auto kCount = static_cast<int64_t>(std::size(specials));
  for (const DType dtype : inputs_) {
    for (const Pairing pairing : kPairings) {
      Rotation rotation({.tokens = kCount,
                         .heads = kCount,
                         .head_dim = 72,
                         .dtype = dtype,
                         .geometry = WholeHead(pairing, 72)});
      for (int64_t i = 0; i < kCount; ++i) {
        for (int64_t j = 0; j < kCount; ++j) {
          for (int64_t channel = 0; channel < 36; ++channel) {
            const bool half = pairing == Pairing::kHalf;
            rotation.SetElement(i, j, half ? channel : 2 * channel, specials[i]);
            rotation.SetElement(i, j, half ? channel + 36 : 2 * channel + 1, specials[j]);
          }
        }
      }
      Rotate(rotation);
      Check(rotation);
    }
  }
}

// A caller's table may hold any NaN, including one whose bits overflow when they are rounded up.
TEST_P(BackendContractTest, NaNInARowStaysNaN) {
  for (const uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7fc00001u, 0x7f800001u}) {
    float nan = 0;
    std::memcpy(&nan, &bits, sizeof(nan));
    for (const DType dtype : inputs_) {
      for (const Pairing pairing : kPairings) {
        Rotation rotation({.head_dim = 72, .dtype = dtype, .geometry = WholeHead(pairing, 72)});
        for (int64_t pair = 0; pair < 36; pair += 3) rotation.SetRow(pair, nan, 0.5f);
        for (int64_t pair = 1; pair < 36; pair += 3) rotation.SetRow(pair, 0.5f, nan);
        Rotate(rotation);
        Check(rotation);
      }
    }
  }
}

// Every 16-bit number times factors whose products a float holds exactly, so that the result has
// one right value. Includes ties, overflow and denormals.
TEST_P(BackendContractTest, SixteenBitNumbersRoundToNearestEven) {
  constexpr int64_t kTokens = 1024;
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const Pairing pairing : kPairings) {
      for (const float factor : {1.0f, -1.0f, 0.5f, 1.0078125f, 0.6640625f, 0.001953125f, 3.0f}) {
        Rotation rotation({.tokens = kTokens,
                           .heads = 1,
                           .head_dim = 128,
                           .dtype = dtype,
                           .geometry = WholeHead(pairing, 128)});
        for (int64_t pair = 0; pair < 64; ++pair) rotation.SetRow(pair, factor, 0.0f);
        const bool half = pairing == Pairing::kHalf;
        const auto number = [&](int64_t bits) -> double {
          const uint16_t narrow = static_cast<uint16_t>(bits);
          return dtype == DType::kFloat16 ? kernels::FromFloat16(narrow)
                                          : kernels::FromBFloat16(narrow);
        };
        for (int64_t bits = 0; bits < 65536; ++bits) {
          const int64_t pair = bits % 64;
          rotation.SetElement(bits / 64, 0, half ? pair : 2 * pair, number(bits));
          rotation.SetElement(bits / 64, 0, half ? pair + 64 : 2 * pair + 1, 0.0);
        }
        Rotate(rotation);
        for (int64_t bits = 0; bits < 65536; ++bits) {
          const int64_t pair = bits % 64;
          const double got = rotation.Output(bits / 64, 0, half ? pair : 2 * pair);
          uint8_t rounded[2];
          WriteElement(number(bits) * factor, dtype, rounded);
          const double want = ReadElement(rounded, dtype);
          const bool flushed = GetParam().flushes_bfloat16_denormals && got == 0 &&
                               dtype == DType::kBFloat16 &&
                               std::abs(number(bits) * factor) < std::ldexp(1.0, -126);
          ASSERT_TRUE(flushed || got == want || (std::isnan(got) && std::isnan(want)))
              << Name(dtype) << " " << number(bits) << " * " << factor << ": got " << got
              << ", want " << want;
        }
      }
    }
  }
}

// Every 8-bit code beside every other one, in place, times factors whose products a float holds
// exactly. Includes ties, saturation, denormals, infinities and NaN.
TEST_P(BackendContractTest, EightBitCodesRoundToNearestEven) {
  if (!takes_float8_) GTEST_SKIP() << "takes no fp8 tensors";
  constexpr float kFactors[] = {1.0f, -1.0f, 0.5f, 1.0625f, 0.6640625f, 0.001953125f, 3.0f};
  for (const DType dtype : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    for (const Pairing pairing : kPairings) {
      for (const float factor : kFactors) {
        const bool half = pairing == Pairing::kHalf;
        Rotation rotation({.tokens = 1,
                           .heads = 256,
                           .head_dim = 512,
                           .dtype = dtype,
                           .geometry = WholeHead(pairing, 512),
                           .in_place = true});
        int64_t saturated = 0;
        for (int64_t pair = 0; pair < 256; ++pair) {
          rotation.SetRow(pair, factor, 0.0f);
          for (int64_t head = 0; head < 256; ++head) {
            const auto code = static_cast<uint8_t>(pair);
            rotation.SetCode(0, head, half ? pair : 2 * pair, code);
            rotation.SetCode(0, head, half ? pair + 256 : 2 * pair + 1, static_cast<uint8_t>(head));
          }
        }
        Rotate(rotation);
        for (int64_t head = 0; head < 256; ++head) {
          for (int64_t pair = 0; pair < 256; ++pair) {
            const int64_t channels[] = {half ? pair : 2 * pair, half ? pair + 256 : 2 * pair + 1};
            for (size_t i = 0; i < 2; ++i) {
              // An infinity times the sine of 0 is NaN.
              const double exact = rotation.Input(0, head, channels[i]) * factor +
                                   0 * rotation.Input(0, head, channels[1 - i]);
              const double want = kernels::RoundedTo(exact, dtype);
              const double got = rotation.Output(0, head, channels[i]);
              saturated += std::abs(exact) > (dtype == DType::kFloat8E4M3 ? 448 : 57344) ? 1 : 0;
              ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
                  << Name(dtype) << " " << exact << ": got " << got << ", want " << want;
            }
          }
        }
        EXPECT_EQ(rotation.saturated(), saturated);
      }
    }
  }
}

// Channels that are copied saturate nothing, whatever they hold, nor do those of an addition.
TEST_P(BackendContractTest, InfinitiesOutsideThePairsAreCopiedAndNotCounted) {
  if (!takes_float8_) GTEST_SKIP() << "takes no fp8 tensors";
  for (const auto arithmetic : {kernels::PairArithmetic::kTurn, kernels::PairArithmetic::kAdd}) {
    for (const bool in_place : {false, true}) {
      RotationSpec spec{.head_dim = 80,
                        .dtype = DType::kFloat8E5M2,
                        .geometry = {.pairs = 20, .offset = 3, .partner = 30},
                        .in_place = in_place};
      spec.arithmetic = arithmetic;
      Rotation rotation(spec);
      for (const int64_t channel : {0, 2, 23, 32, 53, 79}) {
        rotation.SetCode(1, 1, channel, channel % 2 == 0 ? 0x7c : 0xfd);
      }
      Rotate(rotation);
      EXPECT_EQ(rotation.Check(), "");
      EXPECT_EQ(rotation.saturated(), 0);
    }
  }
}

TEST_P(BackendContractTest, EveryDTypeIsStoredAsEveryOther) {
  for (const DType output : kDTypes) {
    for (const DType dtype : inputs_) {
      for (const int64_t head_dim : {64, 80, 250}) {
        RotateAndCheck({.tokens = 5,
                        .heads = 3,
                        .head_dim = head_dim,
                        .dtype = dtype,
                        .geometry = {.pairs = 16, .offset = 9, .partner = 20},
                        .layout = Layout::kHeadMajor,
                        .output_dtype = output,
                        .output_scale = IsFloat8(output) ? 0.013f : 1.0f,
                        .misalignment = head_dim == 250 ? 1 : 0});
      }
    }
  }
}

// Ties, overflow, denormals and NaN, all outside of the pairs: only the conversion applies.
TEST_P(BackendContractTest, ConversionsRoundToNearestEvenOnce) {
  const double specials[] = {0.0,      -0.0,    1 + 0x1p-11, 1 + 3 * 0x1p-11, 1 + 0x1p-8, 1.0625,
                             1.1875,   1.125,   1.375,       448.0,           464.0,      480.0,
                             -57344.0, 65519.0, 65520.0,     0x1p-10,         0x3p-10,    0x1p-17,
                             0x3p-17,  0x1p-25, 0x3p-25,     -0x1p-24,        0x1p-134,   0x3p-134,
                             3.4e38,   1e-40,   -INFINITY,   std::nan(""),    INFINITY,   0x1.fp-7};
  constexpr auto kCount = static_cast<int64_t>(std::size(specials));
  for (const DType output : kDTypes) {
    for (const DType dtype : inputs_) {
      if (output == dtype) continue;
      Rotation rotation({.tokens = 2, .head_dim = kCount, .dtype = dtype, .output_dtype = output});
      for (int64_t i = 0; i < kCount; ++i) rotation.SetChannel(i, specials[i]);
      Rotate(rotation);
      if (takes_float8_) {
        EXPECT_EQ(rotation.CheckSaturated(), "");
      }
      for (int64_t i = 0; i < kCount; ++i) {
        uint8_t rounded[4];
        WriteElement(rotation.Input(1, 1, i), output, rounded);
        const double want = ReadElement(rounded, output);
        const double got = rotation.Output(1, 1, i);
        EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
            << Name(dtype) << " " << rotation.Input(1, 1, i) << " as " << Name(output) << ": got "
            << got << ", want " << want;
      }
    }
  }
}

// Every number of an 8-bit format, the midpoints between them, and the floats next to those.
TEST_P(BackendContractTest, EightBitOutputsRoundToNearestEven) {
  for (const DType output : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    std::vector<float> numbers;
    for (int bits = 0; bits < 255; ++bits) {
      const auto code = static_cast<uint8_t>(bits);
      const auto next = static_cast<uint8_t>(bits + 1);
      const double here = ReadElement(&code, output);
      const auto middle = static_cast<float>((here + ReadElement(&next, output)) / 2);
      for (const float number : {static_cast<float>(here), middle}) {
        numbers.push_back(number);
        numbers.push_back(std::nextafter(number, 0.0f));
        numbers.push_back(std::nextafter(number, 2 * number));
      }
    }
    const auto count = static_cast<int64_t>(numbers.size());
    Rotation rotation({.tokens = 1, .heads = 1, .head_dim = count, .output_dtype = output});
    for (int64_t i = 0; i < count; ++i) {
      rotation.SetChannel(i, numbers[static_cast<size_t>(i)]);
    }
    Rotate(rotation);
    for (int64_t i = 0; i < count; ++i) {
      uint8_t rounded = 0;
      WriteElement(rotation.Input(0, 0, i), output, &rounded);
      const double want = ReadElement(&rounded, output);
      const double got = rotation.Output(0, 0, i);
      ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
          << Name(output) << " of " << rotation.Input(0, 0, i) << ": got " << got << ", want "
          << want;
    }
  }
}

TEST_P(BackendContractTest, ScalesReachEveryChannelOfTheirToken) {
  for (const bool token_scales : {false, true}) {
    for (const float scale : {1.0f, 0.125f, -3.3f}) {
      RotateAndCheckAll(
          {.tokens = 6, .heads = 3, .head_dim = 100, .scale = scale, .token_scales = token_scales},
          [](Pairing pairing) {
            return PairGeometry{.pairing = pairing, .pairs = 14, .offset = 7, .partner = 14};
          });
    }
  }
}

TEST_P(BackendContractTest, NormComesBeforeTheRotationAndTakesTheWholeHead) {
  for (const auto norm : {RotationSpec::Norm::kPlain, RotationSpec::Norm::kWeighted}) {
    for (const int64_t head_dim : {2, 32, 80, 250, 512}) {
      RotateAndCheckAll(
          {.tokens = 4, .heads = 3, .head_dim = head_dim, .norm = norm}, [&](Pairing pairing) {
            const int64_t pairs = head_dim / 4;
            return PairGeometry{.pairing = pairing, .pairs = pairs, .offset = 0, .partner = pairs};
          });
    }
  }
}

TEST_P(BackendContractTest, NormOfZerosIsZeroAndOfNaNIsNaN) {
  Rotation rotation({.tokens = 1,
                     .heads = 2,
                     .head_dim = 80,
                     .geometry = WholeHead(Pairing::kHalf, 80),
                     .norm = RotationSpec::Norm::kWeighted});
  rotation.SetChannel(17, std::nan(""));
  for (int64_t channel = 0; channel < 80; ++channel) rotation.SetElement(0, 0, channel, 0);
  Rotate(rotation);
  for (int64_t channel = 0; channel < 80; ++channel) {
    EXPECT_EQ(rotation.Output(0, 0, channel), 0) << channel;
    EXPECT_TRUE(std::isnan(rotation.Output(0, 1, channel))) << channel;
  }
}

// Slices by tokens, on several threads and lanes.
TEST_P(BackendContractTest, LargeBatchWithEverythingBesideTheRotation) {
  for (const Layout layout : {Layout::kTokenMajor, Layout::kHeadMajor}) {
    RotateAndCheck(
        {.tokens = 150,
         .heads = 71,
         .head_dim = 128,
         .dtype = DType::kBFloat16,
         .geometry = {.pairs = 32, .offset = 64, .partner = 32},
         .layout = layout,
         .norm = RotationSpec::Norm::kWeighted,
         .scale = 0.0884f,
         .token_scales = true,
         .output_dtype = layout == Layout::kTokenMajor ? DType::kFloat8E4M3 : DType::kFloat32,
         .output_scale = 0.01f});
  }
  RotateAndCheck({.tokens = 2,
                  .heads = 2000,
                  .head_dim = 128,
                  .geometry = WholeHead(Pairing::kHalf, 128),
                  .norm = RotationSpec::Norm::kWeighted,
                  .token_scales = true,
                  .output_dtype = DType::kFloat16});
}

// Large enough to be cut, by tokens and by layers.
TEST_P(BackendContractTest, LayersOfAMoveAreRotatedAsJobsOfTheirOwn) {
  if (!takes_float8_) return;  // a cuda backend takes no moves
  constexpr int64_t kLayers = 5, kTokens = 70, kHeads = 8, kHeadDim = 64, kRows = 200;
  constexpr int64_t kTokenElements = kHeads * kHeadDim;
  constexpr int64_t kLayerElements = (kTokens + 3) * kTokenElements;
  std::vector<float> table;
  for (int64_t i = 0; i < kRows * kHeadDim; ++i) {
    const double angle = static_cast<double>(i / kHeadDim * (i % (kHeadDim / 2) + 1)) / 9;
    table.push_back(static_cast<float>(i % kHeadDim < kHeadDim / 2 ? cos(angle) : sin(angle)));
  }
  const auto* const cos_of_row_0 = reinterpret_cast<const char*>(table.data());
  const kernels::RowTable rows = {cos_of_row_0, cos_of_row_0 + kHeadDim * 2, DType::kFloat32,
                                  kHeadDim * 4};
  for (const bool alike : {false, true}) {
    std::vector<int64_t> from(kTokens), to(kTokens);
    for (int64_t i = 0; i < kTokens; ++i) {
      from[i] = alike ? 3 : i;
      to[i] = alike ? 150 : 2 * i + 1;
    }
    const kernels::TableMove move = {&rows, from, to};
    for (const kernels::Strides strides : {kernels::Strides{kTokenElements, kHeadDim},
                                           kernels::Strides{kHeadDim, kHeadDim * kTokens}}) {
      std::vector<float> together((kLayers + 1) * kLayerElements);  // no job has the last
      for (size_t i = 0; i < together.size(); ++i) together[i] = static_cast<float>(i % 1021) - 500;
      std::vector<float> apart = together;
      RotateJob job;
      job.input = job.output = together.data();
      job.input_strides = {strides.token, strides.head, kLayerElements};
      job.output_strides = job.input_strides;
      job.tokens = kTokens;
      job.heads = kHeads;
      job.layers = kLayers;
      job.head_dim = kHeadDim;
      job.geometry = WholeHead(Pairing::kHalf, kHeadDim);
      job.move = move;
      ASSERT_THAT(backend_->Rotate({&job, 1}), IsOk());
      job.input = job.output = apart.data();
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        const RotateJob own = job.Layer(layer);
        ASSERT_THAT(backend_->Rotate({&own, 1}), IsOk());
      }
      EXPECT_EQ(together, apart) << (alike ? "one move" : "moves") << ", stride " << strides.token;
    }
  }
}

TEST_P(BackendContractTest, ConcurrentCallsDoNotMix) {
  std::vector<std::thread> threads;
  std::vector<std::string> wrong(4);
  for (uint32_t caller = 0; caller < 4; ++caller) {
    threads.emplace_back([&, caller] {
      for (uint32_t round = 0; round < 5 && wrong[caller].empty(); ++round) {
        const Rotation rotation({.tokens = 200 + 50 * caller,
                                 .heads = 9,
                                 .head_dim = 128,
                                 .dtype = kDTypes[caller % 3],
                                 .geometry = WholeHead(kPairings[round % 2], 128),
                                 .seed = 10 * caller + round});
        const RotateJob job = rotation.job();
        const absl::Status status = backend_->Rotate({&job, 1});
        wrong[caller] = status.ok() ? rotation.Check() : status.ToString();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(""));
}

TEST(CreateBackendTest, UnknownNameListsWhatIsBuilt) {
  EXPECT_THAT(
      kernels::CreateBackend("abacus", {}).status(),
      StatusIs(absl::StatusCode::kUnimplemented, "backend: got abacus, want one of this build: " +
                                                     absl::StrJoin(kernels::ListBackends(), ", ")));
}

// A device's name includes its number. Only the cuda backend may lack its device.
TEST(CreateBackendTest, EveryListedNameIsCreatedOrSaysWhyNot) {
  for (const std::string& name : kernels::ListBackends()) {
    const auto backend = kernels::CreateBackend(name, {.threads = 2});
    if (name == "cuda" && !backend.ok()) {
      EXPECT_THAT(backend.status(), ::testing::AnyOf(IsUnavailable("got cuda, want a GPU"),
                                                     IsUnimplemented("built without kernels")));
      continue;
    }
    ASSERT_THAT(backend, IsOk());
    EXPECT_EQ((*backend)->name(), name == "cuda" ? "cuda:0" : name);
  }
}

TEST(CreateBackendTest, TheFirstNameNeedsNoDevice) {
  ASSERT_THAT(kernels::CreateBackend(kernels::ListBackends().front(), {}), IsOk());
  EXPECT_NE(kernels::ListBackends().front(), "cuda");
}

}  // namespace
}  // namespace rope::testing
