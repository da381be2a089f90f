#include "kernels/compat/rope_readings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/config/rope_config.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using ::testing::ElementsAreArray;

constexpr Compat kCompats[] = {Compat::kDefault, Compat::kHf, Compat::kVllm, Compat::kLlamacpp,
                               Compat::kDeepseek};

std::shared_ptr<const ResolvedRope> MustResolve(const RopeConfig& config) {
  auto rope = Resolve(config);
  EXPECT_THAT(rope, IsOk());
  return rope.ok() ? *rope : nullptr;
}

CompatConfig MustApply(const RopeConfig& config, Compat compat, const ModelNames& names = {}) {
  EXPECT_THAT(Validate(config), IsOk());
  auto applied = ApplyCompat(config, compat, names);
  EXPECT_THAT(applied, IsOk());
  return applied.ok() ? *std::move(applied) : CompatConfig();
}

// "vllm 0.22.0 to 0.29.0"
std::vector<std::string> NamesOf(const std::vector<Reading>& readings) {
  std::vector<std::string> names;
  for (const Reading& reading : readings) names.push_back(reading.engine + " " + reading.version);
  return names;
}

std::vector<Reading> ReadingsOf(const RopeConfig& config, const ModelNames& names = {},
                                int64_t seq_len = 1) {
  EXPECT_THAT(Validate(config), IsOk());
  return Readings(config, names, *MustResolve(config), seq_len);
}

RopeConfig Yarn(double factor) {
  RopeConfig config = {.rope_type = RopeType::kYarn, .head_dim = 64};
  config.factor = factor;
  config.original_max_position_embeddings = 4096;
  return config;
}

RopeConfig Dynamic() {
  RopeConfig config = {.rope_type = RopeType::kDynamic, .head_dim = 128};
  config.factor = 4;
  config.max_position_embeddings = 4096;
  return config;
}

RopeConfig Longrope() {
  RopeConfig config = {.rope_type = RopeType::kLongrope, .head_dim = 4};
  config.short_factor = {1, 2};
  config.long_factor = {1, 4};
  config.original_max_position_embeddings = 4096;
  config.max_position_embeddings = 131072;
  return config;
}

TEST(ApplyCompatTest, PlainConfigIsReadAlikeByAll) {
  const RopeConfig config = {.rope_theta = 500000, .head_dim = 128};
  for (const Compat compat : kCompats) {
    const CompatConfig applied = MustApply(config, compat);
    EXPECT_EQ(applied.config, config) << Name(compat);
    EXPECT_THAT(applied.changes, IsEmpty()) << Name(compat);
  }
}

TEST(ApplyCompatTest, HuggingFaceDecidesByTheBatch) {
  for (const RopeConfig& config : {Dynamic(), Longrope()}) {
    const CompatConfig applied = MustApply(config, Compat::kHf);
    EXPECT_EQ(applied.config.seq_len_policy, SeqLenPolicy::kBatch);
    EXPECT_THAT(applied.changes, ElementsAre(HasSubstr("longest sequence of the call")));
  }
  RopeConfig fixed = Longrope();
  fixed.longrope_branch = LongropeBranch::kShort;
  EXPECT_THAT(MustApply(fixed, Compat::kHf).changes, IsEmpty());
}

TEST(ApplyCompatTest, HuggingFaceReadsNoAttnFactor) {
  RopeConfig config = Yarn(4);
  config.attn_factor = 2;
  const CompatConfig applied = MustApply(config, Compat::kHf);
  EXPECT_NEAR(MustResolve(applied.config)->attention_factor(), 1.13863, 1e-5);
  EXPECT_THAT(applied.changes, ElementsAre("Hugging Face ignores attn_factor"));
}

TEST(ApplyCompatTest, VllmDoesNotScaleDynamic) {
  const CompatConfig applied = MustApply(Dynamic(), Compat::kVllm);
  const auto rope = MustResolve(applied.config);
  EXPECT_FALSE(rope->DependsOnSeqLen());
  EXPECT_EQ(rope->Evaluate(1 << 20).rope_theta, 10000);
  EXPECT_THAT(applied.changes, ElementsAre(HasSubstr("unscaled at every length")));
}

TEST(ApplyCompatTest, VllmAndLlamaCppFixTheLongropeList) {
  RopeConfig config = Longrope();
  config.attention_factor = 1.5;
  for (const Compat compat : {Compat::kVllm, Compat::kLlamacpp}) {
    const CompatConfig applied = MustApply(config, compat);
    EXPECT_EQ(applied.config.longrope_branch, LongropeBranch::kLong);
    EXPECT_NEAR(MustResolve(applied.config)->attention_factor(),
                std::sqrt(1 + std::log(32.0) / std::log(4096.0)), 1e-15);
    EXPECT_THAT(applied.changes, ElementsAre(HasSubstr("the long one if it is started with a "
                                                       "context above 4096"),
                                             HasSubstr("length ratio, 1.19024")));
  }
  config.max_position_embeddings = 4096;
  EXPECT_EQ(MustApply(config, Compat::kVllm).config.longrope_branch, LongropeBranch::kShort);
}

