#include "kernels/identity/key_identity.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>

#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kLlama[] =
    R"({"model_type": "llama", "head_dim": 64, "rope_theta": 500000, "num_hidden_layers": 4})";
constexpr char kGemma[] = R"({"model_type": "gemma3_text", "head_dim": 64, "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention",
                    "sliding_attention"],
    "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1000000},
                        "sliding_attention": {"rope_type": "default", "rope_theta": 10000}}})";
constexpr char kPhi[] = R"({"model_type": "phi3", "head_dim": 8, "rope_theta": 10000,
    "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
    "rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1],
                     "long_factor": [1, 2, 4, 8]}})";
constexpr char kDynamic[] = R"({"model_type": "llama", "head_dim": 64,
    "max_position_embeddings": 4096, "rope_scaling": {"rope_type": "dynamic", "factor": 4}})";

absl::StatusOr<IdentifiedKey> Identify(const std::string& json, const KeyOptions& options = {}) {
  auto model = ModelConfig::Parse(json);
  EXPECT_THAT(model, IsOk());
  return IdentifyKey(*model, options);
}

IdentifiedKey MustIdentify(const std::string& json, const KeyOptions& options = {}) {
  auto key = Identify(json, options);
  EXPECT_THAT(key, IsOk());
  return key.ok() ? *std::move(key) : IdentifiedKey();
}

KeyOptions Of(const std::string& engine, const std::string& version = "") {
  return {.engine = {.engine = engine, .version = version}};
}

TEST(KeyIdentityTest, LayersThatRotateAlikeShareTheirRows) {
  const KeyIdentity key = MustIdentify(kGemma).identity;
  EXPECT_THAT(key.rows, SizeIs(2));
  EXPECT_THAT(key.layers, ElementsAre(0, 0, 1, 0));
  EXPECT_THAT(MustIdentify(kLlama).identity.layers, IsEmpty());
}

TEST(KeyIdentityTest, WithoutNumbersOfLayersTheirTypesNameThem) {
  const KeyIdentity key = MustIdentify(R"({"head_dim": 64, "rope_parameters": {
          "sliding_attention": {"rope_type": "default", "rope_theta": 10000},
          "full_attention": {"rope_type": "default", "rope_theta": 1000000}}})")
                              .identity;
  EXPECT_THAT(key.layer_types, ElementsAre("full_attention", "sliding_attention"));
  EXPECT_LT(key.rows[0].inv_freq[1], key.rows[1].inv_freq[1]);
}

TEST(KeyIdentityTest, ALayerWithoutRotationIsStill) {
  const KeyIdentity key =
      MustIdentify(R"({"model_type": "smollm3", "head_dim": 64, "num_hidden_layers": 3,
                       "no_rope_layers": [1, 0, 1]})")
          .identity;
  EXPECT_THAT(key.layers, ElementsAre(0, 1, 0));
  EXPECT_FALSE(key.rows[1].rotates);
}

TEST(KeyIdentityTest, AnEnginesFrequenciesAreFloat32) {
  const double exact = MustIdentify(kLlama).identity.rows[0].inv_freq[1];
  const double engine = MustIdentify(kLlama, Of("vllm")).identity.rows[0].inv_freq[1];
  EXPECT_NE(exact, engine);
  EXPECT_EQ(engine, static_cast<float>(engine));
  EXPECT_NEAR(engine, exact, 1e-7);
}

TEST(KeyIdentityTest, TheListOfLongropeIsTheOneThatTheEngineStartsWith) {
  EXPECT_THAT(Identify(kPhi, Of("vllm")),
              IsInvalid("max_model_len: got nothing, want the length that vLLM is started with: it "
                        "chooses longrope's list by it"));
  const auto with_length = [](int64_t length) {
    KeyOptions options = Of("vllm");
    options.max_model_len = length;
    return MustIdentify(kPhi, options);
  };
  EXPECT_EQ(with_length(4096).identity.rows[0].inv_freq[3],
            MustIdentify(kPhi, Of("hf")).identity.rows[0].inv_freq[3]);
  EXPECT_EQ(with_length(4097).identity.rows[0].inv_freq[3],
            MustIdentify(kPhi, Of("hf")).identity.rows[0].long_inv_freq[3]);
  EXPECT_EQ(with_length(4097).text, with_length(131072).text);
  EXPECT_NE(with_length(4096).text, with_length(4097).text);
}

