#include "server/models/model_registry.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/error.h"
#include "server/limits.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

SpecCache::Value Value(int64_t bytes) {
  return {.layers = std::make_shared<const RopeEntries>(), .bytes = bytes};
}

TEST(SpecCacheTest, FirstValueOfAKeyStays) {
  SpecCache cache(limits::kMiB);
  EXPECT_EQ(cache.Find("a").layers, nullptr);
  const SpecCache::Value first = cache.Add("a", Value(1));
  EXPECT_EQ(cache.Add("a", Value(2)).layers, first.layers);
  EXPECT_EQ(cache.Find("a").layers, first.layers);
}

TEST(SpecCacheTest, KeysCountToo) {
  SpecCache cache(100'000);
  cache.Add("a", Value(1));
  const int64_t bytes = cache.bytes();
  cache.Add(std::string(60'000, 'b'), Value(1));
  EXPECT_EQ(cache.bytes(), bytes) << "the long key does not fit, because it is kept twice";
  cache.Add(std::string(49'800, 'b'), Value(1));
  EXPECT_EQ(cache.Find("a").layers, nullptr) << "nor do both";
}

constexpr char kPlain[] = R"({"head_dim": 64, "rope_theta": 10000})";
constexpr char kLlama[] =
    R"({"model_type": "llama", "head_dim": 64, "max_position_embeddings": 4096})";

std::unique_ptr<ModelRegistry> MakeRegistry(
    const std::vector<ModelRegistry::ModelFile>& files = {}) {
  auto registry = ModelRegistry::Create(files);
  EXPECT_THAT(registry, IsOk());
  return registry.ok() ? *std::move(registry) : nullptr;
}

v1::RopeSpec ByModel(const std::string& name) {
  v1::RopeSpec spec;
  spec.set_model(name);
  return spec;
}

v1::RopeSpec ByJson(const std::string& json) {
  v1::RopeSpec spec;
  spec.set_config_json(json);
  return spec;
}

v1::RopeSpec ByConfig(double theta, int64_t head_dim = 64) {
  v1::RopeSpec spec;
  spec.mutable_config()->set_rope_theta(theta);
  spec.mutable_config()->set_head_dim(head_dim);
  return spec;
}

v1::RopeSpec ById(const std::string& config_id) {
  v1::RopeSpec spec;
  spec.set_config_id(config_id);
  return spec;
}

TEST(EvictionTest, OldSpecsGoAndComeBack) {
  const auto registry = MakeRegistry();
  ASSERT_OK(first, registry->Find(ByConfig(10000, 2)));
  std::set<std::string> ids;
  for (int64_t i = 1; i <= limits::kSpecsMax; ++i) {
    ASSERT_OK(entry, registry->Find(ByConfig(10000 + static_cast<double>(i), 2)));
    ids.insert((*entry)->config_id());
  }
  EXPECT_EQ(static_cast<int64_t>(ids.size()), limits::kSpecsMax);
  EXPECT_THAT(registry->Find(ById((*first)->config_id())), IsNotFound("rope.config_id"));
  ASSERT_OK(again, registry->Find(ByConfig(10000, 2)));
  EXPECT_EQ((*again)->config_id(), (*first)->config_id());
  EXPECT_THAT(registry->Find(ById((*again)->config_id())), IsOk());
}

TEST(EvictionTest, PrecisionHfCountsItsTableOfEachDType) {
  for (const v1::Precision precision : {v1::PRECISION_EXACT, v1::PRECISION_HF}) {
    const auto registry = MakeRegistry();
    ASSERT_OK(first, registry->Find(ByConfig(10000, 65536)));
    for (int i = 1; i <= 8; ++i) {  // 3 MiB each, or 9
      v1::RopeSpec spec = ByConfig(10000 + i, 65536);
      spec.set_precision(precision);
      ASSERT_THAT(registry->Find(spec), IsOk());
    }
    const bool kept = registry->Find(ById((*first)->config_id())).ok();
    EXPECT_EQ(kept, precision == v1::PRECISION_EXACT);
  }
}

TEST(EvictionTest, BytesAreBoundedByTheOptions) {
  const auto registry = ModelRegistry::Create({}, limits::kMiB).value();
  for (int i = 0; i < 100; ++i) {
    ASSERT_THAT(registry->Find(ByConfig(10000 + i, 1024)), IsOk());
    EXPECT_LE(registry->spec_bytes(), limits::kMiB);
  }
  EXPECT_GE(registry->spec_bytes(), limits::kMiB / 2);
}

bool TakesLong(ModelRegistry& registry, const v1::RopeSpec& spec) {
  return IsNeedsSideThread(registry.Find(spec, /*may_take_long=*/false).status());
}

// Expects that the spec takes long until it was found.
void ExpectLongUntilFound(ModelRegistry& registry, const v1::RopeSpec& spec) {
  const int64_t bytes = registry.spec_bytes();
  EXPECT_TRUE(TakesLong(registry, spec)) << spec.ShortDebugString();
  EXPECT_EQ(registry.spec_bytes(), bytes) << "the decision resolves nothing";
  EXPECT_THAT(registry.Find(spec), IsOk());
  EXPECT_FALSE(TakesLong(registry, spec)) << spec.ShortDebugString();
}

TEST(TakesLongTest, EveryFieldThatSaysHowWideAConfigIsCounts) {
  const auto registry = MakeRegistry();
  v1::RopeSpec rotary;
  rotary.mutable_config()->set_rotary_dim(kWidthHereMax + 2);
  ExpectLongUntilFound(*registry, rotary);
  v1::RopeSpec given;
  for (int64_t i = 0; i <= kWidthHereMax; ++i) {
    given.mutable_config()->mutable_inv_freq()->add_numbers(1);
  }
  EXPECT_TRUE(TakesLong(*registry, given));
  given.mutable_config()->mutable_inv_freq()->mutable_numbers()->RemoveLast();
  EXPECT_FALSE(TakesLong(*registry, given));
  v1::RopeSpec factors;
  for (int64_t i = 0; i <= kWidthHereMax; ++i) factors.mutable_config()->add_long_factor(1);
  EXPECT_TRUE(TakesLong(*registry, factors));
  v1::RopeSpec axes;
  for (int64_t i = 0; i <= kWidthHereMax; ++i) axes.mutable_config()->add_mrope_axes(0);
  EXPECT_TRUE(TakesLong(*registry, axes));
}

TEST(TakesLongTest, SpecsThatAreNeverCachedAlwaysDo) {
  const auto registry = ModelRegistry::Create({}, limits::kMiB).value();
  const v1::RopeSpec large = ByConfig(10000, 65536);
  EXPECT_THAT(registry->Find(large), IsOk());
  EXPECT_TRUE(TakesLong(*registry, large));
  const v1::RopeSpec bad = ByConfig(-1, 65536);
  EXPECT_THAT(registry->Find(bad), IsInvalid("rope_theta"));
  EXPECT_TRUE(TakesLong(*registry, bad));
}

// Two kinds of layers and a long list, so that reading takes milliseconds.
std::string LongFile(int64_t bytes) {
  std::string json = R"({"model_type": "gemma3_text", "head_dim": 64, "rope_theta": 1000000.0,
      "rope_local_base_freq": 10000.0, "num_hidden_layers": 1024, "sliding_window_pattern": 2,
      "vision_config": {"head_dim": 8, "rope_theta": 100.0, "num_hidden_layers": 1024},
      "list": [1)";
  while (static_cast<int64_t>(json.size()) < bytes - 4) json += ",1";
  return json + "]}";
}

TEST(FindLayersTest, FileIsReadAndKeptOnce) {
  constexpr int64_t kLayers = 1024;
  const auto registry = MakeRegistry();
  ASSERT_OK(other, registry->Find(ByConfig(10000)));
  v1::RopeSpec spec = ByJson(LongFile(limits::kConfigJsonBytesMax));
  spec.set_first_layer(0);
  ASSERT_OK(layers, registry->FindLayers(spec, kLayers));
  ASSERT_EQ(static_cast<int64_t>(layers->size()), kLayers);
  EXPECT_EQ((*layers)[0]->layer().config.rope_theta, 1e4);
  EXPECT_EQ((*layers)[1]->layer().config.rope_theta, 1e6);
  for (size_t i = 2; i < layers->size(); ++i) EXPECT_EQ((*layers)[i], (*layers)[i % 2]);
  EXPECT_LT(registry->spec_bytes(), 3 * limits::kConfigJsonBytesMax);
  EXPECT_THAT(registry->Find(ById((*other)->config_id())), IsOk()) << "nothing was evicted";

  const int64_t bytes = registry->spec_bytes();
  EXPECT_THAT(registry->FindLayers(spec, kLayers), IsOk());
  EXPECT_EQ(registry->FindLayers(spec, kLayers).value()[0], (*layers)[0]);
  EXPECT_EQ(registry->spec_bytes(), bytes);
}

TEST(SubConfigTest, FileOfAModelIsReadOnceForASubConfig) {
  const auto registry = MakeRegistry({{"composite", LongFile(limits::kConfigJsonBytesMax)}});
  v1::RopeSpec spec = ByModel("composite");
  spec.set_sub_config("vision_config");
  spec.set_pairing(v1::PAIRING_HALF);
  const auto time = [&](int64_t begin, int64_t end) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t layer = begin; layer < end; ++layer) {
      spec.set_layer(static_cast<int32_t>(layer));
      const auto entry = registry->Find(spec);
      EXPECT_THAT(entry, IsOk());
      if (entry.ok()) {
        EXPECT_EQ((*entry)->layer().config.rope_theta, 100);
      }
    }
    return std::chrono::steady_clock::now() - start;
  };
  const auto first = time(0, 1);
  EXPECT_LT(time(1, 101), 10 * first) << "100 more layers of a file that was read";
}

TEST(ModelFilesTest, FlagModelReplacesAPreset) {
  const auto registry = MakeRegistry({{"llama-3-8b", kLlama}});
  ASSERT_OK(entry, registry->Find(ByModel("llama-3-8b")));
  EXPECT_EQ((*entry)->layer().config.rope_theta, 10000);
  const v1::Model& model = registry->models().at("llama-3-8b").shown;
  EXPECT_EQ(model.origin(), "flag");
  EXPECT_EQ(model.head_dim(), 64);
  EXPECT_EQ(model.max_position_embeddings(), 4096);
}

TEST(ModelFilesTest, EveryLayerIsCheckedAndWarningsNameTheirs) {
  const auto with_factor = [](const std::string& factor) {
    return absl::StrCat(R"({"model_type": "gemma3_text", "head_dim": 64,
      "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
      "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
      "full_attention": {"rope_type": "linear", "factor": )",
                        factor, R"(, "rope_theta": 10000.0}}})");
  };
  EXPECT_THAT(MakeRegistry({{"mine", with_factor("0.5")}})->file_reports()[0].warnings,
              Contains(AllOf(HasSubstr("full_attention: "), HasSubstr("factor"))));
  const std::vector<ModelRegistry::ModelFile> files = {{"mine", with_factor("-2.0")}};
  EXPECT_THAT(ModelRegistry::Create(files), IsInvalid("factor: got -2"));
}

TEST(ModelFilesTest, ModelIsAsWideAsItsWidestLayerType) {
  // The first layer type, which is listed, is narrow.
  const auto registry = MakeRegistry({{"two", R"({"model_type": "gemma3_text", "head_dim": 64,
      "swa_head_dim": 4096, "layer_types": ["sliding_attention", "full_attention"],
      "rope_parameters": {"sliding_attention": {"rope_theta": 10000.0},
                          "full_attention": {"rope_theta": 1000000.0}}})"},
                                      {"wide", R"({"model_type": "llama", "head_dim": 4096})"}});
  EXPECT_EQ(registry->models().at("two").shown.head_dim(), 64);
  for (const int number : {0, 1}) {
    v1::RopeSpec layer = ByModel("two");
    layer.set_layer(number);
    EXPECT_TRUE(TakesLong(*registry, layer)) << number;
    EXPECT_THAT(registry->Find(layer), IsOk());
    EXPECT_FALSE(TakesLong(*registry, layer)) << number << ", cached";
  }
  EXPECT_TRUE(TakesLong(*registry, ByModel("wide")));
  EXPECT_FALSE(TakesLong(*registry, ByModel("llama-3-8b")));
  EXPECT_FALSE(TakesLong(*registry, ByModel("nobody"))) << "not found at once";
}

TEST(ModelFilesTest, FlagModelTakesOverAHubIdAndThePresetsOwnNameStays) {
  const auto registry =
      MakeRegistry({{"meta-llama/Llama-3.1-8B", R"({"model_type": "llama", "head_dim": 64})"}});
  const auto theta = [&registry](const std::string& name) {
    return (*registry->Find(ByModel(name)))->layer().config.rope_theta;
  };
  EXPECT_EQ(theta("meta-llama/Llama-3.1-8B"), 10000);
  EXPECT_EQ(theta("llama-3.1-8b"), 500000);
  EXPECT_EQ(theta("meta-llama/Llama-3.1-8B-Instruct"), 500000);
}

TEST(ModelFilesTest, AreSuggestedForAnUnknownName) {
  const auto registry = MakeRegistry({{"prod-7b", kLlama}});
  EXPECT_THAT(registry->Find(ByModel("prod_7b")), IsNotFound("; did you mean prod-7b?"));
}

TEST(ModelFilesTest, NameTwiceIsInvalid) {
  const std::vector<ModelRegistry::ModelFile> files = {{"mine", kLlama}, {"mine", kLlama}};
  EXPECT_THAT(ModelRegistry::Create(files), IsInvalid("model: got \"mine\" twice"));
}

TEST(ModelFilesTest, BadNamesAndConfigsAreInvalid) {
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("a\n"), std::string(129, 'a')}) {
    const std::vector<ModelRegistry::ModelFile> files = {{name, kPlain}};
    EXPECT_THAT(ModelRegistry::Create(files), IsInvalid("want 1 to 128 of"));
  }
  const std::vector<ModelRegistry::ModelFile> broken = {{"mine", "{"}};
  EXPECT_THAT(ModelRegistry::Create(broken), IsInvalid("model mine: "));
}

std::vector<std::string> TextsOf(const ModelRegistry::FileReport& file) {
  std::vector<std::string> texts;
  for (const LogLine& line : file.LogLines()) texts.push_back(line.In(LogFormat::kLogfmt));
  return texts;
}

TEST(FileReportTest, EachWarningHasALineUpToABound) {
  EXPECT_THAT(TextsOf({.name = "mine"}), IsEmpty());
  EXPECT_THAT(TextsOf({.name = "mine", .replaces_preset = true, .warnings = {"a \"b\"\n"}}),
              ElementsAre("model=mine replaces the preset of this name",
                          R"(model=mine warning="a \"b\"\n")"));
  const std::vector<std::string> many(ModelRegistry::FileReport::kWarningsShown + 3, "w");
  const std::vector<std::string> lines = TextsOf({.name = "mine", .warnings = many});
  EXPECT_THAT(lines, SizeIs(ModelRegistry::FileReport::kWarningsShown + 1));
  EXPECT_EQ(lines.back(), "model=mine warnings_left_out=3");
}

}  // namespace
}  // namespace rope::server
