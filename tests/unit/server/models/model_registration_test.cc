// Models that are registered and unregistered while a server runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/error.h"
#include "server/memory/limits.h"
#include "server/models/limits.h"
#include "server/models/model_registry.h"
#include "tests/support/hostile_requests.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::testing::UnorderedElementsAre;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr char kAlice[] = "uid:1000";
constexpr char kBob[] = "ip:192.0.2.7";
constexpr char kLlama[] =
    R"({"model_type": "llama", "head_dim": 64, "max_position_embeddings": 4096})";
constexpr char kTwoKinds[] = R"({"model_type": "gemma3_text", "head_dim": 64,
    "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"]})";

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

v1::RopeSpec ByConfig(double theta) {
  v1::RopeSpec spec;
  spec.mutable_config()->set_rope_theta(theta);
  spec.mutable_config()->set_head_dim(64);
  spec.set_pairing(v1::PAIRING_HALF);
  return spec;
}

class ModelRegistrationTest : public ::testing::Test {
 protected:
  double ThetaOf(const v1::RopeSpec& spec) {
    const auto entry = registry_->Find(spec);
    EXPECT_THAT(entry, IsOk());
    return entry.ok() ? (*entry)->layer().config.rope_theta : 0;
  }
  void ExpectRefused(const v1::RopeSpec& spec, absl::StatusCode code, const std::string& text) {
    const int64_t before = registry_->model_count();
    EXPECT_THAT(registry_->Register("new", spec, kAlice), Fails(code, text));
    EXPECT_EQ(registry_->model_count(), before);
    EXPECT_THAT(registry_->Find(ByModel("new")), IsNotFound("new"));
  }

  std::unique_ptr<ModelRegistry> registry_ =
      ModelRegistry::Create(std::vector<ModelRegistry::ModelFile>{{"flagged", kLlama}}).value();
};

TEST_F(ModelRegistrationTest, RegisteredConfigIsFoundByNameAndListed) {
  ASSERT_OK(response, registry_->Register("team/mine-1.0_b", ByConfig(12345), kAlice));
  EXPECT_EQ(response->model().name(), "team/mine-1.0_b");
  EXPECT_EQ(response->model().origin(), "registered");
  EXPECT_EQ(response->model().rope_theta(), 12345);
  EXPECT_EQ(response->model().head_dim(), 64);
  EXPECT_EQ(response->model().pairing(), v1::PAIRING_HALF);
  EXPECT_THAT(response->warnings(), IsEmpty());
  ASSERT_OK(entry, registry_->Find(ByModel("team/mine-1.0_b")));
  EXPECT_EQ((*entry)->layer().config.rope_theta, 12345);
  EXPECT_EQ((*entry)->pairing(), kernels::Pairing::kHalf);
  std::vector<std::string> names;
  for (const v1::Model& model : registry_->List()) names.push_back(model.name());
  EXPECT_THAT(names, Contains("team/mine-1.0_b"));
}

TEST_F(ModelRegistrationTest, ConfigJsonKeepsAllItsLayers) {
  ASSERT_OK(response, registry_->Register("two", ByJson(kTwoKinds), kAlice));
  EXPECT_THAT(response->model().layer_types(),
              UnorderedElementsAre("sliding_attention", "full_attention"));
  v1::RopeSpec spec = ByModel("two");
  spec.set_layer_type("full_attention");
  EXPECT_EQ(ThetaOf(spec), 1e6);
  spec.clear_layer_type();
  spec.set_layer(0);
  EXPECT_EQ(ThetaOf(spec), 1e4);
}

TEST_F(ModelRegistrationTest, PickedLayerBecomesAModelOfOneLayer) {
  v1::RopeSpec spec = ByJson(kTwoKinds);
  spec.set_layer_type("full_attention");
  ASSERT_OK(response, registry_->Register("one", spec, kAlice));
  EXPECT_THAT(response->model().layer_types(), IsEmpty());
  EXPECT_EQ(ThetaOf(ByModel("one")), 1e6);
  v1::RopeSpec picked = ByModel("one");
  picked.set_layer(0);
  EXPECT_THAT(registry_->Find(picked), IsInvalid("rope.layer: got it for a single layer"));
}

