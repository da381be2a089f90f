#include "client/cli/golden.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "client/cli/arguments.h"
#include "tests/support/matchers.h"

namespace rope::client {
namespace {

using Json = nlohmann::json;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// One token and one head of 6 channels, of which 4 rotate; the results are exact in every dtype.
Json SmallCase() {
  return {{"format", "rope-golden-1"},
          {"config", {{"rope_theta", 10000}}},
          {"layer_type", nullptr},
          {"pairing", "half"},
          {"head_dim", 6},
          {"rotary_dim", 4},
          {"num_heads", 1},
          {"num_kv_heads", 0},
          {"num_tokens", 1},
          {"seq_len", 1},
          {"attention_factor", 1.0},
          {"positions", {0}},
          {"q", {1.0, 0.0, 2.0, 0.0, 5.0, 0.0}},
          {"k", Json::array()},
          {"q_out_f64", {1.0, 0.0, 2.0, 0.0, 5.0, 0.0}},
          {"k_out_f64", Json::array()}};
}

GoldenFile Parsed(const Json& json) {
  Result<GoldenFile> golden = ParseGolden(json.dump());
  return std::move(golden).value();
}

// The deviation if the server answers `rotated` for q.
Deviation DeviationOf(const Json& json, const std::vector<double>& rotated, DType dtype) {
  const GoldenFile golden = Parsed(json);
  return Compare(golden, golden.tensors[0], dtype, Store(rotated, dtype).data());
}

GoldenFile FileOf(const std::string& name) {
  const auto text = ReadFile(
      std::string(ROPE_SOURCE_DIR) + "/tests/conformance/golden/" + name + ".json", 1 << 24);
  return std::move(ParseGolden(text.value())).value();
}

TEST(GoldenTest, RatioIsErrorOverTolerance) {
  Json json = SmallCase();
  json["attention_factor"] = 2.0;
  const double tolerance = 1.5e-7 * 2 * (1 + 2);  // channels 0 and 2 form a pair
  json["q_out_f64"][0] = 1.0 + tolerance / 2;
  EXPECT_NEAR(DeviationOf(json, {1, 0, 2, 0, 5, 0}, DType::kFloat32).ratio, 0.5, 1e-6);
}

TEST(GoldenTest, InterleavedPairsNeighbours) {
  Json json = SmallCase();
  json["pairing"] = "interleaved";
  json["q_out_f64"][0] = 1.0 + 1.5e-7;  // the other channel of the pair is 0
  EXPECT_NEAR(DeviationOf(json, {1, 0, 2, 0, 5, 0}, DType::kFloat32).ratio, 1, 1e-6);
}

TEST(GoldenTest, SixteenBitTypesMayBeHalfAUnitOff) {
  Json json = SmallCase();
  const double unit = std::ldexp(1.0, -10);  // the spacing of float16 in [1, 2)
  json["q_out_f64"][0] = 1.0 + unit / 2;
  EXPECT_LE(DeviationOf(json, {1, 0, 2, 0, 5, 0}, DType::kFloat16).ratio, 1);
  json["q_out_f64"][0] = 1.0 + unit * 0.51;
  EXPECT_GT(DeviationOf(json, {1, 0, 2, 0, 5, 0}, DType::kFloat16).ratio, 1);
  EXPECT_LE(DeviationOf(json, {1, 0, 2, 0, 5, 0}, DType::kBFloat16).ratio, 1);  // 8 x the spacing
  json["q_out_f64"][0] = 1.0 + 8 * unit * 0.51;
  EXPECT_GT(DeviationOf(json, {1, 0, 2, 0, 5, 0}, DType::kBFloat16).ratio, 1);
}

TEST(GoldenTest, UnitsOfSmallHalvesStopShrinking) {
  Json json = SmallCase();
  json["q"] = {0.0, 0.0, 0.0, 0.0, 0.0, 0.0};
  json["q_out_f64"] = {std::ldexp(0.49, -24), 0.0, 0.0, 0.0, 0.0, 0.0};
  EXPECT_NEAR(DeviationOf(json, {0, 0, 0, 0, 0, 0}, DType::kFloat16).ratio, 0.98, 1e-9);
  const double subnormal = std::ldexp(1.0, -20);
  json["q_out_f64"][0] = subnormal + std::ldexp(0.49, -24);
  EXPECT_NEAR(DeviationOf(json, {subnormal, 0, 0, 0, 0, 0}, DType::kFloat16).ratio, 0.98, 1e-9);
}

TEST(GoldenTest, ChannelsOutsideTheRotationHaveNoTolerance) {
  for (const DType dtype : kDTypes) {
    Json json = SmallCase();
    json["q_out_f64"][4] = 5.0000000001;
    const Deviation deviation = DeviationOf(json, {1, 0, 2, 0, 5, 0}, dtype);
    EXPECT_EQ(deviation.ratio, std::numeric_limits<double>::infinity());
    EXPECT_THAT(deviation.where, HasSubstr("q[0, 0, 4]: got 5, want 5, tolerance 0"));
  }
}

TEST(GoldenTest, ZeroPairThatMovesIsInfinite) {
  EXPECT_EQ(DeviationOf(SmallCase(), {1, 1e-30, 2, 0, 5, 0}, DType::kFloat32).ratio,
            std::numeric_limits<double>::infinity());
}

TEST(GoldenTest, NotANumberFailsInEveryDType) {
  for (const DType dtype : kDTypes) {
    for (const size_t channel : {0, 3, 5}) {
      std::vector<double> rotated = {1, 0, 2, 0, 5, 0};
      rotated[channel] = std::nan("");
      EXPECT_EQ(DeviationOf(SmallCase(), rotated, dtype).ratio,
                std::numeric_limits<double>::infinity());
    }
    EXPECT_EQ(DeviationOf(SmallCase(), {HUGE_VAL, 0, 2, 0, 5, 0}, dtype).ratio,
              std::numeric_limits<double>::infinity());
  }
}

TEST(GoldenTest, FileAlteredByAHundredThousandthFails) {
  GoldenFile golden = FileOf("llama3_d64");
  for (GoldenTensor& tensor : golden.tensors) {
    for (const DType dtype : kDTypes) {
      const std::vector<std::byte> right = Store(tensor.expected, dtype);
      EXPECT_LE(Compare(golden, tensor, dtype, right.data()).ratio, 1);
    }
    const std::vector<std::byte> right = Store(tensor.expected, DType::kFloat32);
    tensor.expected[17] += 1e-5;
    EXPECT_GT(Compare(golden, tensor, DType::kFloat32, right.data()).ratio, 1);
  }
}

TEST(GoldenTest, BadFilesAreRefusedByKey) {
  const auto message_for = [](const Json& json) {
    const auto golden = ParseGolden(json.dump());
    EXPECT_EQ(golden.status().code(), StatusCode::kInvalidArgument);
    return golden.status().message();
  };
  const Json small = SmallCase();
  for (const auto& [key, value] : small.items()) {
    Json json = SmallCase();
    json.erase(key);
    EXPECT_THAT(message_for(json), HasSubstr(key + ": got no such key"));
  }
  const std::pair<const char*, Json> changes[] = {{"format", "rope-golden-2"},
                                                  {"pairing", "both"},
                                                  {"head_dim", 0},
                                                  {"rotary_dim", 3},
                                                  {"rotary_dim", 8},
                                                  {"num_tokens", -1},
                                                  {"num_tokens", 1.5},
                                                  {"num_heads", 1LL << 40},
                                                  {"positions", {0, 1}},
                                                  {"positions", {{0}, {1}}},
                                                  {"positions", {0.5}},
                                                  {"positions", "0"},
                                                  {"q", {1.0}},
                                                  {"q", {1, 2, 3, 4, 5, nullptr}},
                                                  {"q_out_f64", Json::array()},
                                                  {"attention_factor", -1},
                                                  {"attention_factor", "1"},
                                                  {"layer_type", 3},
                                                  {"seq_len", 0}};
  for (const auto& [key, value] : changes) {
    Json json = SmallCase();
    json[key] = value;
    EXPECT_THAT(message_for(json), HasSubstr(std::string(key) + ": got ")) << json;
  }
  for (const char* text : {"", "{", "[]", "{\"q\": NaN}", "{\"q\": 1e999}"}) {
    EXPECT_FALSE(ParseGolden(text).ok()) << text;
  }
}

}  // namespace
}  // namespace rope::client
