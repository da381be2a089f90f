// The golden files of tests/peers: for each rotary class of transformers a config.json, positions,
// and a head that the class itself has rotated. Here the config is read and resolved, and the head
// is rotated by the resolved numbers in double, so that the reading is what is tested.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/config/config_json.h"
#include "kernels/frequencies/frequencies.h"
#include "tests/support/status_matchers.h"

namespace rope::testing {
namespace {

using kernels::LayerConfig;
using kernels::Pairing;
using kernels::ResolvedRope;
using Json = nlohmann::json;

// Relative errors of float32 inverse frequencies that tests/conformance/golden/README.md allows.
constexpr double kFrequencyError = 1.5e-6;
constexpr double kDynamicFrequencyError = 4e-6;
constexpr double kBlendedFrequencyError = 2e-5;  // in the blended bands of llama3 and yarn

struct PeerCase {
  Json file;
  LayerConfig layer;
  std::shared_ptr<const ResolvedRope> rope;
};

std::vector<std::string> Files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(ROPE_PEER_GOLDEN)) {
    names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

size_t Channel(Pairing order, size_t begin, size_t pairs, size_t pair, bool second) {
  return order == Pairing::kHalf ? begin + pair + (second ? pairs : 0)
                                 : begin + 2 * pair + (second ? 1 : 0);
}

// The position of frequency `pair`: of its axis if the file has several. Two axes are h and w.
int64_t PositionOf(const PeerCase& c, size_t token, size_t pair) {
  const Json& rows = c.file.at("positions");
  if (rows.size() == 1) return rows[0][token];
  const auto axis =
      static_cast<size_t>(c.rope->config().mrope.has_value()
                              ? kernels::AxisOf(*c.rope->config().mrope, static_cast<int64_t>(pair))
                              : 0);
  return rows.size() == 3 ? rows[axis][token] : rows[axis - 1][token];
}

int64_t LargestPosition(const PeerCase& c, size_t token) {
  int64_t largest = 0;
  for (const Json& row : c.file.at("positions")) {
    largest = std::max(largest, row[token].get<int64_t>());
  }
  return largest;
}

// Compares the inverse frequencies, whatever their order. A class of several axes keeps those of
// one, and the file of a class that keeps none has null.
void ExpectFrequencies(const PeerCase& c) {
  if (c.file.at("inv_freq").is_null()) return;
  const auto theirs = c.file.at("inv_freq").get<std::vector<double>>();
  std::vector<double> ours;
  for (const kernels::InverseFrequency number :
       c.rope->Evaluate(c.file.at("seq_len").get<int64_t>()).inv_freq) {
    ours.push_back(std::fabs(static_cast<double>(number)));
  }
  std::sort(ours.begin(), ours.end());
  if (ours.size() != theirs.size()) return;
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_NEAR(theirs[i], ours[i], kBlendedFrequencyError * ours[i]) << "inv_freq " << i;
  }
}

// Compares one rotated token; channels outside the pairs must be equal.
void ExpectToken(const PeerCase& c, size_t token) {
  const auto head_dim = static_cast<size_t>(c.rope->head_dim());
  const auto numbers = [&](const char* key) {
    const auto all = c.file.at(key).get<std::vector<float>>();
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(token * head_dim);
    return std::vector<float>(first, first + static_cast<std::ptrdiff_t>(head_dim));
  };
  const std::vector<float> in = numbers("q"), out = numbers("q_out");
  std::vector<double> want(in.begin(), in.end());
  std::vector<double> tolerance(head_dim);
  const auto at = c.rope->Evaluate(c.file.at("seq_len").get<int64_t>());
  const size_t pairs = at.inv_freq.size();
  const auto begin = static_cast<size_t>(c.rope->rotary_offset());
  const double m = c.rope->attention_factor();
  const Pairing pairing = *c.layer.pairing;
  const Pairing left = c.layer.channel_order.value_or(pairing);
  for (size_t i = 0; i < pairs; ++i) {
    const double a = in[Channel(pairing, begin, pairs, i, false)];
    const double b = in[Channel(pairing, begin, pairs, i, true)];
    const kernels::CosSin turn = kernels::ExactCosSin(PositionOf(c, token, i), at.inv_freq[i], m);
    const double angle = static_cast<double>(LargestPosition(c, token)) *
                         std::fabs(static_cast<double>(at.inv_freq[i]));
    const double relative = c.rope->DependsOnSeqLen() ? kDynamicFrequencyError : kFrequencyError;
    for (const bool second : {false, true}) {
      const size_t channel = Channel(left, begin, pairs, i, second);
      want[channel] = second ? b * turn.cos + a * turn.sin : a * turn.cos - b * turn.sin;
      tolerance[channel] = m * (std::fabs(a) + std::fabs(b)) * (angle * (relative + 6e-8) + 3e-7);
    }
  }
  for (size_t i = 0; i < head_dim; ++i) {
    EXPECT_LE(std::fabs(want[i] - out[i]), tolerance[i]) << "token " << token << " channel " << i;
  }
}

class PeerGoldenTest : public ::testing::TestWithParam<std::string> {};

TEST_P(PeerGoldenTest, TheConfigMeansWhatItsModelsCodeDoes) {
  std::ifstream stream(std::string(ROPE_PEER_GOLDEN) + "/" + GetParam() + ".json");
  PeerCase c;
  c.file = Json::parse(stream);
  ASSERT_OK(model, kernels::ModelConfig::Parse(c.file.at("config").dump()));
  kernels::LayerChoice choice;
  if (c.file.at("layer_type").is_string()) choice.layer_type = c.file.at("layer_type");
  auto layer = model->Layer(choice);
  ASSERT_THAT(layer, IsOk());
  c.layer = *std::move(layer);
  ASSERT_TRUE(c.layer.pairing.has_value());
  c.layer.config.seq_len_policy = kernels::SeqLenPolicy::kBatch;
  ASSERT_OK(rope, kernels::Resolve(c.layer.config));
  c.rope = *rope;
  ExpectFrequencies(c);
  const size_t tokens = c.file.at("positions")[0].size();
  ASSERT_EQ(c.file.at("q").size(), tokens * static_cast<size_t>(c.rope->head_dim()));
  for (size_t token = 0; token < tokens; ++token) ExpectToken(c, token);
}

INSTANTIATE_TEST_SUITE_P(Transformers, PeerGoldenTest, ::testing::ValuesIn(Files()),
                         [](const auto& file) {
                           std::string name = file.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

// One of the 211 is found inside a composite only, by its place there, and so has no file.
TEST(PeerGoldenFilesTest, EveryComparedClassHasOne) {
  EXPECT_EQ(Files().size(), 210u);
}

}  // namespace
}  // namespace rope::testing
