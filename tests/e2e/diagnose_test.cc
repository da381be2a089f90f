// ropectl diagnose as a program: it must name each planted mistake, without a server.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "client/cli/npy.h"
#include "kernels/dtype/element.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

constexpr size_t kTokens = 40;
constexpr size_t kHeads = 3;
constexpr size_t kHeadDim = 64;
constexpr int64_t kStart = 100;

// A wrong implementation of the rotation.
struct Planted {
  std::vector<double> inv_freq;
  double attention_factor = 1;
  bool interleaved = false;
  int64_t shift = 0;
  double sign = 1;
  std::function<double(double)> table = [](double value) { return value; };  // cos and sin
};

std::vector<double> Plain(double theta, size_t rotary_dim = kHeadDim) {
  std::vector<double> inv_freq;
  for (size_t i = 0; i < rotary_dim; i += 2) {
    inv_freq.push_back(std::pow(theta, -static_cast<double>(i) / static_cast<double>(rotary_dim)));
  }
  return inv_freq;
}

// theta 150000, factor 32, original length 4096, beta 32 and 1.
std::vector<double> Yarn(bool truncate) {
  const auto edge = [](double turns) {
    return kHeadDim * std::log(4096 / (2 * std::numbers::pi * turns)) / (2 * std::log(150000.0));
  };
  const double low = truncate ? std::floor(edge(32)) : edge(32);
  const double high = truncate ? std::ceil(edge(1)) : edge(1);
  std::vector<double> inv_freq = Plain(150000);
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inv_freq[i] *= (1 - ramp) + ramp / 32;
  }
  return inv_freq;
}
const double kYarnFactor = 0.1 * std::log(32.0) + 1;

constexpr char kPlainConfig[] = R"({"model_type": "llama", "head_dim": 64, "rope_theta": 10000,
    "max_position_embeddings": 8192})";
constexpr char kLinearConfig[] = R"({"model_type": "llama", "head_dim": 64, "rope_theta": 10000,
    "max_position_embeddings": 32768, "rope_scaling": {"rope_type": "linear", "factor": 4}})";
constexpr char kYarnConfig[] = R"({"model_type": "llama", "head_dim": 64, "rope_theta": 150000,
    "max_position_embeddings": 131072, "rope_scaling": {"rope_type": "yarn", "factor": 32,
    "original_max_position_embeddings": 4096, "truncate": true}})";

std::vector<double> Rotated(const std::vector<double>& before, const Planted& planted) {
  std::vector<double> after = before;
  const size_t pairs = planted.inv_freq.size();
  for (size_t token = 0; token < kTokens; ++token) {
    const auto position = static_cast<double>(kStart + static_cast<int64_t>(token) + planted.shift);
    for (size_t head = 0; head < kHeads; ++head) {
      const size_t begin = (token * kHeads + head) * kHeadDim;
      for (size_t i = 0; i < pairs; ++i) {
        const size_t a = begin + (planted.interleaved ? 2 * i : i);
        const size_t b = planted.interleaved ? a + 1 : a + pairs;
        const double angle = planted.sign * position * planted.inv_freq[i];
        const double c = planted.table(planted.attention_factor * std::cos(angle));
        const double s = planted.table(planted.attention_factor * std::sin(angle));
        after[a] = before[a] * c - before[b] * s;
        after[b] = before[a] * s + before[b] * c;
      }
    }
  }
  return after;
}

double RoundedToBFloat16(double value) {
  return static_cast<double>(kernels::FromBFloat16(kernels::ToBFloat16(value)));
}

class DiagnoseTest : public ::testing::Test {
 protected:
  DiagnoseTest() : folder_(TemporaryFolder()) {
    std::mt19937 random(11);
    std::normal_distribution<double> normal;
    for (size_t i = 0; i < kTokens * kHeads * kHeadDim; ++i) {
      before_.push_back(static_cast<double>(static_cast<float>(normal(random))));
    }
  }

  std::string Write(const std::string& name, const std::vector<double>& values) {
    std::string bytes = client::NpyHeader("<f4", {kTokens, kHeads, kHeadDim});
    for (const double value : values) {
      const auto bits = std::bit_cast<std::array<char, 4>>(static_cast<float>(value));
      bytes.append(bits.data(), bits.size());
    }
    std::ofstream(folder_ + "/" + name, std::ios::binary) << bytes;
    return folder_ + "/" + name;
  }

