#include "kernels/config/presets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/config/config_json.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

TEST(PresetsTest, IsFoundByItsNameAndByItsHubIdsInAnyCase) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"llama-3.1-8b", "llama-3.1-8b"},
      {"Llama-3.1-8B", "llama-3.1-8b"},
      {"meta-llama/Llama-3.1-8B", "llama-3.1-8b"},
      {"meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"},
      {"META-LLAMA/META-LLAMA-3.1-8B-INSTRUCT", "llama-3.1-8b"},
      {"Llama-3.1-8B-Instruct", "llama-3.1-8b"},
      {"zai-org/glm-4-9b-chat-hf", "glm-4-9b-chat"},
      {"GPT-OSS-20B", "gpt-oss-20b"},
  };
  for (const auto& [name, want] : cases) {
    const Preset* const preset = FindPreset(name);
    ASSERT_NE(preset, nullptr) << name;
    EXPECT_EQ(preset->name, want) << name;
  }
  // Another owner's model, another model of the owner, and no name.
  for (const std::string name : {"somebody/Llama-3.1-8B", "meta-llama/Llama-3.1-9B",
                                 "Qwen2.5-7B-Instruct", "llama-3.1-8b ", "meta-llama/", "/", ""}) {
    EXPECT_EQ(FindPreset(name), nullptr) << name;
  }
  EXPECT_EQ(FindPreset("llama-3.1-8b" + std::string(1 << 20, ' ')), nullptr);
}

TEST(PresetsTest, HubIdsHaveAnOwnerAndNameTheSameModelInTheSameWords) {
  for (const Preset& preset : Presets()) {
    for (const std::string& id : preset.hub_ids) {
      EXPECT_EQ(std::ranges::count(id, '/'), 1) << id;
      EXPECT_LE(id.size(), kPresetNameBytesMax);
      EXPECT_EQ(FindPreset(id), FindPreset(preset.name)) << id;
      EXPECT_EQ(FindPreset(id.substr(id.find('/') + 1)), FindPreset(preset.name)) << id;
    }
  }
}

TEST(PresetsTest, NearestPresetOfAMisspeltName) {
  const std::pair<std::string, std::string_view> cases[] = {
      {"kimi-k3", ""},  // another number is another model
      {"KIMI-K2.6", ""},
      {"moonshotai/Kimi-K2.6", ""},
      {"llama-3.1", "llama-3.1-405b or llama-3.1-70b or llama-3.1-8b"},
      {"mistral-7b", "mistral-7b-v0.1 or mistral-7b-v0.3"},
      {"qwen3-3b", ""},
      {"qwen3-", "qwen3-next-80b-a3b or qwen3-vl-2b or qwen3-vl-32b"},
      {"meta-llama/Llama-3.1-8B-Instrct", "llama-3.1-8b"},
      {"lama-3.1-8b", "llama-3.1-8b"},
      {"nothing like any of them", ""},
      {"", ""},
      {std::string(1 << 20, 'q'), ""},
  };
  for (const auto& [name, want] : cases) EXPECT_EQ(NearestPreset(name), want) << name.substr(0, 40);
}

TEST(PresetsTest, PairingIsThatOfTheConfig) {
  for (const Preset& preset : Presets()) {
    ASSERT_OK(model, ModelConfig::Parse(preset.config_json));
    LayerChoice choice;
    if (!model->layer_types().empty()) choice.layer_type = model->layer_types().front();
    EXPECT_EQ(model->Layer(choice)->pairing, preset.pairing) << preset.name;
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