TEST(ApplyCompatTest, NewestVllmReadsYarnAsHuggingFaceDoes) {
  RopeConfig config = Yarn(64);
  config.mscale = 1;
  config.mscale_all_dim = 1;
  EXPECT_THAT(MustApply(config, Compat::kVllm).changes, IsEmpty());
  config.attention_factor = 1.5;
  EXPECT_EQ(MustApply(config, Compat::kVllm).config, config);
}

TEST(ApplyCompatTest, ModelTypeChoosesTheCode) {
  RopeConfig config = Yarn(40);
  config.mscale = 0.707;
  const auto factor_of = [&](Compat compat, const std::string& model_type) {
    return MustResolve(MustApply(config, compat, {.model_type = model_type}).config)
        ->attention_factor();
  };
  EXPECT_NEAR(factor_of(Compat::kVllm, "deepseek_v2"), 1.26080, 1e-5);
  EXPECT_NEAR(factor_of(Compat::kVllm, "llama"), 1.36889, 1e-5);
  config.mscale_all_dim = 1;
  EXPECT_EQ(factor_of(Compat::kLlamacpp, "deepseek_v2"), 1);
  EXPECT_NEAR(factor_of(Compat::kLlamacpp, "llama"), 1.36889, 1e-5);
}

TEST(ApplyCompatTest, ModelsThatWereNotCheckedAreRefused) {
  EXPECT_THAT(ApplyCompat(Yarn(4), Compat::kVllm, {.model_type = "deepseek_v4"}),
              IsInvalid("compat: got vllm, which has no reading of this model"));
  EXPECT_THAT(ApplyCompat(Dynamic(), Compat::kVllm, {.model_type = "deepseek_v3"}),
              IsInvalid("no rope_type dynamic of this model without a factor and an original"));
}

RopeConfig ReadBy(const std::string& engine, const std::string& version, const RopeConfig& config,
                  const ModelNames& names) {
  const auto read = ReadAs(config, {engine, version}, names, std::nullopt);
  EXPECT_THAT(read, IsOk());
  return read.ok() ? read->read.config : RopeConfig();
}

TEST(ReadAsTest, DeepSeeksClassMakesYarnOfEveryType) {
  const ModelNames names = {.model_type = "deepseek_v3"};
  RopeConfig linear = {.rope_type = RopeType::kLinear, .head_dim = 64};
  linear.factor = 4;
  linear.max_position_embeddings = 8192;
  const RopeConfig read = ReadBy("sglang", "0.5.23", linear, names);
  EXPECT_EQ(read.rope_type, RopeType::kYarn);
  EXPECT_EQ(read.original_max_position_embeddings, 8192);
  EXPECT_NEAR(static_cast<double>(AttentionFactor(read)), 1.1386294, 1e-7);
  EXPECT_THAT(ReadAs(linear, {"vllm", "0.33.0"}, names, std::nullopt),
              IsInvalid("engine: got vllm@0.33.0, which has no rope_type linear"));
  // Without a name the config is hardly one of DeepSeek's.
  EXPECT_THAT(ReadAs(linear, {"vllm", "0.33.0"}, {}, std::nullopt), IsOk());
}

TEST(ReadAsTest, ClassesDropTheScalingOrTheBaseInTheVersionsThatDo) {
  RopeConfig linear = {.rope_type = RopeType::kLinear, .rope_theta = 500000, .head_dim = 64};
  linear.factor = 4;
  const ModelNames gemma = {.model_type = "gemma2", .architectures = {"Gemma2ForCausalLM"}};
  EXPECT_EQ(ReadBy("vllm", "0.11.2", linear, gemma).rope_type, RopeType::kDefault);
  EXPECT_EQ(ReadBy("vllm", "0.12.0", linear, gemma).rope_type, RopeType::kLinear);
  const ModelNames exaone = {.model_type = "exaone4", .architectures = {"Exaone4ForCausalLM"}};
  EXPECT_EQ(ReadBy("sglang", "0.5.16", linear, exaone).rope_theta, 1e6);
  EXPECT_EQ(ReadBy("sglang", "0.5.9", linear, exaone).rope_theta, 500000);
}

TEST(ApplyCompatTest, VllmEnlargesTheOriginalLengthOfMrope) {
  RopeConfig config = Yarn(4);
  config.mrope = Mrope{.section = {8, 12, 12}};
  EXPECT_EQ(MustApply(config, Compat::kVllm).config.original_max_position_embeddings, 16384);
}

