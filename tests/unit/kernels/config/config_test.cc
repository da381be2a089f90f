#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/config/config_json.h"
#include "kernels/config/config_json_document.h"
#include "kernels/config/layer_config.h"
#include "kernels/config/presets.h"
#include "kernels/config/rope_config.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

// Protobuf can carry these numbers, JSON cannot. The recorder sets every other number to NaN.
TEST(NotFiniteTest, FrequenciesAndTheBaseAreRefusedByName) {
  RopeConfig config = {.head_dim = 8};
  config.inv_freq = {1, 1, std::nan(""), 1};
  EXPECT_THAT(Validate(config), IsInvalid("inv_freq[2]: got "));
  config.inv_freq[2] = -HUGE_VAL;
  EXPECT_THAT(Validate(config), IsInvalid("inv_freq[2]: got "));
  EXPECT_THAT(Validate({.rope_theta = HUGE_VAL, .head_dim = 8}), IsInvalid("rope_theta: got "));
}

TEST(ValidateTest, HeadDimOfTheTensorIsTakenWhereTheConfigHasNone) {
  RopeConfig config = {.rope_type = RopeType::kLongrope};
  config.max_position_embeddings = 64;
  config.short_factor = {1, 1, 1, 1};
  config.long_factor = {1, 2, 3, 4};
  EXPECT_THAT(Validate(config), IsOk());
  EXPECT_THAT(Validate(config, 8), IsOk());
  EXPECT_THAT(Validate(config, 16), IsInvalid("short_factor: got 4 num"));
  config.head_dim = 8;
  EXPECT_THAT(Validate(config, 16), IsOk());
}

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
  const absl::Span<const Preset> presets = Presets();
  EXPECT_EQ(std::ranges::adjacent_find(presets, std::ranges::greater_equal(), &Preset::name),
            presets.end());
}

// --- The reader: what a text cannot show; tests/conformance/cases/configs has the rest ---

void ExpectInvalid(std::string_view json, const std::string& message) {
  EXPECT_THAT(ModelConfig::Parse(json), IsInvalid(message));
}

TEST(ParseTest, DeepNestingIsHarmless) {
  const std::string deep(500000, '[');
  ExpectInvalid(R"({"a": )" + deep, "config_json: got a syntax error");
  EXPECT_THAT(ModelConfig::Parse(R"({"a": )" + deep + std::string(500000, ']') + "}"), IsOk());
}

TEST(ParseTest, ManyUnknownKeysAreCounted) {
  std::string json = R"({"rope_theta": 1, "rope_scaling": {"type": "default")";
  for (int i = 0; i < 1000; ++i) json += ", \"x" + std::to_string(i) + "\": 1";
  ASSERT_OK(model, ModelConfig::Parse(json + "}}"));
  const std::vector<Remark> remarks = model->Layer({})->remarks;
  ASSERT_THAT(remarks, SizeIs(17));
  EXPECT_EQ(remarks.back().text, "984 more keys have no effect");
}

TEST(FindSubConfigsTest, AreListedByTheirPaths) {
  ASSERT_OK(found, FindSubConfigs(R"({
      "quantization_config": {"model_type": "none", "rope_theta": 3},
      "talker_config": {"code_predictor_config": {"rope_theta": 11}, "text_config": {}},
      "thinker_config": {"decoder": {"model_type": "x"}, "vision_config": {"num_heads": 16}}})"));
  std::vector<std::string> names;
  for (const SubConfig& config : found->configs) names.push_back(config.name);
  EXPECT_THAT(names, ElementsAre("talker_config", "talker_config.code_predictor_config",
                                 "talker_config.text_config", "thinker_config",
                                 "thinker_config.decoder", "thinker_config.vision_config"));
  EXPECT_FALSE(found->configs[0].states_rope);
  EXPECT_TRUE(found->configs[1].states_rope);
  EXPECT_FALSE(found->configs[5].states_rope);
  EXPECT_FALSE(found->readable_without_choice);
}

TEST(FindSubConfigsTest, AbsurdNestingIsBounded) {
  std::string deep = "{}";
  for (int i = 0; i < 30; ++i) deep = R"({"a_config": )" + deep + "}";
  EXPECT_EQ(FindSubConfigs(deep)->configs.size(), 4u);
  std::string wide = R"({"b": 1)";
  for (int i = 0; i < 100; ++i) wide += ", \"k" + std::to_string(i) + "_config\": {}";
  EXPECT_EQ(FindSubConfigs(wide + "}")->configs.size(), 64u);
}

TEST(SubConfigTest, FileSaysWhetherAnotherOneMayBeChosen) {
  constexpr char kVl[] = R"({"head_dim": 128, "vision_config": {"hidden_size": 1280}})";
  EXPECT_TRUE(ModelConfig::Parse(kVl)->has_sub_configs());
  EXPECT_FALSE(ModelConfig::Parse(kVl, "vision_config")->has_sub_configs());
  EXPECT_FALSE(ModelConfig::Parse("{}")->has_sub_configs());
}

