#include "server/control/describe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/dtype/element.h"
#include "server/error.h"
#include "server/limits.h"
#include "server/request/limits.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::testing::DoubleNear;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class DescribeTest : public ::testing::Test {
 protected:
  absl::StatusOr<v1::DescribeResponse> Ask(const v1::DescribeRequest& request) {
    const auto step = Describe(request, *registry_, reply_bytes_max_, [this](int64_t bytes) {
      admitted_.push_back(bytes);
      return admit_;
    });
    if (!step.ok()) return step.status();
    v1::DescribeResponse answer;
    absl::StatusOr<bool> finished = false;
    for (steps_ = 0; finished.ok() && !*finished; ++steps_) finished = (*step)(answer);
    if (!finished.ok()) return finished.status();
    return answer;
  }
  void ExpectFails(const v1::DescribeRequest& request, absl::StatusCode code,
                   const std::string& text) {
    EXPECT_THAT(Ask(request), Fails(code, text));
  }

  static v1::DescribeRequest Plain() {
    v1::DescribeRequest request;
    request.mutable_rope()->mutable_config()->set_head_dim(8);
    return request;
  }
  static v1::DescribeRequest Dynamic() {
    v1::DescribeRequest request = Plain();
    v1::RopeConfig& config = *request.mutable_rope()->mutable_config();
    config.set_rope_type("dynamic");
    config.set_factor(2);
    config.set_max_position_embeddings(16);
    return request;
  }

  // A request for the rows of the positions 0 to rows - 1.
  static v1::DescribeRequest Large(int64_t head_dim, int rows) {
    v1::DescribeRequest request;
    request.mutable_rope()->mutable_config()->set_head_dim(head_dim);
    request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
    for (int i = 0; i < rows; ++i) request.add_positions(i);
    return request;
  }

  std::unique_ptr<ModelRegistry> registry_ = ModelRegistry::Create({}).value();
  int64_t reply_bytes_max_ = limits::kMessageBytesMax;
  absl::Status admit_;             // the answer of `admit`
  std::vector<int64_t> admitted_;  // bytes
  int steps_ = 0;
};

TEST_F(DescribeTest, FrequenciesAndWavelengthsOfTheFormula) {
  ASSERT_OK(answer, Ask(Plain()));
  ASSERT_EQ(answer->inv_freq_size(), 4);
  for (int i = 0; i < 4; ++i) {
    const double expected = std::pow(10000.0, -2.0 * i / 8);
    EXPECT_THAT(answer->inv_freq(i), DoubleNear(expected, expected * 1e-15));
    EXPECT_THAT(answer->wavelengths(i) * expected, DoubleNear(2 * std::numbers::pi, 1e-14));
  }
  EXPECT_TRUE(answer->rotates());
  EXPECT_EQ(answer->attention_factor(), 1);
  EXPECT_EQ(answer->seq_len(), 1);
  EXPECT_FALSE(answer->depends_on_seq_len());
  EXPECT_EQ(answer->pairing(), v1::PAIRING_UNSPECIFIED);
  EXPECT_EQ(answer->config().rotary_dim(), 8);
  EXPECT_EQ(answer->config().rope_theta(), 10000);
}

TEST_F(DescribeTest, RowsHoldCosAndSinWithTheAttentionFactor) {
  v1::DescribeRequest request = Plain();
  v1::RopeConfig& config = *request.mutable_rope()->mutable_config();
  config.set_rope_type("yarn");
  config.set_factor(1);
  config.set_max_position_embeddings(16);
  config.set_attention_factor(3);
  request.add_positions(0);
  request.add_positions(7);
  ASSERT_OK(answer, Ask(request));
  ASSERT_EQ(answer->rows_size(), 2);
  EXPECT_EQ(answer->rows(0).cos(2), 3);
  EXPECT_EQ(answer->rows(0).sin(2), 0);
  EXPECT_EQ(answer->rows(1).position(), 7);
  EXPECT_THAT(answer->rows(1).cos(0), DoubleNear(3 * std::cos(7.0), 1e-15));
  EXPECT_THAT(answer->rows(1).sin(0), DoubleNear(3 * std::sin(7.0), 1e-15));
}