TEST(ApplyCompatTest, VllmIgnoresTheFactorOfProportional) {
  RopeConfig config = {.rope_type = RopeType::kProportional, .head_dim = 64};
  config.factor = 4;
  EXPECT_EQ(MustResolve(MustApply(config, Compat::kVllm).config)->Evaluate(1).inv_freq[0], 1);
}

TEST(ApplyCompatTest, LlamaCppHasItsOwnRamp) {
  RopeConfig config = Yarn(32);
  config.rope_theta = 150000;
  config.truncate = false;
  config.beta_fast = 8;
  const CompatConfig applied = MustApply(config, Compat::kLlamacpp);
  EXPECT_EQ(applied.config.truncate, true);
  EXPECT_THAT(applied.changes, ElementsAre(HasSubstr("uses beta_fast 32 and beta_slow 1"),
                                           HasSubstr("rounds the ramp's edges")));
  EXPECT_THAT(MustApply(config, Compat::kVllm).changes, IsEmpty());
}

TEST(ApplyCompatTest, LlamaCppDropsWhatItsFilesDoNotHave) {
  RopeConfig ntk = {.rope_type = RopeType::kNtk, .head_dim = 64};
  ntk.factor = 2;
  RopeConfig no_factor = Yarn(4);
  no_factor.factor.reset();
  no_factor.max_position_embeddings = 16384;
  for (const RopeConfig& config : {Dynamic(), ntk, no_factor, Longrope()}) {
    const CompatConfig applied = MustApply(config, Compat::kLlamacpp, {.model_type = "llama"});
    EXPECT_EQ(applied.config.rope_type, RopeType::kDefault) << Name(config.rope_type);
    EXPECT_THAT(applied.changes, ElementsAre(HasSubstr("llama.cpp ignores rope_type")));
  }
}

TEST(ApplyCompatTest, LlamaCppRefusesAFourthRowOfPositions) {
  RopeConfig mrope = {.head_dim = 128};
  mrope.mrope = Mrope{.section = {24, 20, 20}, .layout = Mrope::Layout::kInterleaved};
  EXPECT_THAT(ApplyCompat(mrope, Compat::kLlamacpp), IsInvalid("a fourth row of positions"));
  mrope.head_dim = 64;
  mrope.mrope->section = {11, 11, 10};
  EXPECT_THAT(ApplyCompat(mrope, Compat::kLlamacpp), IsOk());
}

TEST(ApplyCompatTest, DeepSeekTakesMscaleAlone) {
  RopeConfig config = Yarn(40);
  config.mscale = 0.707;
  const CompatConfig applied = MustApply(config, Compat::kDeepseek);
  EXPECT_NEAR(MustResolve(applied.config)->attention_factor(), 1.26080, 1e-5);
  EXPECT_THAT(applied.changes, ElementsAre(HasSubstr("reads mscale as 0.707")));
  config.mscale.reset();
  config.mscale_all_dim = 0.707;
  EXPECT_NEAR(MustResolve(MustApply(config, Compat::kDeepseek).config)->attention_factor(),
              1.36889 / 1.26080, 1e-5);
  config.mscale = 0.707;  // both are set: the same as Hugging Face
  EXPECT_THAT(MustApply(config, Compat::kDeepseek).changes, IsEmpty());
}

TEST(ReadingsTest, NoneWhereAllAgree) {
  EXPECT_THAT(ReadingsOf({.rope_theta = 500000, .head_dim = 128}), IsEmpty());
  EXPECT_THAT(ReadingsOf(Yarn(4)), IsEmpty());
  EXPECT_THAT(ReadingsOf(Yarn(4), {.model_type = "deepseek_v3"}), IsEmpty());
}

// vLLM issue 48621: its generic yarn ignored mscale and mscale_all_dim, and gave
// 1.2772588722239782 where Transformers gives 1.
TEST(ReadingsTest, Ministral3FromVllm20To29) {
  RopeConfig config = Yarn(16);
  config.rope_theta = 1000000;
  config.original_max_position_embeddings = 16384;
  config.mscale = 1;
  config.mscale_all_dim = 1;
  const ModelNames names = {.model_type = "ministral3",
                            .architectures = {"Mistral3ForConditionalGeneration"}};
  EXPECT_EQ(MustResolve(config)->attention_factor(), 1);
  const auto readings = ReadingsOf(config, names);
  ASSERT_THAT(NamesOf(readings), ElementsAre("vllm 0.20.0 to 0.29.0", "sglang 0.5.9 to 0.5.15"));
  EXPECT_EQ(readings[0].executed, "0.21.0, 0.29.0");
  EXPECT_EQ(readings[0].attention_factor, 1.2772588722239782);
  EXPECT_EQ(readings[0].inv_freq_max_relative, 0);
  EXPECT_THAT(readings[0].difference, HasSubstr("ignores mscale and mscale_all_dim"));
  EXPECT_EQ(readings[1].attention_factor, 1.2772588722239782);
}