TEST_F(ModelRegistrationTest, CompositeModelKeepsItsSubConfigs) {
  const std::string json = R"({"model_type": "llama", "head_dim": 64, "rope_theta": 5,
      "vision_config": {"model_type": "glm", "head_dim": 80, "rope_theta": 7}})";
  ASSERT_THAT(registry_->Register("composite", ByJson(json), kAlice), IsOk());
  EXPECT_EQ(ThetaOf(ByModel("composite")), 5);
  v1::RopeSpec vision = ByModel("composite");
  vision.set_sub_config("vision_config");
  EXPECT_EQ(ThetaOf(vision), 7);
  ASSERT_THAT(registry_->Register("tower", vision, kAlice), IsOk());
  EXPECT_EQ(ThetaOf(ByModel("tower")), 7);
  ASSERT_THAT(registry_->Unregister("composite", kAlice), IsOk());
  EXPECT_THAT(registry_->Find(vision), IsNotFound("rope.model"));
}

TEST_F(ModelRegistrationTest, ModelWithoutSubConfigsRefusesOne) {
  v1::RopeSpec spec = ByModel("llama-3-8b");
  spec.set_sub_config("vision_config");
  EXPECT_THAT(registry_->Find(spec), IsInvalid("rope.sub_config: got \"vision_config\", want no"));
}

TEST_F(ModelRegistrationTest, ModelIsCopiedFromAnotherAndOutlivesIt) {
  ASSERT_THAT(registry_->Register("first", ByConfig(777), kAlice), IsOk());
  ASSERT_THAT(registry_->Register("copy", ByModel("first"), kAlice), IsOk());
  EXPECT_THAT(registry_->Unregister("first", kAlice), IsOk());
  EXPECT_EQ(ThetaOf(ByModel("copy")), 777);
  ASSERT_OK(preset, registry_->Register("alias", ByModel("llama-3-8b"), kAlice));
  EXPECT_EQ(preset->model().rope_theta(), 500000);
  EXPECT_EQ(preset->model().num_heads(), 32);
}

TEST_F(ModelRegistrationTest, ModelIsMadeFromAConfigId) {
  ASSERT_OK(entry, registry_->Find(ByConfig(4321)));
  v1::RopeSpec by_id;
  by_id.set_config_id((*entry)->config_id());
  ASSERT_THAT(registry_->Register("by-id", by_id, kAlice), IsOk());
  ASSERT_OK(found, registry_->Find(ByModel("by-id")));
  EXPECT_EQ((*found)->layer().config.rope_theta, 4321);
  EXPECT_EQ((*found)->pairing(), kernels::Pairing::kHalf);
}

TEST_F(ModelRegistrationTest, ExplicitPairingWinsWithAWarningOnce) {
  v1::RopeSpec spec = ByModel("llama-3-8b");
  spec.set_pairing(v1::PAIRING_INTERLEAVED);
  ASSERT_OK(response, registry_->Register("odd", spec, kAlice));
  EXPECT_THAT(response->warnings(), Contains(HasSubstr("pairing: taken as interleaved")));
  EXPECT_EQ(response->model().pairing(), v1::PAIRING_INTERLEAVED);
  ASSERT_OK(entry, registry_->Find(ByModel("odd")));
  EXPECT_EQ((*entry)->pairing(), kernels::Pairing::kInterleaved);
  EXPECT_THAT((*entry)->warnings(), IsEmpty());
}

TEST_F(ModelRegistrationTest, WarningsNameTheLayersThatTheyAreOf) {
  ASSERT_OK(response, registry_->Register("linear", ByJson(R"({"model_type": "gemma3_text",
      "head_dim": 64, "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
      "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
      "full_attention": {"rope_type": "linear", "factor": 0.5, "rope_theta": 10000.0}}})"),
                                          kAlice));
  EXPECT_THAT(response->warnings(),
              Contains(AllOf(HasSubstr("full_attention: "), HasSubstr("factor"))));
}

