#include "kernels/config/presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/config/config_json.h"
#include "kernels/frequencies/frequencies.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/config/resolved_text.h"

namespace rope::kernels {
namespace {

using ::rope::testing::IsOk;
using ::rope::testing::ScalingText;

constexpr char kFull[] = "full_attention";
constexpr char kSliding[] = "sliding_attention";
constexpr char kLlama3[] = "llama3 f8 lf1 hf4 L8192";
constexpr char kLlama3Of32[] = "llama3 f32 lf1 hf4 L8192";
constexpr char kDeepseekYarn[] = "yarn f40 L4096 bf32 bs1 rounded";
constexpr char kGptOssYarn[] = "yarn f32 L4096 bf32 bs1 exact";
constexpr char kQwen3Vl[] = "default mrope interleaved 24,20,20";
constexpr char kQwen35[] = "default mrope interleaved 11,11,10";

const Preset* FindPreset(std::string_view name) {
  for (const Preset& preset : Presets()) {
    if (preset.name == name) return &preset;
  }
  return nullptr;
}

// Published parameters of one preset's layers. They are typed in, and never taken from the code.
struct Published {
  std::string preset;
  int64_t head_dim;
  int64_t rotary_dim;
  int64_t heads;
  int64_t kv_heads;  // that rotate
  double theta;
  std::string scaling;
  char pairing;  // h: half, i: interleaved
  int64_t max_positions;
  double attention_factor = 1;
  std::string layer_type = "";
};

// One line each, in the order of the names.
// clang-format off
const Published kPublished[] = {
    {"codellama-7b", 128, 128, 32, 32, 1e6, "default", 'h', 16384},
    {"deepseek-r1", 64, 64, 128, 1, 1e4, kDeepseekYarn, 'i', 163840},
    {"deepseek-v3", 64, 64, 128, 1, 1e4, kDeepseekYarn, 'i', 163840},
    {"ernie-4.5-21b-a3b", 128, 128, 20, 4, 5e5, "default", 'i', 131072},
    {"exaone-4.0-1.2b", 64, 64, 32, 8, 1e6, "llama3 f16 lf1 hf4 L8192", 'h', 65536},
    {"falcon-7b", 64, 64, 71, 1, 1e4, "default", 'h', 2048},
    {"gemma-2-27b", 128, 128, 32, 16, 1e4, "default", 'h', 8192},
    {"gemma-2-2b", 256, 256, 8, 4, 1e4, "default", 'h', 8192},
    {"gemma-2-9b", 256, 256, 16, 8, 1e4, "default", 'h', 8192},
    {"gemma-3-1b", 256, 256, 4, 1, 1e6, "default", 'h', 32768, 1, kFull},
    {"gemma-3-1b", 256, 256, 4, 1, 1e4, "default", 'h', 32768, 1, kSliding},
    {"gemma-3-27b", 128, 128, 32, 16, 1e6, "linear f8", 'h', 131072, 1, kFull},
    {"gemma-3-27b", 128, 128, 32, 16, 1e4, "default", 'h', 131072, 1, kSliding},
    {"gemma-3-4b", 256, 256, 8, 4, 1e6, "linear f8", 'h', 131072, 1, kFull},
    {"gemma-3-4b", 256, 256, 8, 4, 1e4, "default", 'h', 131072, 1, kSliding},
    {"gemma-4-26b-a4b", 512, 512, 16, 8, 1e6, "proportional f1 p0.25", 'h', 262144, 1, kFull},
    {"gemma-4-26b-a4b", 256, 256, 16, 8, 1e4, "default", 'h', 262144, 1, kSliding},
    {"gemma-4-31b", 512, 512, 32, 16, 1e6, "proportional f1 p0.25", 'h', 262144, 1, kFull},
    {"gemma-4-31b", 256, 256, 32, 16, 1e4, "default", 'h', 262144, 1, kSliding},
    {"glm-4.5", 128, 64, 96, 8, 1e6, "default", 'h', 131072},
    {"glm-4.5-air", 128, 64, 96, 8, 1e6, "default", 'h', 131072},
    {"gpt-oss-120b", 64, 64, 64, 8, 150000, kGptOssYarn, 'h', 131072, 1.3465735903},
    {"gpt-oss-20b", 64, 64, 64, 8, 150000, kGptOssYarn, 'h', 131072, 1.3465735903},
    {"kimi-k2.5", 64, 64, 64, 1, 5e4, "yarn f64 L4096 bf32 bs1 rounded", 'i', 262144},
    {"kimi-vl-a3b", 64, 64, 16, 1, 8e5, "default", 'i', 131072},
    {"llama-2-7b", 128, 128, 32, 32, 1e4, "default", 'h', 4096},
    {"llama-3-8b", 128, 128, 32, 8, 5e5, "default", 'h', 8192},
    {"llama-3.1-405b", 128, 128, 128, 8, 5e5, kLlama3, 'h', 131072},
    {"llama-3.1-70b", 128, 128, 64, 8, 5e5, kLlama3, 'h', 131072},
    {"llama-3.1-8b", 128, 128, 32, 8, 5e5, kLlama3, 'h', 131072},
    {"llama-3.2-1b", 64, 64, 32, 8, 5e5, kLlama3Of32, 'h', 131072},
    {"llama-3.2-3b", 128, 128, 24, 8, 5e5, kLlama3Of32, 'h', 131072},
    {"llama-3.3-70b", 128, 128, 64, 8, 5e5, kLlama3, 'h', 131072},
    {"llama-4-maverick", 128, 128, 40, 8, 5e5, "default", 'i', 1048576},
    {"llama-4-scout", 128, 128, 40, 8, 5e5, "llama3 f16 lf1 hf1 L8192", 'i', 10485760},
    {"mimo-v2-flash", 192, 64, 64, 4, 5e6, "default", 'h', 262144, 1, kFull},
    {"mimo-v2-flash", 192, 64, 64, 4, 1e4, "default", 'h', 262144, 1, kSliding},
    {"ministral-3-8b", 128, 128, 32, 8, 1e6, "yarn f16 L16384 bf32 bs1 rounded", 'h', 262144},
    {"mistral-7b-v0.1", 128, 128, 32, 8, 1e4, "default", 'h', 32768},
    {"mistral-7b-v0.3", 128, 128, 32, 8, 1e6, "default", 'h', 32768},
    {"mistral-large-2407", 128, 128, 96, 8, 1e6, "default", 'h', 32768},
    {"mixtral-8x7b", 128, 128, 32, 8, 1e6, "default", 'h', 32768},
    {"moonlight-16b-a3b", 64, 64, 16, 1, 5e4, "default", 'i', 8192},
    {"olmo-2-7b", 128, 128, 32, 32, 5e5, "default", 'h', 4096},
    {"phi-2", 80, 32, 32, 32, 1e4, "default", 'h', 2048},
    {"phi-3-mini-4k", 96, 96, 32, 32, 1e4, "default", 'h', 4096},
    {"phi-4", 128, 128, 40, 10, 250000, "default", 'h', 16384},
    {"phi-4-mini", 128, 96, 24, 8, 1e4, "longrope f32 L4096 short48 long48", 'h', 131072,
     1.1902380714},
    {"pythia-6.9b", 128, 32, 32, 32, 1e4, "default", 'h', 2048},
    {"qwen2.5-0.5b", 64, 64, 14, 2, 1e6, "default", 'h', 32768},
    {"qwen2.5-7b", 128, 128, 28, 4, 1e6, "default", 'h', 131072},
    {"qwen2.5-vl-7b", 128, 128, 28, 4, 1e6, "default mrope 16,24,24", 'h', 128000},
    {"qwen3-0.6b", 128, 128, 16, 8, 1e6, "default", 'h', 40960},
    {"qwen3-14b", 128, 128, 40, 8, 1e6, "default", 'h', 40960},
    {"qwen3-235b-a22b", 128, 128, 64, 4, 1e6, "default", 'h', 40960},
    {"qwen3-30b-a3b", 128, 128, 32, 4, 1e6, "default", 'h', 40960},
    {"qwen3-32b", 128, 128, 64, 8, 1e6, "default", 'h', 40960},
    {"qwen3-4b", 128, 128, 32, 8, 1e6, "default", 'h', 40960},
    {"qwen3-8b", 128, 128, 32, 8, 1e6, "default", 'h', 40960},
    {"qwen3-next-80b-a3b", 256, 64, 16, 2, 1e7, "default", 'h', 262144},
    {"qwen3-vl-2b", 128, 128, 16, 8, 5e6, kQwen3Vl, 'h', 262144},
    {"qwen3-vl-32b", 128, 128, 64, 8, 5e6, kQwen3Vl, 'h', 262144},
    {"qwen3-vl-4b", 128, 128, 32, 8, 5e6, kQwen3Vl, 'h', 262144},
    {"qwen3-vl-8b", 128, 128, 32, 8, 5e6, kQwen3Vl, 'h', 262144},
    {"qwen3.5-0.8b", 256, 64, 8, 2, 1e7, kQwen35, 'h', 262144},
    {"qwen3.5-27b", 256, 64, 24, 4, 1e7, kQwen35, 'h', 262144},
    {"qwen3.5-2b", 256, 64, 8, 2, 1e7, kQwen35, 'h', 262144},
    {"smollm2-1.7b", 64, 64, 32, 32, 130000, "default", 'h', 8192},
    {"tinyllama-1.1b", 64, 64, 32, 4, 1e4, "default", 'h', 2048},
};
// clang-format on

std::string TestName(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '.' || c == '-'; }, '_');
  return name;
}