TEST_F(DescribeTest, ZeroFrequencyHasAnInfiniteWavelength) {
  v1::DescribeRequest request = Plain();
  request.mutable_rope()->mutable_config()->set_rope_type("proportional");
  request.mutable_rope()->mutable_config()->set_partial_rotary_factor(0.5);
  ASSERT_OK(answer, Ask(request));
  EXPECT_EQ(answer->inv_freq(3), 0);
  EXPECT_TRUE(std::isinf(answer->wavelengths(3)));
}

TEST_F(DescribeTest, SeqLenComesFromThePositionsOrTheCaller) {
  v1::DescribeRequest request = Dynamic();
  request.add_positions(99);
  ASSERT_OK(by_position, Ask(request));
  EXPECT_EQ(by_position->seq_len(), 100);
  EXPECT_TRUE(by_position->depends_on_seq_len());
  request.set_seq_len(16);
  ASSERT_OK(by_caller, Ask(request));
  EXPECT_EQ(by_caller->seq_len(), 16);
  EXPECT_LT(by_position->inv_freq(3), by_caller->inv_freq(3));
}

TEST_F(DescribeTest, HeadDimIsTakenWhereTheConfigHasNone) {
  v1::DescribeRequest request = Plain();
  request.mutable_rope()->mutable_config()->clear_head_dim();
  ExpectFails(request, kInvalid, "rope.config.head_dim: got nothing");
  request.set_head_dim(16);
  ASSERT_OK(answer, Ask(request));
  EXPECT_EQ(answer->inv_freq_size(), 8);
  request.mutable_rope()->mutable_config()->set_head_dim(8);
  ExpectFails(request, kInvalid, "head_dim: got 16, want the config's 8");
  request.mutable_rope()->mutable_config()->clear_head_dim();
  request.set_head_dim(-2);
  ExpectFails(request, kInvalid, "head_dim: got -2");
}

TEST_F(DescribeTest, ConfigIdFindsTheSameAgain) {
  ASSERT_OK(first, Ask(Plain()));
  v1::DescribeRequest request;
  request.mutable_rope()->set_config_id(first->config_id());
  ASSERT_OK(again, Ask(request));
  EXPECT_EQ(again->SerializeAsString(), first->SerializeAsString());
}

TEST_F(DescribeTest, LayerWithoutRotationHasNoNumbers) {
  v1::DescribeRequest request;
  request.mutable_rope()->set_config_json(
      R"({"head_dim": 8, "num_hidden_layers": 2, "no_rope_layers": [1, 0]})");
  request.mutable_rope()->set_layer(1);
  ASSERT_OK(answer, Ask(request));
  EXPECT_FALSE(answer->rotates());
  EXPECT_EQ(answer->inv_freq_size(), 0);
  EXPECT_THAT(answer->warnings(), Contains(HasSubstr("does not rotate")));
}

TEST_F(DescribeTest, WarningsOfTheConfigAreShown) {
  v1::DescribeRequest request = Plain();
  request.mutable_rope()->mutable_config()->set_rope_type("linear");
  request.mutable_rope()->mutable_config()->set_factor(0.5);
  ASSERT_OK(answer, Ask(request));
  EXPECT_THAT(answer->warnings(), Contains(HasSubstr("factor")));
}