// vLLM pull request 46280: poolside/Laguna-XS.2 asks for attention_factor 1, and vLLM used
// 1.4158883.
TEST(ReadingsTest, LagunasAttentionFactor) {
  RopeConfig config = Yarn(64);
  config.attention_factor = 1;
  const auto readings = ReadingsOf(config, {.model_type = "laguna"});
  ASSERT_THAT(NamesOf(readings), ElementsAre("vllm 0.22.0 to 0.29.0", "llamacpp 0c1e57098"));
  EXPECT_NEAR(readings[0].attention_factor, 1.4158883, 5e-8);
  EXPECT_EQ(readings[0].difference, "vLLM ignores attention_factor");
  EXPECT_NEAR(readings[1].attention_factor, 1.4158883, 5e-8);
}

TEST(ReadingsTest, GptOssWithoutTruncation) {
  RopeConfig config = Yarn(32);
  config.rope_theta = 150000;
  config.truncate = false;
  const auto readings = ReadingsOf(config, {.model_type = "gpt_oss"});
  ASSERT_THAT(NamesOf(readings), ElementsAre("vllm 0.10.2 to 0.11.2", "llamacpp 0c1e57098"));
  EXPECT_NEAR(readings[1].inv_freq_max_relative, 0.763, 5e-4);
  EXPECT_NEAR(readings[1].attention_factor, 1.34657, 1e-5);
  // The newer vLLM and SGLang round in their DeepSeek classes only; these two always do.
  EXPECT_EQ(NamesOf(ReadingsOf(config)), NamesOf(readings));
}

// Of the models with these fields llama.cpp loads the betas of ministral3 only.
TEST(ReadingsTest, KimiK2sBetaFastInLlamaCpp) {
  RopeConfig config = Yarn(32);
  config.rope_theta = 50000;
  config.mscale = 1;
  config.mscale_all_dim = 1;
  config.beta_fast = 1;
  config.beta_slow = 1;
  const auto readings = ReadingsOf(config, {.model_type = "kimi_k2"});
  ASSERT_THAT(NamesOf(readings), ElementsAre("llamacpp 0c1e57098"));
  EXPECT_EQ(readings[0].attention_factor, 1);
  EXPECT_GT(readings[0].inv_freq_max_relative, 0.5);
  EXPECT_THAT(NamesOf(ReadingsOf(config, {.model_type = "ministral3"})),
              Not(Contains("llamacpp 0c1e57098")));
}

TEST(ReadingsTest, MscaleAloneIsReadByDeepSeekCodeOnly) {
  RopeConfig config = Yarn(40);
  config.mscale = 0.707;
  const auto readings = ReadingsOf(config, {.model_type = "deepseek_v2"});
  ASSERT_THAT(NamesOf(readings), ElementsAre("vllm 0.10.2 to 0.33.0", "sglang 0.5.9 to 0.5.23",
                                             "deepseek VL2-8ed2d7f"));
  for (const Reading& reading : readings) {
    EXPECT_NEAR(reading.attention_factor, 1.26080, 1e-5) << reading.engine;
    EXPECT_EQ(reading.inv_freq_max_relative, 0) << reading.engine;
  }
  EXPECT_EQ(readings[2].executed, "") << "its files were only read";
  EXPECT_THAT(ReadingsOf(config, {.model_type = "llama"}), IsEmpty());
  EXPECT_THAT(ReadingsOf(config), IsEmpty());  // the model decides
}

TEST(ReadingsTest, AttnFactorIsNotHuggingFaces) {
  RopeConfig config = Yarn(4);
  config.attn_factor = 2;
  EXPECT_THAT(NamesOf(ReadingsOf(config, {.model_type = "qwen2"})),
              ElementsAre("hf 5.23.0", "vllm 0.30.0 to 0.33.0", "llamacpp 0c1e57098"));
}

TEST(ReadingsTest, EnginesTurnTheChannelsThatAModelsOwnCodeDoesNotRead) {
  const ModelNames names = {.model_type = "granite", .stated_channels = 32};
  const RopeConfig config = {.head_dim = 64};
  const auto readings = ReadingsOf(config, names);
  ASSERT_FALSE(readings.empty());
  for (const Reading& reading : readings) {
    EXPECT_NE(reading.engine, "hf");
    EXPECT_THAT(reading.difference, HasSubstr("turns the 32 channels that the file states"));
  }
  EXPECT_EQ(MustResolve(MustApply(config, Compat::kHf, names).config)->rotary_dim(), 64);
  EXPECT_EQ(MustResolve(MustApply(config, Compat::kVllm, names).config)->rotary_dim(), 32);
}