TEST(LayerChoiceTest, SameLayersHaveOneTypeAndRotateAlike) {
  ASSERT_OK(model, ModelConfig::Parse(R"({"rope_theta": 7, "num_hidden_layers": 6,
      "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention",
                      "sliding_attention", "full_attention"],
      "no_rope_layers": [1, 1, 1, 0, 1, 0]})"));
  EXPECT_TRUE(model->SameLayers(0, 2));
  EXPECT_TRUE(model->SameLayers(1, 4));
  EXPECT_FALSE(model->SameLayers(0, 1));
  EXPECT_FALSE(model->SameLayers(2, 3)) << "one does not rotate";
  EXPECT_TRUE(model->SameLayers(3, 5));
  EXPECT_FALSE(model->SameLayers(0, 6)) << "there are six layers";
  EXPECT_FALSE(model->SameLayers(-1, 0));
  ASSERT_OK(bases, ModelConfig::Parse(R"({"layer_rope_theta": [7, 7, 8]})"));
  EXPECT_TRUE(bases->SameLayers(0, 1));
  EXPECT_FALSE(bases->SameLayers(1, 2)) << "they have two bases";
}

// --- Limits of the reader: no short text takes long ---

constexpr size_t kTextBytes = 1 << 20;
// Far above what any text below takes, far below the minutes of a quadratic reader.
constexpr std::chrono::seconds kSlow{5};

// `count` fields "nameN": value.
std::string Fields(std::string_view name, int count, std::string_view value) {
  std::string fields;
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&fields, fields.empty() ? "" : ", ", "\"", std::string(name), i,
                    "\": ", std::string(value));
  }
  return fields;
}

std::string Repeated(std::string_view element, int count) {
  std::string list;
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&list, list.empty() ? "" : ",", std::string(element));
  }
  return list;
}

absl::StatusOr<ModelConfig> ParseInTime(const std::string& json) {
  const auto start = std::chrono::steady_clock::now();
  auto model = ModelConfig::Parse(json);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kSlow);
  return model;
}

TEST(HugeNumberTest, DimsOfTheLargestHeadAreRead) {
  ASSERT_OK(model, ModelConfig::Parse(
                       R"({"model_type": "pixtral", "rope_theta": 1e6, "head_dim": 65536})"));
  EXPECT_EQ(model->Layer({})->config.mrope->axes.size(), 32768u);
}

TEST(HugeNumberTest, ListOfASizeIsRefusedWhateverItsDepth) {
  const std::string deep(400000, '[');
  ExpectInvalid(absl::StrCat(R"({"model_type": "jetmoe", "kv_channels": )", deep,
                             std::string(deep.size(), ']'), "}"),
                "head_dim: got a list of 1, want a whole number");
}

TEST(LayerTypesLimitTest, NullsCount) {
  const auto with_nulls = [](int count) {
    return absl::StrCat(R"({"rope_parameters": {)", Fields("_", count, "null"),
                        R"(, "full_attention": {"rope_theta": 7}}})");
  };
  EXPECT_THAT(ModelConfig::Parse(with_nulls(63)), IsOk());
  ExpectInvalid(with_nulls(64), "rope_parameters: got more layer types, want at most 64");
}

TEST(LayerTypesLimitTest, TypesOfAFragmentAreBounded) {
  std::string types = R"("full_attention": {"rope_theta": 7})";
  for (int i = 0; i < 64; ++i) absl::StrAppend(&types, ", \"", i, "_attention\": null");
  ExpectInvalid(absl::StrCat("{", types, "}"),
                "config_json: got more layer types, want at most 64");
}

TEST(LayerTypesLimitTest, NamesAreShort) {
  const std::string name(129, 'a');
  ExpectInvalid(absl::StrCat(R"({"rope_parameters": {")", name, R"(": {"rope_theta": 7}}})"),
                "want names of at most 128 bytes");
  ExpectInvalid(absl::StrCat(R"({"rope_theta": 7, "layer_types": [")", name, R"("]})"),
                "want at most 64 types, of at most 128 bytes each");
  ExpectInvalid(absl::StrCat(R"({"rope_theta": 7, "model_type": ")", name, R"("})"),
                "want a name of at most 128 bytes");
}

TEST(LayerTypesLimitTest, AListHasAtMost64DifferentOnes) {
  std::string list;
  for (int i = 0; i < 65; ++i) {
    if (i == 64) {
      EXPECT_THAT(ModelConfig::Parse(absl::StrCat(R"({"layer_types": [)", list, "]}")), IsOk());
    }
    absl::StrAppend(&list, i == 0 ? "" : ", ", "\"type", i, "\"");
  }
  ExpectInvalid(absl::StrCat(R"({"layer_types": [)", list, "]}"),
                R"(layer_types: got "type64", want at most 64 types)");
}