TEST_F(DescribeTest, RampAndScalingOfTheClassicCase) {
  v1::DescribeRequest request = Plain();
  v1::RopeConfig& config = *request.mutable_rope()->mutable_config();
  config.set_head_dim(256);
  config.set_rope_type("yarn");
  config.set_factor(8);
  config.set_original_max_position_embeddings(8192);
  config.set_beta_slow(1);
  config.set_beta_fast(4);
  config.set_ramp(v1::YARN_RAMP_TURNS);
  ASSERT_OK(answer, Ask(request));
  EXPECT_THAT(answer->ramp().low_wavelength(), DoubleNear(2048, 1e-9));
  EXPECT_THAT(answer->ramp().high_wavelength(), DoubleNear(8192, 1e-9));
  EXPECT_THAT(answer->ramp().low_index(), DoubleNear(80.43, 0.01));
  EXPECT_THAT(answer->ramp().high_index(), DoubleNear(99.69, 0.01));
  ASSERT_EQ(answer->scaling_size(), 128);
  EXPECT_EQ(answer->scaling(80), v1::FREQUENCY_SCALING_KEPT);
  EXPECT_EQ(answer->scaling(81), v1::FREQUENCY_SCALING_BLENDED);
  EXPECT_EQ(answer->scaling(99), v1::FREQUENCY_SCALING_BLENDED);
  EXPECT_EQ(answer->scaling(100), v1::FREQUENCY_SCALING_SCALED);
  EXPECT_EQ(answer->config().ramp(), v1::YARN_RAMP_TURNS);
  EXPECT_FALSE(Ask(Plain())->has_ramp());
}

TEST_F(DescribeTest, ReadingsAreThoseThatDiffer) {
  v1::DescribeRequest request = Plain();
  v1::RopeConfig& config = *request.mutable_rope()->mutable_config();
  config.set_head_dim(64);
  config.set_rope_type("yarn");
  config.set_rope_theta(150000);
  config.set_factor(32);
  config.set_original_max_position_embeddings(4096);
  config.set_truncate(false);
  ASSERT_OK(answer, Ask(request));
  ASSERT_EQ(answer->readings_size(), 2);
  EXPECT_EQ(answer->readings(0).implementation(), "vllm");
  EXPECT_EQ(answer->readings(0).version(), "0.10.2 to 0.11.2");
  EXPECT_EQ(answer->readings(0).executed(), "0.11.2");
  EXPECT_EQ(answer->readings(1).executed(), "0c1e57098");
  EXPECT_EQ(answer->readings(1).implementation(), "llamacpp");
  EXPECT_THAT(answer->readings(1).difference(), HasSubstr("rounds the ramp's edges"));
  EXPECT_THAT(answer->readings(1).inv_freq_max_relative(), DoubleNear(0.763, 5e-4));
  EXPECT_THAT(answer->readings(1).attention_factor(), DoubleNear(1.34657, 1e-5));
  EXPECT_EQ(Ask(Plain())->readings_size(), 0);
}

TEST_F(DescribeTest, TheModelOfAConfigJsonDecidesWhoReadsItDifferently) {
  const auto engines_of = [this](const std::string& model_type) {
    v1::DescribeRequest request;
    request.mutable_rope()->set_config_json(absl::StrCat(
        R"({"model_type": ")", model_type, R"(", "head_dim": 64, "max_position_embeddings": 163840,
        "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
                         "mscale": 0.707}})"));
    std::vector<std::string> engines;
    const auto answer = Ask(request);
    EXPECT_THAT(answer, IsOk());
    if (!answer.ok()) return engines;
    for (const v1::Reading& reading : answer->readings()) {
      engines.push_back(reading.implementation());
    }
    return engines;
  };
  EXPECT_THAT(engines_of("deepseek_v2"), ElementsAre("vllm", "sglang", "deepseek"));
  EXPECT_THAT(engines_of("llama"), IsEmpty());
}

TEST_F(DescribeTest, Float32AnglesAreJudgedAtTheModelsLength) {
  v1::DescribeRequest request = Plain();
  request.mutable_rope()->mutable_config()->set_head_dim(128);
  request.mutable_rope()->mutable_config()->set_rope_theta(500000);
  request.mutable_rope()->mutable_config()->set_max_position_embeddings(131072);
  ASSERT_OK(answer, Ask(request));
  EXPECT_EQ(answer->float32_angle_position(), 131071);
  EXPECT_GT(answer->float32_angle_error(), 1e-3);
  EXPECT_LT(answer->float32_angle_error(), 1e-2);
  request.mutable_rope()->mutable_config()->clear_max_position_embeddings();
  request.set_seq_len(1024);
  EXPECT_EQ(Ask(request)->float32_angle_position(), 1023);
}