TEST(KeyIdentityTest, TheRuleByLengthIsPartOfIt) {
  EXPECT_EQ(MustIdentify(kDynamic, Of("hf")).identity.rows[0].by_length,
            "dynamic NTK by factor 4 of base 10000 for calls above 4096");
  EXPECT_EQ(MustIdentify(kDynamic).identity.rows[0].by_length,
            "dynamic NTK by factor 4 of base 10000 for sequences above 4096");
  // vLLM: one base for every length, by version.
  EXPECT_EQ(MustIdentify(kDynamic, Of("vllm", "0.33.0")).identity.rows[0].by_length, "");
  EXPECT_NE(MustIdentify(kDynamic, Of("vllm", "0.33.0")).text,
            MustIdentify(kDynamic, Of("vllm", "0.21.0")).text);
}

TEST(KeyIdentityTest, VersionsThatReadTheConfigAlikeShareATextButNotEngines) {
  EXPECT_EQ(MustIdentify(kLlama, Of("vllm", "0.33.0")).text,
            MustIdentify(kLlama, Of("vllm", "0.11.0")).text);
  EXPECT_EQ(MustIdentify(kLlama, Of("vllm", "0.33.0")).identity.version, "0.32.0 to 0.33.0");
  EXPECT_NE(MustIdentify(kLlama, Of("vllm")).text, MustIdentify(kLlama, Of("sglang")).text);
}

TEST(KeyIdentityTest, TheChannelOrderIsTheEngines) {
  constexpr char kDeepSeek[] = R"({"model_type": "deepseek_v3", "qk_rope_head_dim": 64,
      "max_position_embeddings": 4096})";
  EXPECT_EQ(MustIdentify(kDeepSeek, Of("hf")).identity.rows[0].channel_order, Pairing::kHalf);
  EXPECT_EQ(MustIdentify(kDeepSeek, Of("vllm")).identity.rows[0].channel_order, std::nullopt);
  EXPECT_EQ(MustIdentify(kLlama, Of("llamacpp")).identity.rows[0].channel_order,
            Pairing::kInterleaved);
}

TEST(KeyIdentityTest, TheDtypeIsPartOfItIfItIsGiven) {
  const auto with = [](std::optional<DType> dtype) {
    KeyOptions options = Of("vllm");
    options.dtype = dtype;
    return MustIdentify(kLlama, options);
  };
  EXPECT_NE(with(std::nullopt).text, with(DType::kBFloat16).text);
  EXPECT_EQ(with(DType::kBFloat16).identity.table_dtype, "bf16");
  KeyOptions sglang = Of("sglang");
  sglang.dtype = DType::kBFloat16;
  EXPECT_EQ(MustIdentify(kLlama, sglang).identity.table_dtype, "fp32");
}

TEST(KeyIdentityTest, TheCallersPairingAndHeadDimCount) {
  KeyOptions options;
  options.pairing = Pairing::kInterleaved;
  EXPECT_NE(MustIdentify(kLlama, options).text, MustIdentify(kLlama).text);
  options.head_dim = 64;
  EXPECT_THAT(Identify("{\"rope_theta\": 10000}", options), IsOk());
  EXPECT_THAT(Identify("{\"rope_theta\": 10000}"), IsInvalid("head_dim: got nothing"));
}

TEST(KeyIdentityTest, AnUncheckedReadingIsNamed) {
  EXPECT_THAT(Identify(R"({"model_type": "phimoe", "head_dim": 64})", Of("vllm")),
              IsInvalid("engine: got vllm, which has no reading of this model that was checked"));
}

TEST(ParseEngineTest, NamesAnEngineAndAVersionThatWasCompared) {
  EXPECT_THAT(ParseEngine("vllm"), IsOk());
  EXPECT_EQ(ParseEngine("vllm@0.30.0")->version, "0.30.0");
  EXPECT_EQ(ParseEngine("llamacpp@0c1e57098")->version, "0c1e57098");
  for (const char* wrong : {"", "trt", "vllm@", "@0.30.0"}) {
    EXPECT_THAT(ParseEngine(wrong), IsInvalid("want NAME or NAME@VERSION")) << wrong;
  }
  EXPECT_THAT(ParseEngine("vllm@0.29.1"),
              IsInvalid("engine: got vllm@0.29.1, want a version that was compared: 0.10.2 to"));
  EXPECT_EQ(SplitEngine("vllm@0.29.1")->version, "0.29.1");
}

}  // namespace
}  // namespace rope::kernels