class PublishedTest : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedTest, ParametersAreThePublishedOnes) {
  const Published& want = GetParam();
  const Preset* preset = FindPreset(want.preset);
  ASSERT_NE(preset, nullptr);
  const auto model = ModelConfig::Parse(preset->config_json);
  ASSERT_THAT(model, IsOk());
  EXPECT_EQ(model->num_heads(), want.heads);
  EXPECT_EQ(model->num_kv_heads(), want.kv_heads);
  const auto layer = model->Layer({.layer_type = want.layer_type});
  ASSERT_THAT(layer, IsOk());
  EXPECT_TRUE(layer->rotates);
  const Pairing pairing = want.pairing == 'i' ? Pairing::kInterleaved : Pairing::kHalf;
  EXPECT_EQ(preset->pairing, pairing);
  EXPECT_EQ(layer->pairing, pairing);
  EXPECT_EQ(layer->config.max_position_embeddings, want.max_positions);
  const auto rope = Resolve(layer->config);
  ASSERT_THAT(rope, IsOk());
  EXPECT_EQ((*rope)->head_dim(), want.head_dim);
  EXPECT_EQ((*rope)->rotary_dim(), want.rotary_dim);
  EXPECT_EQ((*rope)->config().rope_theta, want.theta);
  EXPECT_EQ(ScalingText(**rope), want.scaling);
  EXPECT_NEAR((*rope)->attention_factor(), want.attention_factor, 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Presets, PublishedTest, ::testing::ValuesIn(kPublished),
                         [](const auto& published) {
                           const Published& want = published.param;
                           return TestName(want.preset + (want.layer_type.empty() ? "" : "-") +
                                           want.layer_type);
                         });

// Published inverse frequencies, ten digits, by index.
struct Frequency {
  std::string name;
  std::vector<std::string> presets;
  std::map<size_t, double> inv_freq;
  int64_t seq_len = 1;
  std::string layer_type = "";
};

const Frequency kFrequencies[] = {
    {"Llama31",
     {"llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-3.3-70b"},
     {{0, 1},
      {1, .8146172339},
      {28, 3.211445995e-3},
      {29, 2.166570764e-3},
      {30, 1.371893568e-3},
      {35, 9.556212354e-5},
      {40, 3.428102196e-5},
      {63, 3.068925989e-7}}},
    {"GptOss",
     {"gpt-oss-20b", "gpt-oss-120b"},
     {{0, 1},
      {8, 5.081327482e-2},
      {9, 3.170569618e-2},
      {12, 6.794959490e-3},
      {17, 1.293187012e-4},
      {18, 3.830881237e-5},
      {31, 3.023511428e-7}}},
    {"DeepseekV3",
     {"deepseek-v3", "deepseek-r1"},
     {{0, 1},
      {10, 5.623413252e-2},
      {11, 3.900692657e-2},
      {16, 5.5e-3},
      {23, 3.333803580e-5},
      {31, 3.333803580e-6}}},
    {"KimiK25",
     {"kimi-k2.5"},
     {{8, 6.687403050e-2},
      {9, 4.377665595e-2},
      {14, 4.465848749e-3},
      {20, 1.807023387e-5},
      {31, 4.382206456e-7}}},
    {"Ministral3",
     {"ministral-3-8b"},
     {{20, 1.333521432e-2},
      {21, 1.015346367e-2},
      {28, 1.325179424e-3},
      {37, 2.123880206e-5},
      {63, 7.755861005e-8}}},
    {"Gemma4Full",
     {"gemma-4-31b", "gemma-4-26b-a4b"},
     {{0, 1}, {1, .9474635257}, {32, .1778279410}, {63, 3.337624694e-2}, {64, 0}, {255, 0}},
     1,
     kFull},
    {"Gemma3Full",
     {"gemma-3-4b"},
     {{0, .125}, {1, .1122108916}, {64, 1.25e-4}, {127, 1.392467325e-7}},
     1,
     kFull},
    {"Gemma3Sliding", {"gemma-3-4b", "gemma-3-1b"}, {{0, 1}, {64, .01}}, 1, kSliding},
    {"Phi4MiniLong",
     {"phi-4-mini"},
     {{0, 1}, {1, .7380746918}, {2, .5447542504}, {4, .2967571935}, {47, 2.536168429e-6}},
     4097},
    {"Phi4MiniShort", {"phi-4-mini"}, {{0, 1}, {24, .01}}, 4096},
    {"Partial", {"phi-2", "pythia-6.9b"}, {{0, 1}, {8, .01}}},
};

class FrequencyTest : public ::testing::TestWithParam<Frequency> {};

TEST_P(FrequencyTest, FrequenciesAreThePublishedOnes) {
  for (const std::string& name : GetParam().presets) {
    SCOPED_TRACE(name);
    const Preset* preset = FindPreset(name);
    ASSERT_NE(preset, nullptr);
    const auto model = ModelConfig::Parse(preset->config_json);
    ASSERT_THAT(model, IsOk());
    const auto layer = model->Layer({.layer_type = GetParam().layer_type});
    ASSERT_THAT(layer, IsOk());
    const auto rope = Resolve(layer->config);
    ASSERT_THAT(rope, IsOk());
    const auto inv_freq = (*rope)->Evaluate(GetParam().seq_len).inv_freq;
    for (const auto& [index, want] : GetParam().inv_freq) {
      ASSERT_LT(index, inv_freq.size());
      EXPECT_NEAR(static_cast<double>(inv_freq[index]), want, 1e-9 * want) << index;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, FrequencyTest, ::testing::ValuesIn(kFrequencies),
                         [](const auto& frequency) { return frequency.param.name; });

TEST(PresetsTest, EveryLayerTypeOfEveryPresetIsInTheTable) {
  std::set<std::pair<std::string, std::string>> in_table;
  for (const Published& published : kPublished) {
    EXPECT_TRUE(in_table.emplace(published.preset, published.layer_type).second);
  }
  for (const Preset& preset : Presets()) {
    const auto model = ModelConfig::Parse(preset.config_json);
    ASSERT_THAT(model, IsOk()) << preset.name;
    std::vector<std::string> types = model->layer_types();
    if (types.empty()) types.emplace_back();
    for (const std::string& type : types) {
      EXPECT_EQ(in_table.count({std::string(preset.name), type}), 1) << preset.name << type;
    }
  }
}

TEST(PresetsTest, OnlyWhatARotationLeavesOutWarns) {
  const std::map<std::string_view, std::string> expected = {
      {"llama-4-maverick", "some layers do not rotate, the first is layer 3"},
      {"llama-4-scout", "some layers do not rotate, the first is layer 3"},
      {"ministral-3-8b", "llama_4_scaling_beta"},
  };
  for (const Published& published : kPublished) {
    SCOPED_TRACE(published.preset);
    const auto model = ModelConfig::Parse(FindPreset(published.preset)->config_json);
    const std::vector<std::string> warnings =
        model->Layer({.layer_type = published.layer_type})->warnings;
    const auto found = expected.find(published.preset);
    if (found == expected.end()) {
      EXPECT_THAT(warnings, ::testing::IsEmpty());
    } else {
      EXPECT_THAT(warnings, ::testing::ElementsAre(::testing::HasSubstr(found->second)));
    }
  }
}

TEST(PresetsTest, NamesAreSortedAndUnique) {
  std::vector<std::string> names;
  for (const Preset& preset : Presets()) names.emplace_back(preset.name);
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

}  // namespace
}  // namespace rope::kernels