TEST(ReadingsTest, EnginesOfTransformers4LoseWhatRopeParametersSay) {
  RopeConfig config = {.rope_type = RopeType::kYarn, .rope_theta = 1e6, .head_dim = 128};
  config.factor = 4;
  config.original_max_position_embeddings = 32768;
  ModelNames names = {.model_type = "qwen3", .architectures = {"Qwen3ForCausalLM"}};
  names.newer_keys = true;
  names.older_theta = 10000;
  const auto read = [&](const std::string& engine, const std::string& version) {
    return ReadAs(config, {.engine = engine, .version = version}, names, std::nullopt);
  };
  for (const auto& [engine, version] :
       {std::pair("vllm", "0.10.2"), {"vllm", "0.11.2"}, {"sglang", "0.5.9"}}) {
    EXPECT_EQ(read(engine, version)->read.config.rope_type, RopeType::kDefault) << engine;
    EXPECT_EQ(read(engine, version)->read.config.rope_theta, 10000) << engine;
  }
  for (const std::string version : {"0.12.0", "0.16.0", "0.18.1"}) {
    EXPECT_EQ(read("vllm", version)->read.config.rope_type, RopeType::kYarn) << version;
    EXPECT_EQ(read("vllm", version)->read.config.rope_theta, 10000) << version;
  }
  EXPECT_EQ(read("vllm", "0.19.0")->read.config.rope_theta, 1e6);
  EXPECT_EQ(read("sglang", "0.5.10")->read.config.rope_theta, 1e6);
  names.by_layer_type = true;
  EXPECT_FALSE(read("vllm", "0.16.0").ok());
  names.newer_keys = false;  // rope_theta and rope_scaling
  EXPECT_EQ(read("vllm", "0.16.0")->read.config.rope_theta, 1e6);
}

TEST(ReadingsTest, WhatEnginesOfTransformers4ReadOfRopeParametersAndLoseOfThem) {
  RopeConfig config = Yarn(4);
  config.rope_theta = 1e6;
  config.partial_rotary_factor = 0.75;
  const auto read = [&](const EngineVersion& engine, const std::string& model_type,
                        const std::string& architecture) {
    ModelNames names = {.model_type = model_type, .architectures = {architecture}};
    names.fraction_in_parameters = true;
    names.newer_keys = true;
    names.older_theta = 10000;
    return ReadAs(config, engine, names, std::nullopt)->read.config;
  };
  const EngineVersion sglang = {.engine = "sglang", .version = "0.5.9"};
  const EngineVersion vllm = {.engine = "vllm", .version = "0.11.2"};
  const RopeConfig deepseek = read(sglang, "deepseek_v3", "DeepseekV3ForCausalLM");
  EXPECT_EQ(deepseek.rope_type, RopeType::kYarn);
  EXPECT_EQ(deepseek.rope_theta, 1e6);
  const RopeConfig glm = read(sglang, "glm4", "Glm4ForCausalLM");
  EXPECT_EQ(glm.rope_type, RopeType::kDefault);
  EXPECT_EQ(glm.rope_theta, 1e6);
  EXPECT_EQ(glm.partial_rotary_factor, 0.75);
  EXPECT_EQ(read(vllm, "glm4", "Glm4ForCausalLM").rope_theta, 10000);
  EXPECT_EQ(read(vllm, "glm4", "Glm4ForCausalLM").partial_rotary_factor, 0.5);
  EXPECT_EQ(read(vllm, "phi3", "Phi3ForCausalLM").partial_rotary_factor, 1);
}

TEST(ReadingsTest, AnArchitectureThatARegistryLacks) {
  RopeConfig config = {.rope_type = RopeType::kDynamic, .head_dim = 128};
  config.factor = 4;
  config.max_position_embeddings = 32768;
  const ModelNames unknown = {.model_type = "xyzzy", .architectures = {"XyzzyForCausalLM"}};
  for (const Reading& reading : ReadingsOf(config, unknown)) {
    EXPECT_NE(reading.engine, "sglang") << reading.difference;
    EXPECT_TRUE(reading.engine == "hf" || reading.attention_factor == 0) << reading.difference;
  }
  const ModelNames absent = {.model_type = "phi4mm", .architectures = {"Phi4MMForCausalLM"}};
  const auto read = ReadAs(config, {.engine = "llamacpp"}, absent, std::nullopt);
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("does not load"));
}

TEST(ReadingsTest, MropeOfVllm) {
  RopeConfig config = Yarn(4);
  config.mrope = Mrope{.section = {8, 12, 12}};
  EXPECT_THAT(NamesOf(ReadingsOf(config, {.model_type = "qwen2_vl"})),
              ElementsAre("vllm 0.10.2 to 0.33.0"));
  EXPECT_THAT(NamesOf(ReadingsOf(config, {.model_type = "qwen3_vl"})),
              ElementsAre("vllm 0.10.2 to 0.31.0"));
}