  Outcome Diagnose(const std::string& config, const std::vector<double>& after,
                   const std::vector<std::string>& flags = {}) {
    std::ofstream(folder_ + "/config.json") << config;
    std::vector<std::string> arguments = {RopectlProgram(),
                                          "diagnose",
                                          "--config=" + folder_ + "/config.json",
                                          "--before=" + Write("before.npy", before_),
                                          "--after=" + Write("after.npy", after),
                                          "--layout=SHD",
                                          "--start=" + std::to_string(kStart)};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return RunProgram(arguments);
  }

  // The changes in the first explanation. REQUIRES: that explanation explains the tensor.
  std::vector<std::string> Found(const std::string& config, const Planted& planted) {
    const Outcome outcome = Diagnose(config, Rotated(before_, planted), {"--json"});
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    const auto json = nlohmann::json::parse(outcome.output, nullptr, false);
    if (json.is_discarded()) return {outcome.output};
    const auto& first = json["explanations"][0];
    EXPECT_TRUE(first["explains"].get<bool>()) << json.dump(2);
    EXPECT_LE(first["max_error_over_tolerance"].get<double>(), 1);
    return first["changes"].get<std::vector<std::string>>();
  }

  const std::string folder_;
  std::vector<double> before_;
};

TEST_F(DiagnoseTest, ConfigThatExplainsTheTensorHasStatusZero) {
  EXPECT_THAT(Diagnose(kYarnConfig,
                       Rotated(before_, {.inv_freq = Yarn(true), .attention_factor = kYarnFactor})),
              Exits(0, HasSubstr("The config explains it.")));
}

TEST_F(DiagnoseTest, FindsThePairing) {
  EXPECT_THAT(Found(kPlainConfig, {.inv_freq = Plain(10000), .interleaved = true}),
              ElementsAre("pairing interleaved"));
}

TEST_F(DiagnoseTest, FindsAKnownTheta) {
  EXPECT_THAT(Found(kPlainConfig, {.inv_freq = Plain(500000)}), ElementsAre("theta 500000"));
}

TEST_F(DiagnoseTest, FindsAThetaThatNoListHas) {
  EXPECT_THAT(Found(kPlainConfig, {.inv_freq = Plain(73000)}), ElementsAre("theta 73000"));
}

TEST_F(DiagnoseTest, FindsPositionsThatAreOffByOne) {
  EXPECT_THAT(Found(kPlainConfig, {.inv_freq = Plain(10000), .shift = 1}),
              ElementsAre("positions + 1"));
  EXPECT_THAT(Found(kPlainConfig, {.inv_freq = Plain(10000), .shift = -1}),
              ElementsAre("positions - 1"));
}

TEST_F(DiagnoseTest, FindsPositionsThatWereCountedFromZero) {
  EXPECT_THAT(Found(kPlainConfig, {.inv_freq = Plain(10000), .shift = -kStart}),
              ElementsAre("positions counted from 0"));
}

TEST_F(DiagnoseTest, FindsTheInverse) {
  EXPECT_THAT(Found(kPlainConfig, {.inv_freq = Plain(10000), .sign = -1}),
              ElementsAre("inverse rotation"));
}

TEST_F(DiagnoseTest, FindsTheMissingAttentionFactor) {
  EXPECT_THAT(Found(kYarnConfig, {.inv_freq = Yarn(true)}),
              ElementsAre("attention factor missing"));
}

TEST_F(DiagnoseTest, FindsTheSquaredAttentionFactor) {
  EXPECT_THAT(
      Found(kYarnConfig, {.inv_freq = Yarn(true), .attention_factor = kYarnFactor * kYarnFactor}),
      ElementsAre("attention factor squared"));
}

TEST_F(DiagnoseTest, FindsPartialRotation) {
  EXPECT_THAT(Found(kPlainConfig, {.inv_freq = Plain(10000, 32)}), ElementsAre("rotary_dim 32"));
}

TEST_F(DiagnoseTest, FindsTheYarnRampThatWasNotRounded) {
  EXPECT_THAT(Found(kYarnConfig, {.inv_freq = Yarn(false), .attention_factor = kYarnFactor}),
              ElementsAre("yarn truncate false"));
}

