#include "kernels/compat/attention_scale.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/config/config_json.h"
#include "kernels/config/rope_config.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

LayerConfig LayerOf(const std::string& json, std::optional<int64_t> layer = {}) {
  auto model = ModelConfig::Parse(json);
  EXPECT_THAT(model, IsOk());
  auto read = model->Layer({.layer = layer});
  EXPECT_THAT(read, IsOk());
  return *read;
}

double FactorOf(const LayerConfig& layer) {
  return layer.rotates ? static_cast<double>(AttentionFactor(layer.config)) : 1;
}

AttentionScale ScaleOf(const LayerConfig& layer) {
  return kernels::ScaleOf(layer, layer.config, FactorOf(layer));
}

// "vllm 0.30.0: softmax scale times 1.84512, not 1"
std::vector<std::string> DifferencesOf(const LayerConfig& layer) {
  std::vector<std::string> texts;
  const AttentionScale own = ScaleOf(layer);
  for (const ScaleReading& reading : ScaleReadings(layer, layer.config, own, FactorOf(layer))) {
    texts.push_back(reading.engine + " " + reading.version + ": " + reading.difference);
  }
  return texts;
}

std::string DeepSeek(const std::string& scaling) {
  return R"({"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"],
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "max_position_embeddings": 163840,
      "rope_scaling": {"factor": 40, "original_max_position_embeddings": 4096, )" +
         scaling + "}}";
}

TEST(AttentionScaleTest, DeepSeeksClassScalesTheSoftmaxInAnyTypeButDefault) {
  const LayerConfig yarn = LayerOf(DeepSeek(R"("type": "yarn", "mscale": 1, "mscale_all_dim": 1)"));
  EXPECT_NEAR(ScaleOf(yarn).softmax, 1.87385421, 1e-8);
  EXPECT_EQ(ScaleOf(yarn).logits, ScaleOf(yarn).softmax);
  const LayerConfig none = LayerOf(DeepSeek(R"("type": "yarn")"));
  EXPECT_EQ(ScaleOf(none).softmax, 1);
  EXPECT_NEAR(ScaleOf(none).logits, 1.87385421, 1e-8);  // the attention factor, twice
  EXPECT_EQ(ScaleOf(LayerOf(R"({"model_type": "llama", "head_dim": 64})")).softmax, 1);
}

TEST(AttentionScaleTest, EnginesThatScaleAlikeAreNotListed) {
  EXPECT_THAT(DifferencesOf(LayerOf(DeepSeek(R"("type": "yarn", "mscale": 1,
      "mscale_all_dim": 1)"))),
              IsEmpty());
}

TEST(AttentionScaleTest, AnAttentionFactorOfOneSwitchesVllmOff) {
  EXPECT_THAT(DifferencesOf(LayerOf(DeepSeek(R"("type": "yarn", "mscale": 1, "mscale_all_dim": 1,
      "attention_factor": 1.0)"))),
              ElementsAre(HasSubstr("vllm 0.31.0 to 0.33.0: softmax scale times 1, not 1.87385")));
}

TEST(AttentionScaleTest, LlamaCppHasASoftmaxScaleWithoutMscaleAllDim) {
  const std::vector<std::string> texts = DifferencesOf(LayerOf(DeepSeek(R"("type": "yarn")")));
  EXPECT_THAT(texts, ElementsAre(HasSubstr("llamacpp 0c1e57098: softmax scale times 1.87385")));
}

TEST(AttentionScaleTest, Llama4ScalesQOfLayersThatDoNotRotate) {
  constexpr char kLlama4[] = R"({"model_type": "llama4_text", "head_dim": 128,
      "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "floor_scale": 100})";
  EXPECT_EQ(TemperatureText(ScaleOf(LayerOf(kLlama4, 0))), "none");
  EXPECT_EQ(TemperatureText(ScaleOf(LayerOf(kLlama4, 3))), "1 + 0.1 ln(1 + floor((p + 1) / 100))");
  // llama.cpp has constants.
  EXPECT_THAT(DifferencesOf(LayerOf(kLlama4, 3)), ElementsAre(HasSubstr("/ 8192)), not 1 + 0.1")));
}

TEST(AttentionScaleTest, ScaleAsIsThatOfAnEnginesVersion) {
  const LayerConfig layer = LayerOf(DeepSeek(R"("type": "yarn", "mscale_all_dim": 1,
      "apply_yarn_scaling": false)"));
  EXPECT_EQ(ScaleAs(layer, {"vllm", "0.29.0"}, 1)->softmax, 1);
  EXPECT_GT(ScaleAs(layer, {"vllm", "0.33.0"}, 1)->softmax, 1.8);
  EXPECT_FALSE(ScaleAs(layer, {"vllm", "0.28.0"}, 1).has_value());  // not read
}

TEST(ScaleRemarksTest, AMagnitudeThatCancelsIsNamed) {
  const auto remarks = [](const std::string& scaling) {
    const LayerConfig layer = LayerOf(R"({"model_type": "llama", "head_dim": 64,
        "max_position_embeddings": 8192, "rope_scaling": {"rope_type": "yarn", "factor": 8,
        "original_max_position_embeddings": 1024)" +
                                      scaling + "}}");
    return ScaleRemarks(layer, layer.config);
  };
  EXPECT_THAT(remarks(""), IsEmpty());
  ASSERT_EQ(remarks(R"(, "mscale": 1, "mscale_all_dim": 1)").size(), 1u);
  EXPECT_THAT(remarks(R"(, "mscale": 1, "mscale_all_dim": 1)")[0].text,
              HasSubstr("nothing has yarn's magnitude, 1.20794"));
}

}  // namespace
}  // namespace rope::kernels