TEST_F(ModelRegistrationTest, BadNamesAreInvalid) {
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("a\n"), std::string(129, 'a')}) {
    EXPECT_THAT(registry_->Register(name, ByConfig(1000), kAlice), IsInvalid("name: got"));
    EXPECT_THAT(registry_->Unregister(name, kAlice), IsInvalid("name: got"));
  }
  EXPECT_THAT(registry_->Register(std::string(128, 'a'), ByConfig(1000), kAlice), IsOk());
}

TEST_F(ModelRegistrationTest, TakenNamesAlreadyExist) {
  ASSERT_THAT(registry_->Register("mine", ByConfig(1000), kAlice), IsOk());
  for (const auto& [name, origin] :
       std::vector<std::pair<std::string, std::string>>{{"mine", "registered"},
                                                        {"flagged", "flag"},
                                                        {"llama-3-8b", "preset"},
                                                        {"Llama-3-8B", "preset"},
                                                        {"meta-llama/Meta-Llama-3-8B", "preset"}}) {
    EXPECT_THAT(
        registry_->Register(name, ByConfig(2000), kAlice),
        Fails(absl::StatusCode::kAlreadyExists, "name: got \"" + name + "\", which is " + origin));
  }
  EXPECT_EQ(ThetaOf(ByModel("mine")), 1000);
}

TEST_F(ModelRegistrationTest, BadSpecsAreRefusedWithTheirField) {
  ExpectRefused(v1::RopeSpec(), kInvalid, "rope: got nothing, want exactly one");
  ExpectRefused(ByConfig(-1), kInvalid, "rope.config.rope_theta: got -1");
  ExpectRefused(ByJson("{"), kInvalid, "rope.config_json: got a syntax error");
  ExpectRefused(ByJson(R"({"model_type": "llama", "head_dim": 64, "rope_theta": -1})"), kInvalid,
                "rope.config_json.rope_theta: got -1");
  ExpectRefused(ByModel("nobody"), kNotFound, "rope.model: got \"nobody\"");
  v1::RopeSpec by_id;
  by_id.set_config_id("0");
  ExpectRefused(by_id, kNotFound, "rope.config_id: got \"0\"");
  v1::RopeSpec layer = ByJson(kTwoKinds);
  layer.set_layer(7);
  ExpectRefused(layer, kInvalid, "rope.layer: got 7, want 0 to 1");
}

TEST_F(ModelRegistrationTest, EveryLayerIsChecked) {
  ExpectRefused(ByJson(R"({"model_type": "gemma3_text", "head_dim": 64,
      "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
      "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
      "full_attention": {"rope_type": "linear", "factor": -2.0, "rope_theta": 10000.0}}})"),
                kInvalid, "factor: got -2");
}

TEST_F(ModelRegistrationTest, PairingIsRequiredAndChecked) {
  v1::RopeSpec spec = ByConfig(1000);
  spec.clear_pairing();
  ExpectRefused(spec, kInvalid, "rope.pairing: got nothing");
  spec.set_pairing(static_cast<v1::Pairing>(7));
  ExpectRefused(spec, kInvalid, "rope.pairing: got 7");
}

TEST_F(ModelRegistrationTest, TooManyAreRefusedUntilOneGoes) {
  for (int64_t i = 0; i < limits::kRegisteredModelsMax / 2; ++i) {
    ASSERT_THAT(registry_->Register(absl::StrCat("model", i), ByConfig(1000), kAlice), IsOk());
  }
  ExpectRefused(ByConfig(1000), kExhausted, "name: got registered model number 513 of this client");
  EXPECT_THAT(registry_->Register("bobs", ByConfig(1000), kBob), IsOk());
  EXPECT_THAT(registry_->Unregister("model0", kAlice), IsOk());
  EXPECT_THAT(registry_->Register("new", ByConfig(1000), kAlice), IsOk());
}