TEST_F(DiagnoseTest, FindsTheMissingLinearScaling) {
  EXPECT_THAT(Found(kLinearConfig, {.inv_freq = Plain(10000)}), ElementsAre("no scaling"));
}

TEST_F(DiagnoseTest, FindsLinearScalingOfAnUnknownFactor) {
  std::vector<double> inv_freq = Plain(10000);
  for (double& frequency : inv_freq) frequency /= 6;
  EXPECT_THAT(Found(kPlainConfig, {.inv_freq = inv_freq}), ElementsAre("linear scaling, factor 6"));
}

TEST_F(DiagnoseTest, FindsTablesInBFloat16) {
  EXPECT_THAT(Found(kPlainConfig, {.inv_freq = Plain(10000), .table = RoundedToBFloat16}),
              ElementsAre("cos and sin rounded to bf16"));
}

TEST_F(DiagnoseTest, FindsTwoMistakesAtOnce) {
  EXPECT_THAT(Found(kPlainConfig, {.inv_freq = Plain(500000), .interleaved = true}),
              ElementsAre("theta 500000", "pairing interleaved"));
  EXPECT_THAT(Found(kPlainConfig, {.inv_freq = Plain(10000), .interleaved = true, .shift = 1}),
              ElementsAre("pairing interleaved", "positions + 1"));
  EXPECT_THAT(Found(kPlainConfig, {.inv_freq = Plain(73000, 32)}),
              ElementsAre("rotary_dim 32", "theta 73000"));
}

TEST_F(DiagnoseTest, SaysWhatHoldsWhereNothingExplainsTheTensor) {
  std::vector<double> after = before_;
  std::shuffle(after.begin(), after.end(), std::mt19937(5));
  EXPECT_THAT(Diagnose(kPlainConfig, after),
              Exits(1, AllOf(HasSubstr("Nothing that was tried explains it. What holds:"),
                             HasSubstr("norms of heads are not kept"), Not(HasSubstr("nearest")),
                             HasSubstr("as configured"))));
}

TEST_F(DiagnoseTest, TensorThatWasNotRotatedIsNamed) {
  EXPECT_THAT(Diagnose(kPlainConfig, before_),
              Exits(1, HasSubstr("Explained by: not rotated at all.\n")));
}

TEST_F(DiagnoseTest, PositionsArePrintedInShort) {
  const Outcome outcome =
      Diagnose(kPlainConfig, Rotated(before_, {.inv_freq = Plain(10000), .shift = 5}));
  EXPECT_THAT(outcome.output, HasSubstr("Explained by: positions + 5.\n"));
  EXPECT_THAT(outcome.output, HasSubstr("Positions of the tokens above: 105..144\n"));
}

TEST_F(DiagnoseTest, ModelsAreThisProgramsPresetsOrThoseOfATarget) {
  const std::string before = Write("before.npy", before_);
  const std::string after = Write("after.npy", Rotated(before_, {.inv_freq = Plain(10000)}));
  std::ofstream(folder_ + "/mine.json") << kPlainConfig;
  const auto run = [&](std::vector<std::string> flags) {
    std::vector<std::string> arguments = {RopectlProgram(),   "diagnose",     "--before=" + before,
                                          "--after=" + after, "--layout=SHD", "--start=100"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return RunProgram(arguments);
  };
  EXPECT_THAT(run({"--model=mine"}), Exits(1, HasSubstr("want a preset of this program")));
  EXPECT_THAT(run({"--model=llama-3.2-1b"}).output, HasSubstr("Explained by: "));
  const TestServer server({"--model=mine=" + folder_ + "/mine.json"});
  EXPECT_THAT(run({"--model=mine", "--target=" + server.address()}),
              Exits(0, HasSubstr("The config explains it.")));
}

TEST_F(DiagnoseTest, HeadThatIsNotTheConfigsIsRefused) {
  EXPECT_THAT(Diagnose(R"({"model_type": "llama", "head_dim": 128})", before_),
              Exits(1, HasSubstr("head_dim: got 64, want the config's 128")));
}

}  // namespace
}  // namespace rope::testing