TEST(ReadingsTest, DynamicDependsOnTheVersionAndTheLength) {
  EXPECT_THAT(NamesOf(ReadingsOf(Dynamic(), {}, 4096)),
              ElementsAre("vllm 0.10.2 to 0.21.0", "sglang 0.5.9 to 0.5.23"));
  // The older base is that of four times the length. The newer vLLM and llama.cpp scale nothing.
  const auto readings = ReadingsOf(Dynamic(), {}, 16384);
  ASSERT_THAT(NamesOf(readings), ElementsAre("vllm 0.22.0 to 0.33.0", "llamacpp 0c1e57098"));
  EXPECT_GT(readings[0].inv_freq_max_relative, 0.9);
  EXPECT_EQ(readings[1].difference, "llama.cpp ignores rope_type dynamic for this model");
  EXPECT_EQ(readings[1].attention_factor, 1);
}

// Its converter writes no scaling of Cohere, Gemma 2 and StableLM, and of Phi-3 only longrope.
TEST(ApplyCompatTest, LlamaCppReadsTheScalingOfSomeModelsInAnotherWay) {
  const auto read = [](const RopeConfig& config, const std::string& model_type) {
    return MustApply(config, Compat::kLlamacpp, {.model_type = model_type}).config;
  };
  RopeConfig yarn = Yarn(8);
  yarn.rope_theta = 500000;
  EXPECT_EQ(read(yarn, "cohere"), (RopeConfig{.rope_theta = 500000, .head_dim = 64}));
  EXPECT_EQ(read(yarn, "gemma2"), (RopeConfig{.rope_theta = 10000, .head_dim = 64}));
  EXPECT_EQ(read(yarn, "stablelm"), read(yarn, "gemma2"));
  EXPECT_EQ(read(yarn, "phi3"), read(yarn, "cohere"));
  RopeConfig linear = {.rope_type = RopeType::kLinear, .rope_theta = 500000, .head_dim = 64};
  linear.factor = 8;
  EXPECT_EQ(read(yarn, "nemotron"), linear);
  EXPECT_EQ(read(Longrope(), "nemotron").rope_type, RopeType::kDefault);
  // A config without a name is hardly one of these.
  EXPECT_EQ(MustApply(yarn, Compat::kLlamacpp).config.rope_type, RopeType::kYarn);
}

TEST(ReadingsTest, LlamaCppHasLlama3OfSomeModels) {
  RopeConfig config = {.rope_type = RopeType::kLlama3, .head_dim = 64};
  config.factor = 8;
  config.low_freq_factor = 1;
  config.high_freq_factor = 4;
  config.original_max_position_embeddings = 8192;
  for (const char* type : {"llama", "exaone4", ""}) {
    EXPECT_THAT(NamesOf(ReadingsOf(config, {.model_type = type})),
                Not(Contains("llamacpp 0c1e57098")))
        << type;
  }
  for (const char* type : {"qwen3", "gpt_oss", "deepseek_v3", "hunyuan_v1_dense", "phi3"}) {
    EXPECT_THAT(NamesOf(ReadingsOf(config, {.model_type = type})), Contains("llamacpp 0c1e57098"))
        << type;
  }
}

TEST(ReadingsTest, LongropeListOfPhi3) {
  const auto readings = ReadingsOf(Longrope(), {.model_type = "phi3"});
  EXPECT_THAT(NamesOf(readings), ElementsAre("vllm 0.11.1 to 0.33.0", "llamacpp 0c1e57098"));
  EXPECT_THAT(NamesOf(ReadingsOf(Longrope(), {.model_type = "phi3"}, 4097)), IsEmpty());
}

// vLLM has Hugging Face's modules for these models, since the version after the one that is named.
TEST(ReadingsTest, ModelsOfVllmsTransformersBackendFollowTheLength) {
  RopeConfig config = Dynamic();
  for (const auto& [names, last] :
       {std::pair(ModelNames{"starcoder2", {"Starcoder2ForCausalLM"}}, "0.22.0 to 0.24.0"),
        std::pair(ModelNames{"olmo2", {"Olmo2ForCausalLM"}}, "0.22.0 to 0.25.1"),
        std::pair(ModelNames{"olmo3", {}}, "0.22.0 to 0.28.0"),
        std::pair(ModelNames{"arcee", {"ArceeForCausalLM"}}, "0.22.0 to 0.31.0"),
        std::pair(ModelNames{"llama", {"LlamaForCausalLM"}}, "0.22.0 to 0.33.0")}) {
    EXPECT_THAT(NamesOf(ReadingsOf(config, names, 16384)), Contains(std::string("vllm ") + last))
        << names.model_type;
  }
  EXPECT_THAT(NamesOf(ReadingsOf(config, {"smollm3", {"SmolLM3ForCausalLM"}}, 16384)),
              ElementsAre("llamacpp 0c1e57098"));
  RopeConfig yarn = Yarn(4);
  yarn.attn_factor = 2;
  EXPECT_THAT(NamesOf(ReadingsOf(yarn, {"starcoder2", {"Starcoder2ForCausalLM"}})),
              Contains("vllm 0.25.0 to 0.33.0"));
  EXPECT_THAT(MustApply(config, Compat::kVllm, {"starcoder2", {}}).config.alpha, std::nullopt);
}

