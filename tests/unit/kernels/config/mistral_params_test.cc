#include "kernels/config/mistral_params.h"

#include <gtest/gtest.h>

#include <string>

#include "kernels/config/config_json.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// A params.json with these keys beside its sizes.
std::string Params(const std::string& keys) {
  return R"({"dim": 4096, "n_layers": 2, "n_heads": 32, "n_kv_heads": 8, "hidden_dim": 14336,
      "head_dim": 128, "vocab_size": 32000, "rope_theta": 1000000.0)" +
         (keys.empty() ? "" : ", " + keys) + "}";
}

LayerConfig Read(const std::string& json) {
  auto model = ModelConfig::Parse(json);
  EXPECT_THAT(model, IsOk());
  auto layer = model->Layer({});
  EXPECT_THAT(layer, IsOk());
  return *layer;
}

TEST(MistralParamsTest, SizesAndBaseAreThoseOfAConfigJson) {
  const LayerConfig layer = Read(Params(R"("max_seq_len": 32768)"));
  EXPECT_EQ(layer.names.model_type, "mistral");
  EXPECT_EQ(layer.config.rope_theta, 1e6);
  EXPECT_EQ(layer.config.head_dim, 128);
  EXPECT_EQ(layer.config.max_position_embeddings, 32768);
  EXPECT_EQ(layer.pairing, Pairing::kInterleaved);
}

TEST(MistralParamsTest, YarnWithoutApplyScaleHasAMagnitudeOfOne) {
  const std::string yarn = R"("yarn": {"factor": 16, "original_max_position_embeddings": 16384,
      "beta": 32, "alpha": 1, "apply_scale": )";
  const LayerConfig without = Read(Params(yarn + "false}"));
  EXPECT_EQ(without.config.rope_type, RopeType::kYarn);
  EXPECT_EQ(AttentionFactor(without.config), 1);
  EXPECT_NEAR(static_cast<double>(AttentionFactor(Read(Params(yarn + "true}")).config)), 1.27725887,
              1e-8);
}

TEST(MistralParamsTest, LatentAttentionAndExpertsChooseTheModel) {
  const LayerConfig large = Read(Params(R"("qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "moe": {"num_shared_experts": 1})"));
  EXPECT_EQ(large.names.model_type, "deepseek_v3");
  EXPECT_EQ(large.config.head_dim, 64);
  EXPECT_EQ(Read(Params(R"("moe": {})")).names.model_type, "mixtral");
}

TEST(MistralParamsTest, AnotherFileIsLeftAlone) {
  for (
      const char* text :
      {R"({"model_type": "distilbert", "dim": 768, "n_heads": 12, "n_layers": 6, "hidden_dim": 9})",
       R"({"hidden_size": 4096})"}) {
    nlohmann::json file = nlohmann::json::parse(text);
    const nlohmann::json before = file;
    ASSERT_OK(said, ReadForeignFormat(file));
    EXPECT_THAT(*said, IsEmpty());
    EXPECT_EQ(file, before);
  }
}

// The reader of a config.json names what is wrong.
TEST(MistralParamsTest, WrongValuesAreNamed) {
  for (const char* wrong : {R"("yarn": 3)", R"("yarn": {"factor": "x"})", R"("yarn": {})",
                            R"("yarn": {"factor": []})", R"("llama_4_scaling": [])"}) {
    auto model = ModelConfig::Parse(Params(wrong));
    if (!model.ok()) continue;
    auto layer = model->Layer({});
    EXPECT_TRUE(!layer.ok() || layer->config.rope_type == RopeType::kDefault ||
                !Validate(layer->config).ok())
        << wrong;
  }
  nlohmann::json file = nlohmann::json::parse(Params(""));
  ASSERT_OK(said, ReadForeignFormat(file));
  EXPECT_THAT(*said, SizeIs(1));
}

}  // namespace
}  // namespace rope::kernels