TEST_F(DescribeTest, ExplicitFrequenciesComeBackAsTheyAre) {
  v1::DescribeRequest request = Plain();
  for (const double number : {1.0, 0.3, 0.03, 0.0}) {
    request.mutable_rope()->mutable_config()->mutable_inv_freq()->add_numbers(number);
  }
  ASSERT_OK(answer, Ask(request));
  EXPECT_EQ(answer->inv_freq(1), 0.3);
  EXPECT_EQ(answer->scaling(3), v1::FREQUENCY_SCALING_STILL);
  EXPECT_EQ(answer->config().inv_freq().numbers(2), 0.03);
  request.mutable_rope()->mutable_config()->mutable_inv_freq()->add_numbers(0);
  ExpectFails(request, kInvalid, "rope.config.inv_freq: got 5 numbers, want rotary_dim/2, 4");
}

TEST_F(DescribeTest, BadPositionsAndLengthsAreNamed) {
  v1::DescribeRequest request = Plain();
  request.add_positions(limits::kPositionMax);
  EXPECT_THAT(Ask(request), IsOk());
  request.set_positions(0, limits::kPositionMax + 1);
  ExpectFails(request, absl::StatusCode::kOutOfRange, "positions: got 1073741825");
  request.set_positions(0, -1);
  ExpectFails(request, kInvalid, "positions: got -1");
  request = Plain();
  for (int64_t i = 0; i <= kDescribePositionsMax; ++i) request.add_positions(0);
  ExpectFails(request, kInvalid, "positions: got 4097 positions, want at most 4096");
  for (const int64_t length : {int64_t{0}, limits::kSeqLenMax + 1}) {
    request = Plain();
    request.set_seq_len(length);
    ExpectFails(request, kInvalid, "seq_len: got " + std::to_string(length));
  }
}

TEST_F(DescribeTest, MissingRopeIsNamed) {
  ExpectFails(v1::DescribeRequest(), kInvalid, "rope: got nothing");
}

TEST_F(DescribeTest, PrecisionHfHasRowsOfADType) {
  v1::DescribeRequest request = Plain();
  request.add_positions(1000);
  ASSERT_OK(exact, Ask(request));
  EXPECT_EQ(exact->precision(), v1::PRECISION_EXACT);
  request.mutable_rope()->set_precision(v1::PRECISION_HF);
  ASSERT_OK(hf, Ask(request));
  EXPECT_EQ(hf->precision(), v1::PRECISION_HF);
  EXPECT_NE(hf->config_id(), exact->config_id());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(hf->inv_freq(i), static_cast<float>(hf->inv_freq(i)));
    const double angle = 1000.0F * static_cast<float>(hf->inv_freq(i));
    EXPECT_EQ(hf->rows(0).cos(i), static_cast<float>(std::cos(angle)));
  }
  EXPECT_NE(hf->rows(0).cos(1), exact->rows(0).cos(1));
  request.set_dtype(v1::DTYPE_BF16);
  ASSERT_OK(narrow, Ask(request));
  EXPECT_EQ(narrow->config_id(), hf->config_id());
  EXPECT_EQ(narrow->rows(0).cos(1), kernels::FromBFloat16(kernels::ToBFloat16(hf->rows(0).cos(1))));
  request.set_dtype(v1::DTYPE_FP64);
  ExpectFails(request, kInvalid, "dtype: got DTYPE_FP64, want DTYPE_FP32, DTYPE_FP16 or");
  request.mutable_rope()->clear_precision();
  request.set_dtype(v1::DTYPE_FP32);
  ExpectFails(request, kInvalid, "dtype: got DTYPE_FP32, want it unset: without PRECISION_HF");
  request.set_dtype(static_cast<v1::DType>(99));
  ExpectFails(request, kInvalid, "dtype: got number 99, want it unset: without PRECISION_HF");
}