// A file with sub-configs is kept, so that requests can choose one.
TEST_F(ModelRegistrationTest, TooManyBytesAreRefusedUntilSomeGo) {
  std::string json = R"({"model_type": "llama", "head_dim": 64, "vision_config": {"head_dim": 8}})";
  json.resize(static_cast<size_t>(limits::kConfigJsonBytesMax), ' ');
  const int64_t fits = limits::kRegisteredBytesMax / limits::kConfigJsonBytesMax / 2 - 1;
  for (int64_t i = 0; i < fits; ++i) {
    ASSERT_THAT(registry_->Register(absl::StrCat("model", i), ByJson(json), kAlice), IsOk());
  }
  ExpectRefused(ByModel("model0"), kExhausted, " bytes of memory in addition to");
  EXPECT_THAT(registry_->Register("bobs", ByJson(json), kBob), IsOk());
  EXPECT_THAT(registry_->Unregister("model0", kAlice), IsOk());
  EXPECT_THAT(registry_->Register("new", ByJson(json), kAlice), IsOk());
  EXPECT_THAT(registry_->Unregister("bobs", kBob), IsOk());
  EXPECT_LE(registry_->registered_bytes(), limits::kRegisteredBytesMax / 2);
}

TEST_F(ModelRegistrationTest, ManyLayersCountByTheirMemoryAndNotByTheirText) {
  constexpr char kDeep[] = R"({"model_type": "gemma3_text", "head_dim": 64, "rope_theta": 1e6,
      "rope_local_base_freq": 1e4, "num_hidden_layers": 65536, "sliding_window_pattern": 2})";
  ASSERT_OK(config, kernels::ModelConfig::Parse(kDeep));
  ASSERT_THAT(registry_->Register("deep", ByJson(kDeep), kAlice), IsOk());
  EXPECT_GE(registry_->registered_bytes(), config->KeptBytes());
  ASSERT_THAT(registry_->Unregister("deep", kAlice), IsOk());
  EXPECT_EQ(registry_->registered_bytes(), 0);
}

TEST_F(ModelRegistrationTest, ListsOfAConfigIdCountForEachName) {
  constexpr int kFactors = 16384;  // 128 KiB a list
  v1::RopeSpec spec;
  *spec.mutable_config() = testing::LongropeOfManyFactors(kFactors);
  spec.set_pairing(v1::PAIRING_HALF);
  ASSERT_OK(entry, registry_->Find(spec));
  v1::RopeSpec by_id;
  by_id.set_config_id((*entry)->config_id());
  constexpr int64_t kModelBytes = 2 * kFactors * sizeof(double);
  const int64_t fits = limits::kRegisteredBytesMax / 2 / kModelBytes - 1;
  for (int64_t i = 0; i < fits; ++i) {
    ASSERT_THAT(registry_->Register(absl::StrCat("model", i), by_id, kAlice), IsOk());
  }
  EXPECT_GE(registry_->registered_bytes(), fits * kModelBytes);
  ExpectRefused(by_id, kExhausted, " bytes of memory in addition to");
}

bool TakesLong(ModelRegistry& registry, const v1::RopeSpec& spec) {
  return IsNeedsSideThread(registry.Find(spec, /*may_take_long=*/false).status());
}

TEST_F(ModelRegistrationTest, ModelIsAsWideAsItsWidestLayerType) {
  // The first layer type, which is listed, is narrow.
  constexpr char kWideSliding[] = R"({"model_type": "gemma3_text", "head_dim": 64,
      "swa_head_dim": 4096, "layer_types": ["sliding_attention", "full_attention"],
      "rope_parameters": {"sliding_attention": {"rope_theta": 10000.0},
                          "full_attention": {"rope_theta": 1000000.0}}})";
  EXPECT_FALSE(TakesLong(*registry_, ByModel("flagged")));
  ASSERT_OK(two, registry_->Register("two", ByJson(kWideSliding), kAlice));
  EXPECT_EQ(two->model().head_dim(), 64);
  for (const int number : {0, 1}) {
    v1::RopeSpec layer = ByModel("two");
    layer.set_layer(number);
    EXPECT_TRUE(TakesLong(*registry_, layer)) << number;
    EXPECT_THAT(registry_->Find(layer), IsOk());
    EXPECT_FALSE(TakesLong(*registry_, layer)) << number << ", cached";
  }
  EXPECT_FALSE(TakesLong(*registry_, ByModel("flagged")));
  EXPECT_FALSE(TakesLong(*registry_, ByModel("nobody"))) << "not found at once";
  ASSERT_THAT(registry_->Unregister("two", kAlice), IsOk());
  EXPECT_FALSE(TakesLong(*registry_, ByModel("two")));
}