TEST(ReadingsTest, SglangDropsTheScalingOfSomeClasses) {
  for (const char* type : {"gemma2", "starcoder2", "stablelm", "mixtral"}) {
    const auto readings = ReadingsOf(Yarn(4), {.model_type = type});
    ASSERT_THAT(NamesOf(readings), Contains("sglang 0.5.9 to 0.5.23")) << type;
    for (const Reading& reading : readings) {
      if (reading.engine != "sglang") continue;
      EXPECT_EQ(reading.attention_factor, 1) << type;
      EXPECT_EQ(reading.difference, "SGLang ignores rope_type yarn for this model") << type;
    }
  }
  EXPECT_THAT(NamesOf(ReadingsOf({.head_dim = 64}, {.model_type = "gemma2"})), IsEmpty());
}

TEST(ReadingsTest, SglangTurnsAQuarterOfStableLmWithANestedFraction) {
  const RopeConfig config = {.head_dim = 64, .partial_rotary_factor = 0.5};
  ModelNames names = {.model_type = "stablelm"};
  EXPECT_THAT(ReadingsOf(config, names), IsEmpty());
  names.fraction_in_parameters = true;
  const auto readings = ReadingsOf(config, names);
  ASSERT_THAT(NamesOf(readings), ElementsAre("sglang 0.5.9 to 0.5.23"));
  EXPECT_THAT(readings[0].difference, HasSubstr("turns a quarter of the channels"));
  EXPECT_GT(readings[0].inv_freq_max_relative, 0.5);
  EXPECT_THAT(ReadingsOf({.head_dim = 64, .partial_rotary_factor = 0.25}, names), IsEmpty());
}

TEST(ReadingsTest, OldNameOfLongropeIsRefusedWithTransformers5) {
  const RopeConfig config = {.rope_type = RopeType::kLongrope,
                             .head_dim = 4,
                             .max_position_embeddings = 8192,
                             .original_max_position_embeddings = 4096,
                             .short_factor = {1, 1},
                             .long_factor = {2, 4}};
  ModelNames names = {.model_type = "phi3"};
  const auto refusing = [&] {
    std::vector<std::string> engines;
    for (const Reading& reading : ReadingsOf(config, names)) {
      if (reading.difference.starts_with("has no rope_type su")) {
        engines.push_back(reading.engine + " " + reading.version);
      }
    }
    return engines;
  };
  EXPECT_THAT(refusing(), IsEmpty());
  names.is_su = true;
  EXPECT_THAT(refusing(),
              ElementsAre("hf 5.23.0", "vllm 0.25.0 to 0.33.0", "sglang 0.5.16 to 0.5.23"));
  EXPECT_THAT(ReadAs(config, {.engine = "vllm"}, names, std::nullopt),
              IsInvalid("engine: got vllm, which has no rope_type su without "
                        "original_max_position_embeddings beside it"));
  names.length_in_parameters = true;
  EXPECT_THAT(refusing(), IsEmpty());
  // Transformers has no su for other models; how the engines rename it was not checked.
  names.model_type = "llama";
  EXPECT_THAT(NamesOf(ReadingsOf(config, names)), ElementsAre("hf 5.23.0", "llamacpp 0c1e57098"));
  names.model_type = "mine";
  EXPECT_THAT(refusing(), IsEmpty());
}

TEST(ReadingsTest, YarnWithoutFactorIsNotReadElsewhere) {
  RopeConfig config = Yarn(4);
  config.factor.reset();
  config.max_position_embeddings = 16384;
  const auto readings = ReadingsOf(config, {.model_type = "qwen2"});
  ASSERT_THAT(NamesOf(readings), ElementsAre("vllm 0.10.2 to 0.33.0", "llamacpp 0c1e57098"));
  EXPECT_EQ(readings[0].difference, "has no yarn without factor");
}

TEST(ReadingsTest, NothingIsClaimedOfModelsThatWereNotChecked) {
  RopeConfig config = Yarn(64);
  config.attention_factor = 1;
  EXPECT_THAT(ReadingsOf(config, {.model_type = "deepseek_v4"}), IsEmpty());
}