TEST_F(DescribeTest, SinusoidalTableIsThatOfTheOriginalTransformer) {
  v1::DescribeRequest request = Plain();
  request.add_positions(0);
  request.add_positions(4095);
  EXPECT_EQ(Ask(request)->rows(1).sinusoid_size(), 0);
  request.set_sinusoidal(true);
  ExpectFails(request, kInvalid, "rope.pairing: got nothing");
  for (const v1::Pairing pairing : {v1::PAIRING_HALF, v1::PAIRING_INTERLEAVED}) {
    request.mutable_rope()->set_pairing(pairing);
    ASSERT_OK(answer, Ask(request));
    for (const v1::Row& row : answer->rows()) {
      ASSERT_EQ(row.sinusoid_size(), 8);
      for (int i = 0; i < 4; ++i) {
        const double angle = static_cast<double>(row.position()) / std::pow(10000.0, 2 * i / 8.0);
        const bool half = pairing == v1::PAIRING_HALF;
        EXPECT_THAT(row.sinusoid(half ? i : 2 * i), DoubleNear(std::sin(angle), 1e-12));
        EXPECT_THAT(row.sinusoid(half ? i + 4 : 2 * i + 1), DoubleNear(std::cos(angle), 1e-12));
      }
    }
  }
  request.mutable_rope()->set_precision(v1::PRECISION_HF);
  ExpectFails(request, kInvalid, "operation: got OPERATION_ADD_SINUSOIDAL with PRECISION_HF");
}

TEST_F(DescribeTest, RowsOfTooManyBytesAreRefusedBeforeTheyAreComputed) {
  ExpectFails(Large(65536, kDescribePositionsMax), absl::StatusCode::kResourceExhausted,
              "positions: got 4096 rows of 524320 bytes, want at most 16777216 bytes in one call");
  EXPECT_THAT(admitted_, IsEmpty());
  // A reply is at most as large as a message.
  reply_bytes_max_ = 1000;
  ExpectFails(Large(64, 2), absl::StatusCode::kResourceExhausted,
              "positions: got 2 rows of 544 bytes, want at most 1000 bytes in one call");
  EXPECT_THAT(Ask(Large(64, 1)), IsOk());
}

TEST_F(DescribeTest, RowsUpToTheLimitAreAdmittedAsTwiceTheirBytesAndComputedInSteps) {
  constexpr int64_t kRowBytes = 32 + 32 * 16;
  v1::DescribeRequest request = Large(64, kDescribePositionsMax);
  ASSERT_OK(answer, Ask(request));
  EXPECT_EQ(answer->rows_size(), kDescribePositionsMax);
  EXPECT_EQ(answer->rows(4095).position(), 4095);
  EXPECT_EQ(steps_, 1 + 4096 / (2048 / 32));
  ASSERT_THAT(admitted_, ElementsAre(2 * 4096 * kRowBytes + 32 * 128));
  EXPECT_LE(static_cast<int64_t>(answer->ByteSizeLong()) * 2, admitted_[0]);
  request.set_sinusoidal(true);
  ASSERT_THAT(Ask(request), IsOk());
  EXPECT_EQ(admitted_[1], 2 * 4096 * (kRowBytes + 32 * 16) + 32 * 128);
}

TEST_F(DescribeTest, NoReplyIsLargerThanWhatWasAdmitted) {
  ASSERT_OK(answer, Ask(Large(65536, 8)));
  EXPECT_LE(static_cast<int64_t>(answer->ByteSizeLong()), admitted_.back());
}

TEST_F(DescribeTest, NothingIsComputedWithoutMemory) {
  admit_ = OutOfMemory();
  ExpectFails(Large(64, 1), absl::StatusCode::kResourceExhausted, "memory");
}

}  // namespace
}  // namespace rope::server
