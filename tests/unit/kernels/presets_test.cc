#include "kernels/presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "kernels/config_json.h"
#include "kernels/frequencies.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using ::rope::testing::IsOk;

const Preset* FindPreset(std::string_view name) {
  for (const Preset& preset : Presets()) {
    if (preset.name == name) return &preset;
  }
  return nullptr;
}

// Published values of one preset's layers.
struct Known {
  std::string preset;
  std::string layer_type;
  int64_t seq_len;
  double attention_factor;
  std::map<size_t, double> inv_freq;  // by index, ten digits
};

class KnownPresetTest : public ::testing::TestWithParam<Known> {};

TEST_P(KnownPresetTest, FrequenciesAreThePublishedOnes) {
  const Known& known = GetParam();
  const Preset* preset = FindPreset(known.preset);
  ASSERT_NE(preset, nullptr) << known.preset;
  const auto model = ModelConfig::Parse(preset->config_json);
  ASSERT_THAT(model, IsOk());
  const auto layer = model->Layer({.layer_type = known.layer_type});
  ASSERT_THAT(layer, IsOk());
  const auto rope = Resolve(layer->config);
  ASSERT_THAT(rope, IsOk());
  EXPECT_NEAR((*rope)->attention_factor(), known.attention_factor, 1e-9);
  const auto inv_freq = (*rope)->Evaluate(known.seq_len).inv_freq;
  for (const auto& [index, want] : known.inv_freq) {
    ASSERT_LT(index, inv_freq.size());
    EXPECT_NEAR(static_cast<double>(inv_freq[index]), want, 1e-9 * want) << index;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Published, KnownPresetTest,
    ::testing::Values(
        Known{"llama-3.1-8b",
              "",
              1,
              1,
              {{0, 1},
               {1, .8146172339},
               {28, 3.211445995e-3},
               {29, 2.166570764e-3},
               {30, 1.371893568e-3},
               {35, 9.556212354e-5},
               {40, 3.428102196e-5},
               {63, 3.068925989e-7}}},
        Known{"gpt-oss-20b",
              "",
              1,
              1.3465735903,
              {{0, 1},
               {8, 5.081327482e-2},
               {9, 3.170569618e-2},
               {12, 6.794959490e-3},
               {17, 1.293187012e-4},
               {18, 3.830881237e-5},
               {31, 3.023511428e-7}}},
        Known{"deepseek-v3",
              "",
              1,
              1,
              {{0, 1},
               {10, 5.623413252e-2},
               {11, 3.900692657e-2},
               {16, 5.5e-3},
               {23, 3.333803580e-5},
               {31, 3.333803580e-6}}},
        Known{"kimi-k2.5",
              "",
              1,
              1,
              {{8, 6.687403050e-2},
               {9, 4.377665595e-2},
               {14, 4.465848749e-3},
               {20, 1.807023387e-5},
               {31, 4.382206456e-7}}},
        Known{
            "gemma-4-31b",
            "full_attention",
            1,
            1,
            {{0, 1}, {1, .9474635257}, {32, .1778279410}, {63, 3.337624694e-2}, {64, 0}, {255, 0}}},
        Known{"gemma-3-4b",
              "full_attention",
              1,
              1,
              {{0, .125}, {1, .1122108916}, {64, 1.25e-4}, {127, 1.392467325e-7}}},
        Known{"gemma-3-4b", "sliding_attention", 1, 1, {{0, 1}, {64, .01}}},
        Known{"phi-4-mini",
              "",
              4097,
              1.1902380714,
              {{0, 1}, {1, .7380746918}, {2, .5447542504}, {4, .2967571935}, {47, 2.536168429e-6}}},
        Known{"phi-4-mini", "", 4096, 1.1902380714, {{0, 1}, {24, .01}}},
        Known{"phi-2", "", 1, 1, {{0, 1}, {8, .01}}},
        Known{"pythia-6.9b", "", 1, 1, {{0, 1}, {8, .01}}}));

TEST(PresetsTest, EveryPresetResolvesForEveryLayerType) {
  for (const Preset& preset : Presets()) {
    SCOPED_TRACE(preset.name);
    const auto model = ModelConfig::Parse(preset.config_json);
    ASSERT_THAT(model, IsOk());
    EXPECT_TRUE(model->num_heads().has_value());
    std::vector<std::string> types = model->layer_types();
    if (types.empty()) types.emplace_back();
    for (const std::string& type : types) {
      const auto layer = model->Layer({.layer_type = type});
      ASSERT_THAT(layer, IsOk());
      EXPECT_EQ(layer->pairing, preset.pairing);
      EXPECT_THAT(layer->warnings, ::testing::IsEmpty());
      EXPECT_THAT(Resolve(layer->config), IsOk());
    }
  }
}

TEST(PresetsTest, NamesAreSortedAndUnique) {
  std::vector<std::string> names;
  for (const Preset& preset : Presets()) names.emplace_back(preset.name);
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(PresetsTest, ModelsOfTheDocumentationAreThere) {
  for (const char* name :
       {"llama-3.1-8b", "llama-2-7b", "llama-3-8b", "llama-3.2-1b", "mistral-7b-v0.1", "qwen2.5-7b",
        "qwen3-8b", "gpt-oss-20b", "deepseek-v3", "gemma-3-4b", "gemma-2-9b", "phi-2", "phi-4-mini",
        "pythia-6.9b", "tinyllama-1.1b", "qwen2.5-vl-7b", "qwen3-vl-8b"}) {
    EXPECT_NE(FindPreset(name), nullptr) << name;
  }
}

TEST(PresetsTest, LlamaHasTheHeadsOfTheModel) {
  const auto model = ModelConfig::Parse(FindPreset("llama-3.1-8b")->config_json);
  ASSERT_THAT(model, IsOk());
  EXPECT_EQ(model->num_heads(), 32);
  EXPECT_EQ(model->num_kv_heads(), 8);
  EXPECT_EQ(model->Layer({})->config.head_dim, 128);
}

}  // namespace
}  // namespace rope::kernels