TEST_F(ModelRegistrationTest, WideFilesOfTheOperatorAreWideToo) {
  const std::vector<ModelRegistry::ModelFile> files = {
      {"wide", R"({"model_type": "llama", "head_dim": 4096})"}};
  const auto registry = ModelRegistry::Create(files).value();
  EXPECT_TRUE(TakesLong(*registry, ByModel("wide")));
  EXPECT_FALSE(TakesLong(*registry, ByModel("llama-3-8b")));
}

// The time of listing all models, the best of several.
std::chrono::nanoseconds TimeOfList(const ModelRegistry& registry) {
  constexpr int kRuns = 10;
  auto best = std::chrono::nanoseconds::max();
  for (int i = 0; i < kRuns; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_FALSE(registry.List().empty());
    best = std::min<std::chrono::nanoseconds>(best, std::chrono::steady_clock::now() - begin);
  }
  return best;
}

TEST_F(ModelRegistrationTest, ListingTakesNoLongerForModelsOfManyLayers) {
  constexpr int kModels = 64;
  constexpr char kDeep[] = R"({"num_hidden_layers": 65536, "no_rope_layer_interval": 65536})";
  const auto shallow = ModelRegistry::Create({}).value();
  v1::RopeSpec deep = ByJson(kDeep);
  deep.set_pairing(v1::PAIRING_INTERLEAVED);
  for (int i = 0; i < kModels; ++i) {
    ASSERT_THAT(registry_->Register(absl::StrCat("deep", i), deep, kAlice), IsOk());
    ASSERT_THAT(shallow->Register(absl::StrCat("deep", i), ByConfig(1000), kAlice), IsOk());
  }
  EXPECT_LT(TimeOfList(*registry_), 10 * TimeOfList(*shallow));
}

TEST_F(ModelRegistrationTest, ListShowsWhatTheRegistrationAnswered) {
  constexpr char kDeep[] = R"({"num_hidden_layers": 65536, "no_rope_layer_interval": 65536})";
  std::vector<v1::RopeSpec> specs = {ByConfig(1000), ByJson(kDeep),         ByJson(kTwoKinds),
                                     ByJson(kLlama), ByModel("llama-3-8b"), ByJson(kTwoKinds)};
  specs.back().set_layer(1);
  for (size_t i = 0; i < specs.size(); ++i) {
    specs[i].set_pairing(v1::PAIRING_INTERLEAVED);
    const std::string name = absl::StrCat("model", i);
    ASSERT_OK(response, registry_->Register(name, specs[i], kAlice));
    const v1::Model& answered = response->model();
    EXPECT_EQ(answered.pairing(), v1::PAIRING_INTERLEAVED);
    EXPECT_EQ(answered.rope_type(), "default");
    EXPECT_EQ(answered.head_dim(), specs[i].config_json() == kDeep ? 0 : answered.rotary_dim());
    const std::vector<v1::Model> list = registry_->List();
    const auto shown = std::ranges::find_if(
        list, [&name](const v1::Model& model) { return model.name() == name; });
    ASSERT_NE(shown, list.end()) << name;
    EXPECT_EQ(shown->DebugString(), answered.DebugString());
  }
}

TEST_F(ModelRegistrationTest, OnlyItsOwnerUnregistersAModelThatAllUse) {
  ASSERT_THAT(registry_->Register("alices", ByConfig(1000), kAlice), IsOk());
  EXPECT_THAT(registry_->Register("alices", ByConfig(2000), kBob),
              Fails(absl::StatusCode::kAlreadyExists, "name: got \"alices\""));
  EXPECT_THAT(registry_->Unregister("alices", kBob),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("name: got \"alices\", which belongs to another client"),
                             Not(HasSubstr(kAlice)))));
  EXPECT_EQ(ThetaOf(ByModel("alices")), 1000);
  EXPECT_THAT(registry_->Register("copy", ByModel("alices"), kBob), IsOk());
  EXPECT_THAT(registry_->Unregister("alices", kAlice), IsOk());
  EXPECT_THAT(registry_->Register("alices", ByConfig(2000), kBob), IsOk());
  EXPECT_THAT(registry_->Unregister("alices", kAlice),
              Fails(absl::StatusCode::kPermissionDenied, "alices"));
}