TEST(ReadingsTest, AreRelativeToTheAnswerUnderACompat) {
  RopeConfig config = Yarn(64);
  config.attention_factor = 1;
  const ModelNames names = {.model_type = "laguna"};
  const auto as_llama_cpp = MustResolve(MustApply(config, Compat::kLlamacpp, names).config);
  const auto readings = Readings(config, names, *as_llama_cpp, 1);
  EXPECT_THAT(NamesOf(readings),
              ElementsAre("hf 5.23.0", "vllm 0.30.0 to 0.33.0", "sglang 0.5.16 to 0.5.23"));
  EXPECT_EQ(readings[0].difference, "reads the config as written");
}

TEST(RampOfTest, ClassicCaseHasItsEdgesAtTheTwoWavelengths) {
  RopeConfig config = {.rope_type = RopeType::kLlama3, .head_dim = 256};
  config.factor = 8;
  config.low_freq_factor = 1;
  config.high_freq_factor = 4;
  config.original_max_position_embeddings = 8192;
  const auto llama3 = RampOf(*MustResolve(config));
  ASSERT_TRUE(llama3.has_value());
  EXPECT_NEAR(llama3->low_wavelength, 2048, 1e-9);
  EXPECT_NEAR(llama3->high_wavelength, 8192, 1e-9);
  const auto rope = MustResolve(config);
  const auto scaling = ScalingOf(*rope, rope->Evaluate(1));
  for (size_t i = 0; i < scaling.size(); ++i) {
    const auto index = static_cast<double>(i);
    EXPECT_EQ(scaling[i], index <= llama3->low_index    ? FrequencyScaling::kKept
                          : index >= llama3->high_index ? FrequencyScaling::kScaled
                                                        : FrequencyScaling::kBlended)
        << i;
  }
  config.rope_type = RopeType::kYarn;
  config.beta_fast = 4;
  config.beta_slow = 1;
  config.ramp = YarnRamp::kTurns;
  EXPECT_EQ(RampOf(*MustResolve(config))->low_index, llama3->low_index);
}

TEST(RampOfTest, YarnByIndexHasRoundedEdges) {
  RopeConfig config = Yarn(32);
  config.rope_theta = 150000;
  const auto rounded = RampOf(*MustResolve(config));
  EXPECT_EQ(rounded->low_index, 8);
  EXPECT_EQ(rounded->high_index, 18);
  config.truncate = false;
  EXPECT_NEAR(RampOf(*MustResolve(config))->low_index, 8.0928, 5e-5);
  EXPECT_NEAR(RampOf(*MustResolve(config))->high_index, 17.3980, 5e-5);
  EXPECT_NEAR(rounded->low_wavelength, 2 * std::numbers::pi * std::pow(150000.0, 16.0 / 64), 1e-9);
  EXPECT_FALSE(RampOf(*MustResolve({.head_dim = 64})).has_value());
}

TEST(ScalingOfTest, EachTypeSaysWhatItDid) {
  const auto of = [](const RopeConfig& config) {
    const auto rope = MustResolve(config);
    return ScalingOf(*rope, rope->Evaluate(1));
  };
  EXPECT_THAT(of({.head_dim = 4}), ElementsAre(FrequencyScaling::kKept, FrequencyScaling::kKept));
  EXPECT_THAT(of(Longrope()), ElementsAre(FrequencyScaling::kKept, FrequencyScaling::kScaled));
  RopeConfig hf = Longrope();
  hf.precision = Precision::kHf;
  EXPECT_THAT(of(hf), ElementsAre(FrequencyScaling::kKept, FrequencyScaling::kScaled));
  EXPECT_THAT(
      of({.rope_type = RopeType::kProportional, .head_dim = 4, .partial_rotary_factor = 0.5}),
      ElementsAre(FrequencyScaling::kKept, FrequencyScaling::kStill));
  RopeConfig given = {.head_dim = 4};
  given.inv_freq = {3, 0};
  EXPECT_THAT(of(given), ElementsAre(FrequencyScaling::kKept, FrequencyScaling::kStill));
}

TEST(Float32AngleErrorTest, GrowsWithThePosition) {
  const auto evaluated = MustResolve({.rope_theta = 500000, .head_dim = 128})->Evaluate(1);
  EXPECT_LT(Float32AngleError(evaluated, 0), 1e-15);
  EXPECT_GT(Float32AngleError(evaluated, 131071), 1e-3);
  EXPECT_LT(Float32AngleError(evaluated, 131071), 1e-2);
  EXPECT_GT(Float32AngleError(evaluated, 10485759), 0.1);
  EXPECT_LE(Float32AngleError(evaluated, int64_t{1} << 31), 2);
}

}  // namespace
}  // namespace rope::kernels