TEST(LayerTypesLimitTest, ListsOfLayersAreBounded) {
  for (const char* key : {"hybrid_layer_pattern", "no_rope_layers", "layer_types"}) {
    const char* const element = std::string_view(key) == "layer_types" ? R"("a")" : "1";
    const std::string list = absl::StrCat("{\"", key, "\": [", Repeated(element, 65536));
    EXPECT_THAT(ModelConfig::Parse(list + "]}"), IsOk());
    ExpectInvalid(absl::StrCat(list, ", ", element, "]}"),
                  absl::StrCat(key, ": got 65537 elements, want at most 65536"));
  }
}

TEST(LayerTypesLimitTest, ListsOfFrequenciesAreBounded) {
  for (const char* key : {"short_factor", "long_factor", "inv_freq"}) {
    ExpectInvalid(absl::StrCat(R"({"rope_scaling": {")", key, "\": [", Repeated("1", 65537), "]}}"),
                  absl::StrCat("rope_scaling.", key, ": got 65537 elements, want at most 65536"));
  }
}

TEST(LayerTypesLimitTest, EmbeddingsOfAllTypesTogetherAreBounded) {
  const std::string start = R"({"model_type": "neomme", "head_dim": 65536, "rope_parameters": {)";
  EXPECT_THAT(ModelConfig::Parse(absl::StrCat(start, Fields("a", 2, "{}"), "}}")), IsOk());
  ExpectInvalid(absl::StrCat(start, Fields("a", 64, "{}"), "}}"), "got more than 2097152 bytes");
}

TEST(TimeLimitTest, AMebibyteOfObjectsIsReadInTime) {
  EXPECT_THAT(ParseInTime(absl::StrCat(R"({"a": [)", Repeated("{}", kTextBytes / 3 - 8), "]}")),
              IsOk());
  EXPECT_THAT(ParseInTime(absl::StrCat("{", Fields("", kTextBytes / 16, "{}"), "}")), IsOk());
}

TEST(TimeLimitTest, PerLayerConfigIsReadInTime) {
  EXPECT_THAT(ParseInTime(absl::StrCat(R"({"model_type": "mistral4", "rope_parameters": {)",
                                       Fields("type", 64, "{}"), R"(}, "per_layer_config": {)",
                                       Fields("", 30000, "{}"), R"(}, "layer_types": [)",
                                       Repeated(R"("type63")", 65536), "]}")),
              IsOk());
}

TEST(KeptBytesTest, EveryListOfAConfigCounts) {
  RopeConfig config;
  int64_t least = 0;
  EXPECT_EQ(KeptBytes(config), 0);
  for (auto* const list : {&config.short_factor, &config.long_factor, &config.inv_freq}) {
    list->resize(1000);
    least += static_cast<int64_t>(1000 * sizeof(double));
    EXPECT_GE(KeptBytes(config), least);
  }
  config.mrope.emplace().axes.resize(1000);
  EXPECT_GE(KeptBytes(config), least + 1000);
}

TEST(KeptBytesTest, LayersTakeAByteEach) {
  ASSERT_OK(model,
            ModelConfig::Parse(
                R"({"rope_theta": 7, "num_hidden_layers": 65536, "sliding_window_pattern": 2})"));
  EXPECT_EQ(model->numbered_layers(), 65536);
  EXPECT_GE(model->KeptBytes(), 65536);
  EXPECT_LE(model->KeptBytes(), 128 << 10);
}

TEST(KeptBytesTest, ListsNamesAndWarningsCount) {
  const auto bytes = [](std::string_view json) {
    const auto model = ModelConfig::Parse(json);
    EXPECT_THAT(model, IsOk());
    return model.ok() ? model->KeptBytes() : 0;
  };
  const int64_t least = bytes(R"({"rope_theta": 7})");
  EXPECT_GE(least, static_cast<int64_t>(sizeof(ModelConfig) + sizeof(LayerConfig)));
  EXPECT_GE(bytes(absl::StrCat(R"({"rope_theta": 7, "rope_scaling": {"inv_freq": [)",
                               Repeated("1", 1000), "]}}")),
            least + 8000);
  EXPECT_GE(bytes(R"({"model_type": "neomme", "rope_theta": 7, "head_dim": 2000})"), least + 1000);
  EXPECT_GE(bytes(absl::StrCat(R"({"rope_theta": 7, "architectures": [")", std::string(100, 'a'),
                               R"("]})")),
            least + 100);
  EXPECT_GE(bytes(R"({"rope_theta": 7, "rope_percent": 1})"),
            least + static_cast<int64_t>(sizeof(std::string)));
}

}  // namespace
}  // namespace rope::kernels