TEST_F(ModelRegistrationTest, UnregisteredModelIsGoneButServesWhoHasIt) {
  ASSERT_THAT(registry_->Register("mine", ByConfig(1000), kAlice), IsOk());
  ASSERT_OK(entry, registry_->Find(ByModel("mine")));
  EXPECT_THAT(registry_->Unregister("mine", kAlice), IsOk());
  EXPECT_THAT(registry_->Find(ByModel("mine")), IsNotFound("\"mine\""));
  EXPECT_THAT(registry_->Unregister("mine", kAlice), IsNotFound("name: got \"mine\""));
  EXPECT_THAT((*entry)->Resolve(std::nullopt), IsOk());
}

TEST_F(ModelRegistrationTest, ModelThatTakesAFreedNameHasConfigIdsOfItsOwn) {
  ASSERT_THAT(registry_->Register("mine", ByConfig(1000), kAlice), IsOk());
  ASSERT_OK(old_entry, registry_->Find(ByModel("mine")));
  v1::RopeSpec old_id;
  old_id.set_config_id((*old_entry)->config_id());
  EXPECT_THAT(registry_->Find(old_id), IsOk());
  EXPECT_THAT(registry_->Unregister("mine", kAlice), IsOk());
  ASSERT_THAT(registry_->Register("mine", ByConfig(2000), kAlice), IsOk());
  EXPECT_EQ(ThetaOf(ByModel("mine")), 2000);
  EXPECT_THAT(registry_->Find(old_id), IsNotFound("rope.config_id"));
}

TEST_F(ModelRegistrationTest, WhatOthersUseStaysWhenAModelGoes) {
  ASSERT_THAT(registry_->Register("mine", ByConfig(1000), kAlice), IsOk());
  ASSERT_THAT(registry_->Find(ByModel("mine")), IsOk());
  ASSERT_OK(other, registry_->Find(ByConfig(3000)));
  EXPECT_THAT(registry_->Unregister("mine", kAlice), IsOk());
  v1::RopeSpec by_id;
  by_id.set_config_id((*other)->config_id());
  ASSERT_OK(found, registry_->Find(by_id));
  EXPECT_EQ(*found, *other);
}

TEST_F(ModelRegistrationTest, PresetsAndFlagsCannotBeUnregistered) {
  for (const auto& [name, origin] : std::vector<std::pair<std::string, std::string>>{
           {"flagged", "flag"}, {"llama-3-8b", "preset"}}) {
    EXPECT_THAT(registry_->Unregister(name, kAlice),
                IsPrecondition("name: got \"" + name + "\" of origin " + origin));
    EXPECT_THAT(registry_->Find(ByModel(name)), IsOk());
  }
}

// A model is registered and unregistered repeatedly, with another config each time. A reader sees
// one config or the other, and none after the model was unregistered.
TEST_F(ModelRegistrationTest, ReadersNeverSeeAModelThatIsGone) {
  constexpr int kRounds = 300;
  std::atomic<int> registered = 0;  // rounds that were begun
  std::atomic<bool> ended = false;
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!ended) {
        const int before = registered;
        const auto entry = registry_->Find(ByModel("flipping"));
        if (!entry.ok()) continue;
        const int round = static_cast<int>((*entry)->layer().config.rope_theta) - 1000;
        EXPECT_GE(round, before);
        EXPECT_LE(round, registered);
      }
    });
  }
  for (int round = 1; round <= kRounds; ++round) {
    registered = round;
    EXPECT_THAT(registry_->Register("flipping", ByConfig(1000 + round), kAlice), IsOk());
    EXPECT_EQ(ThetaOf(ByModel("flipping")), 1000 + round);
    EXPECT_THAT(registry_->Unregister("flipping", kAlice), IsOk());
    EXPECT_THAT(registry_->Find(ByModel("flipping")), IsNotFound("flipping"));
  }
  ended = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace rope::server
