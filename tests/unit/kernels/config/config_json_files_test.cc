// Complete config.json files, resolved for every layer.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/compat/rope_remarks.h"
#include "kernels/config/config_json.h"
#include "kernels/frequencies/frequencies.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/config/remark_texts.h"
#include "tests/unit/kernels/config/resolved_text.h"

namespace rope::kernels {
namespace {

using ::rope::testing::ScalingText;
using ::rope::testing::TextsOf;

// The expected embedding of the layers with one letter.
struct Kind {
  double theta;
  std::string scaling;
  int64_t head_dim;
  int64_t rotary_dim;
  double attention_factor = 1;
  bool rotates = true;
};

struct File {
  std::string name;
  char pairing;                     // h: half, i: interleaved, -: not known
  std::optional<int64_t> heads;     // unset: the file does not say, nor how many layers there are
  std::optional<int64_t> kv_heads;  // k heads that rotate
  int64_t max_positions;            // -1: not in the file
  std::string layers;               // one letter per layer
  std::map<char, Kind> kinds;
  std::vector<std::string> remarks = {};  // a part of each remark, over all layers that rotate
};

// Repeats `letters` up to `layers` letters.
std::string Repeat(const std::string& letters, size_t layers) {
  std::string all;
  while (all.size() < layers) all += letters;
  return all.substr(0, layers);
}

std::string All(size_t layers) {
  return Repeat("A", layers);
}

Kind Still(Kind kind) {
  kind.rotates = false;
  return kind;
}

const Kind kScout = {5e5, "llama3 f16 lf1 hf1 L8192", 128, 128};
const Kind kSmolLm3 = {5e6, "default", 128, 128};
const Kind kQwen3Next = {1e7, "default", 256, 64};
const Kind kQwen35 = {1e7, "default mrope interleaved 11,11,10", 256, 64};
const Kind kExaone = {1e6, "llama3 f16 lf1 hf4 L8192", 128, 128};
const Kind kCommandR7b = {5e4, "default", 128, 128};
const Kind kNoRope = {0, "", 0, 0, 1, false};  // the model has no rotary embedding
const Kind kLocal256 = {1e4, "default", 256, 256};
const Kind kYarn40 = {1e4, "yarn f40 L4096 bf32 bs1 rounded", 64, 64};

// clang-format off
const File kFiles[] = {
    {"chatglm3-6b", 'i', 32, 2, 8192, All(28), {{'A', {1e4, "default", 128, 64}}},
     {"partial_rotary_factor absent, taken as 0.5"}},
    {"baichuan2-7b", '-', 32, 32, 4096, All(32), {{'A', {1e4, "default", 128, 128}}},
     {"ALiBi in the 13B models", "rope_theta absent, taken as 10000"}},
    {"command-a-03-2025", 'i', 96, 8, 131072, Repeat("SSSN", 64),
     {{'S', kCommandR7b}, {'N', Still(kCommandR7b)}}},
    {"command-r-v01", 'i', 64, 64, 8192, All(40), {{'A', {8e6, "default", 128, 128}}}},
    {"command-r7b", 'i', 32, 8, 132096, Repeat("SSSN", 32),
     {{'S', kCommandR7b}, {'N', Still(kCommandR7b)}}},
    {"deepseek-v2-lite", 'i', 16, 1, 163840, All(27), {{'A', kYarn40}}, {"truncate absent"}},
    {"deepseek-v3.2", 'i', 128, 1, 163840, All(61), {{'A', kYarn40}},
     {"truncate absent", "head_dim absent, taken as 64"}},
    {"deepseek-v3", 'i', 128, 1, 163840, All(61), {{'A', kYarn40}}, {"truncate absent"}},
    {"ernie-4.5-vl-28b-a3b", 'i', 20, 4, 131072, All(28),
     {{'A', {5e5, "default mrope hw 20,22,22", 128, 128}}}},
    {"exaone-4.0-1.2b", 'h', 32, 8, 65536, All(30),
     {{'A', {1e6, "llama3 f16 lf1 hf4 L8192", 64, 64}}}},
    {"exaone-4.0-32b", 'h', 40, 8, 131072, Repeat("SSSN", 64),
     {{'S', kExaone}, {'N', Still(kExaone)}}},
    {"falcon-7b", 'h', 71, 1, 2048, All(32), {{'A', {1e4, "default", 64, 64}}},
     {"rope_theta absent, taken as 10000", "max_position_embeddings absent, taken as 2048"}},
    {"gemma-2-9b", 'h', 16, 8, 8192, All(42), {{'A', kLocal256}}},
    {"gemma-3-12b", 'h', 16, 8, 131072, Repeat("SSSSSF", 48),
     {{'S', kLocal256}, {'F', {1e6, "linear f8", 256, 256}}},
     {"rope_theta absent, taken as 1000000, as Hugging Face",
      "rope_local_base_freq absent, taken as 10000",
      "head_dim absent, taken as 256", "max_position_embeddings absent, taken as 131072"}},
    {"gemma-3-1b", 'h', 4, 1, 32768, Repeat("SSSSSF", 26),
     {{'S', kLocal256}, {'F', {1e6, "default", 256, 256}}}},
    {"gemma-3-27b-rope-parameters", 'h', 32, 16, 131072, Repeat("SSSSSF", 62),
     {{'S', {1e4, "default", 128, 128}}, {'F', {1e6, "linear f8", 128, 128}}}},
    {"gemma-3-4b", 'h', 8, 4, 131072, Repeat("SSSSSF", 34),
     {{'S', kLocal256}, {'F', {1e6, "linear f8", 256, 256}}},
     {"rope_theta absent, taken as 1000000, as Hugging Face",
      "rope_local_base_freq absent, taken as 10000",
      "head_dim absent, taken as 256", "max_position_embeddings absent, taken as 131072"}},
    {"gemma-4-31b", 'h', 32, 16, 262144, Repeat("SSSSSF", 60),
     {{'S', kLocal256}, {'F', {1e6, "proportional f1 p0.25", 512, 512}}}},
    {"glm-4-9b-chat", 'i', 32, 2, 131072, All(40), {{'A', {5e6, "default", 128, 64}}},
     {"partial_rotary_factor absent, taken as 0.5, as its code does for chatglm"}},
    {"glm-4-9b-0414", 'i', 32, 2, 32768, All(40), {{'A', {1e4, "default", 128, 64}}}},
    {"glm-4.5-air", 'h', 96, 8, 131072, All(46), {{'A', {1e6, "default", 128, 64}}}},
    {"gpt2", '-', 12, 12, 1024, All(12), {{'A', kNoRope}}},
    {"gpt-j-6b", 'i', 16, 16, 2048, All(28), {{'A', {1e4, "default", 256, 64}}},
     {"rope_theta absent, taken as 10000"}},
    {"gpt-oss-120b", 'h', 64, 8, 131072, All(36),
     {{'A', {150000, "yarn f32 L4096 bf32 bs1 exact", 64, 64, 1.3465735903}}}},
    {"gpt-oss-20b", 'h', 64, 8, 131072, All(24),
     {{'A', {150000, "yarn f32 L4096 bf32 bs1 exact", 64, 64, 1.3465735903}}}},
    {"granite-3.1-8b", 'h', 32, 8, 131072, All(40), {{'A', {1e7, "default", 128, 128}}}},
    {"granite-4.0-h-tiny", 'h', 12, 4, 131072, Repeat("N", 40),
     {{'N', Still({1e4, "default", 128, 128})}}},
    {"hunyuan-7b-instruct", 'h', 32, 8, 32768, All(32),
     {{'A', {1e4, "dynamic a1000", 128, 128}}},
     {"alpha 1000 enlarges the base to 1.11588e+07", "mscale has no effect",
      "mscale_all_dim has no effect", "beta_fast has no effect", "beta_slow has no effect"}},
    {"internlm2-chat-7b", '-', 32, 8, 32768, All(32), {{'A', {1e6, "dynamic f2 M32768", 128, 128}}},
     {"internlm2"}},
    {"kimi-k2", 'i', 64, 1, 131072, All(61),
     {{'A', {5e4, "yarn f32 L4096 bf1 bs1 rounded", 64, 64}}}, {"truncate absent"}},
    {"llama-2-7b", 'h', 32, 32, 4096, All(32), {{'A', {1e4, "default", 128, 128}}},
     {"rope_theta absent, taken as 10000"}},
    {"llama-3.2-1b", 'h', 32, 8, 131072, All(16),
     {{'A', {5e5, "llama3 f32 lf1 hf4 L8192", 64, 64}}}},
    {"llama-3.1-8b", 'h', 32, 8, 131072, All(32),
     {{'A', {5e5, "llama3 f8 lf1 hf4 L8192", 128, 128}}}},
    {"llama-4-scout", 'i', 40, 8, 10485760, Repeat("AAAN", 48),
     {{'A', kScout}, {'N', Still(kScout)}}, {"high_freq_factor equals low_freq_factor"}},
    {"mimo-v2-flash", 'h', 64, 4, 262144, "FSSSSF" + Repeat("SSSSSF", 42),
     {{'S', {1e4, "default", 192, 64}}, {'F', {5e6, "default", 192, 64}}},
     {"truncated to a rotary_dim of 64"}},
    {"minimax-text-01", '-', 64, 8, 10240000, All(80), {{'A', {1e7, "default", 128, 64}}},
     {"whose attn_type_list is 1", "attn_type_list is not read"}},
    {"minimax-m2", 'h', 48, 8, 196608, All(62), {{'A', {5e6, "default", 128, 64}}}},
    {"ministral-8b-2410", 'h', 32, 8, 32768, All(36), {{'A', {1e8, "default", 128, 128}}}},
    {"ministral-3-8b", 'h', 32, 8, 262144, All(34),
     {{'A', {1e6, "yarn f16 L16384 bf32 bs1 rounded", 128, 128}}},
     {"llama_4_scaling_beta", "truncate absent"}},
    {"mistral-small-3.1-24b", 'h', 32, 8, 131072, All(40), {{'A', {1e9, "default", 128, 128}}}},
    {"mistral-7b-v0.3", 'h', 32, 8, 32768, All(32), {{'A', {1e6, "default", 128, 128}}}},
    {"modernbert-base", 'h', 12, 12, 8192, Repeat("FSS", 22),
     {{'S', {1e4, "default", 64, 64}}, {'F', {160000, "default", 64, 64}}}},
    {"mpt-7b", '-', std::nullopt, std::nullopt, -1, All(1), {{'A', kNoRope}}},
    {"olmo-2-7b", 'h', 32, 32, 4096, All(32), {{'A', {5e5, "default", 128, 128}}}},
    {"olmo-3-7b", 'h', 32, 32, 65536, Repeat("SSSF", 32),
     {{'S', {5e5, "default", 128, 128}},
      {'F', {5e5, "yarn f8 L8192 bf32 bs1 rounded", 128, 128, 1.2079441542}}},
     {"truncate absent"}},
    {"phi-3-mini-128k", 'h', 32, 32, 131072, All(32),
     {{'A', {1e4, "longrope f32 L4096 short48 long48", 96, 96, 1.1902380714}}}},
    {"phi-3.5-mini", 'h', 32, 32, 131072, All(32),
     {{'A', {1e4, "longrope f32 L4096 short48 long48", 96, 96, 1.1902380714}}}},
    {"phi-4-mini", 'h', 24, 8, 131072, All(32),
     {{'A', {1e4, "longrope f32 L4096 short48 long48", 128, 96, 1.1902380714}}}},
    {"pythia-6.9b", 'h', 32, 32, 2048, All(32), {{'A', {1e4, "default", 128, 32}}}},
    {"qwen-7b", '-', 32, 32, 32768, All(32), {{'A', {1e4, "default", 128, 128}}},
     {"with use_dynamic_ntk the base", "use_dynamic_ntk is not read", "use_logn_attn is not read"}},
    {"qwen2-vl-7b", 'h', 28, 4, 32768, All(28),
     {{'A', {1e6, "default mrope 16,24,24", 128, 128}}}},
    {"qwen2.5-7b-instruct", 'h', 28, 4, 32768, All(28), {{'A', {1e6, "default", 128, 128}}}},
    {"qwen2.5-7b-instruct-yarn", 'h', 28, 4, 32768, All(28),
     {{'A', {1e6, "yarn f4 L32768 bf32 bs1 rounded", 128, 128, 1.1386294361}}},
     {"factor 4 contradicts", "truncate absent"}},
    {"qwen2.5-vl-7b", 'h', 28, 4, 128000, All(28),
     {{'A', {1e6, "default mrope 16,24,24", 128, 128}}}},
    {"qwen3-32b-yarn", 'h', 64, 8, 40960, All(64),
     {{'A', {1e6, "yarn f4 L32768 bf32 bs1 rounded", 128, 128, 1.1386294361}}},
     {"factor 4 contradicts", "truncate absent"}},
    {"qwen3-8b", 'h', 32, 8, 40960, All(36), {{'A', {1e6, "default", 128, 128}}}},
    {"qwen3-8b-yarn", 'h', 32, 8, 40960, All(36),
     {{'A', {1e6, "yarn f4 L32768 bf32 bs1 rounded", 128, 128, 1.1386294361}}},
     {"factor 4 contradicts", "truncate absent"}},
    {"qwen3-next-80b-a3b", 'h', 16, 2, 262144, Repeat("NNNA", 48),
     {{'A', kQwen3Next}, {'N', Still(kQwen3Next)}}},
    {"qwen3-vl-8b", 'h', 32, 8, 262144, All(36),
     {{'A', {5e6, "default mrope interleaved 24,20,20", 128, 128}}}},
    {"qwen3.5-27b", 'h', 24, 4, 262144, Repeat("NNNA", 64),
     {{'A', kQwen35}, {'N', Still(kQwen35)}}},
    {"recurrentgemma-2b", 'h', 10, 1, -1, Repeat("NNA", 26),
     {{'A', {1e4, "default", 256, 128}}, {'N', Still({1e4, "default", 256, 128})}}},
    {"smollm3-3b", 'h', 16, 4, 65536, Repeat("AAAN", 36),
     {{'A', kSmolLm3}, {'N', Still(kSmolLm3)}}},
    {"stablelm-2-1.6b", 'h', 32, 32, 4096, All(24), {{'A', {1e4, "default", 64, 16}}}},
    {"trinity-mini", 'h', 32, 4, 131072, Repeat("SSSN", 32),
     {{'S', {1e4, "default", 128, 128}}, {'N', Still({1e4, "default", 128, 128})}}},
    {"yi-6b", 'h', 32, 4, 4096, All(32), {{'A', {5e6, "default", 128, 128}}}},
};
// clang-format on

const std::filesystem::path kFolder =
    std::filesystem::path(ROPE_SOURCE_DIR) / "tests" / "conformance" / "configs";

absl::StatusOr<ModelConfig> ReadModel(const std::string& name) {
  std::ifstream file(kFolder / (name + ".json"));
  EXPECT_TRUE(file.is_open()) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return ModelConfig::Parse(text.str());
}

std::optional<Pairing> PairingOf(char letter) {
  if (letter == '-') return std::nullopt;
  return letter == 'i' ? Pairing::kInterleaved : Pairing::kHalf;
}

void ExpectKind(const LayerConfig& layer, const Kind& want) {
  EXPECT_EQ(layer.rotates, want.rotates);
  if (want.head_dim == 0) return;
  ASSERT_OK(rope, Resolve(layer.config));
  EXPECT_EQ((*rope)->config().rope_theta, want.theta);
  EXPECT_EQ(ScalingText(**rope), want.scaling);
  EXPECT_EQ((*rope)->head_dim(), want.head_dim);
  EXPECT_EQ((*rope)->rotary_dim(), want.rotary_dim);
  EXPECT_NEAR((*rope)->attention_factor(), want.attention_factor, 1e-9);
}

// Each remark contains an expected part, and each expected part occurs.
void ExpectRemarks(const std::set<std::string>& remarks, const std::vector<std::string>& want) {
  std::set<std::string> missing(want.begin(), want.end());
  for (const std::string& remark : remarks) {
    const auto found = std::find_if(want.begin(), want.end(), [&](const std::string& words) {
      return remark.find(words) != std::string::npos;
    });
    if (found == want.end()) {
      ADD_FAILURE() << "not expected: " << remark;
    } else {
      missing.erase(*found);
    }
  }
  EXPECT_THAT(missing, ::testing::IsEmpty());
}

class ConfigFileTest : public ::testing::TestWithParam<File> {};

TEST_P(ConfigFileTest, EveryLayerResolvesToThePublicModels) {
  const File& want = GetParam();
  ASSERT_OK(model, ReadModel(want.name));
  EXPECT_EQ(model->num_heads(), want.heads);
  EXPECT_EQ(model->num_kv_heads(), want.kv_heads);
  std::set<std::string> remarks;
  for (size_t i = 0; i < want.layers.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "layer " << i);
    ASSERT_OK(layer, model->Layer({.layer = static_cast<int64_t>(i)}));
    EXPECT_EQ(layer->pairing, PairingOf(want.pairing));
    EXPECT_EQ(layer->config.max_position_embeddings.value_or(-1), want.max_positions);
    ExpectKind(*layer, want.kinds.at(want.layers[i]));
    if (!layer->rotates) continue;
    for (const std::string& text : TextsOf(layer->remarks)) remarks.insert(text);
    for (const std::string& text : TextsOf(Remarks(layer->config))) remarks.insert(text);
  }
  if (want.heads.has_value()) {
    EXPECT_FALSE(model->Layer({.layer = static_cast<int64_t>(want.layers.size())}).ok());
  }
  ExpectRemarks(remarks, want.remarks);
}

INSTANTIATE_TEST_SUITE_P(Files, ConfigFileTest, ::testing::ValuesIn(kFiles), [](const auto& file) {
  std::string name = file.param.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '.' || c == '-'; }, '_');
  return name;
});

TEST(ConfigFilesTest, EveryFileIsInTheTable) {
  std::set<std::string> in_folder;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".json") in_folder.insert(entry.path().stem().string());
  }
  std::set<std::string> in_table;
  for (const File& file : kFiles) in_table.insert(file.name);
  EXPECT_EQ(in_folder, in_table);
}

void ExpectFrequencies(const std::string& name, int64_t seq_len,
                       const std::map<size_t, double>& want) {
  SCOPED_TRACE(name);
  ASSERT_OK(model, ReadModel(name));
  ASSERT_OK(rope, Resolve(model->Layer({.layer = 0})->config));
  const auto inv_freq = (*rope)->Evaluate(seq_len).inv_freq;
  for (const auto& [index, number] : want) {
    EXPECT_NEAR(static_cast<double>(inv_freq.at(index)), number, 1e-9 * number) << index;
  }
}

TEST(ConfigFilesTest, FrequenciesAreThePublishedOnes) {
  ExpectFrequencies("qwen3-8b-yarn", 1,
                    {{23, 6.978305849e-3},
                     {24, 5.375321491e-3},
                     {32, 6.029411765e-4},
                     {40, 4.445698525e-5},
                     {63, 3.102344402e-7}});
  ExpectFrequencies("llama-3.1-8b", 1, {{30, 1.371893568e-3}, {63, 3.068925989e-7}});
  ExpectFrequencies("phi-4-mini", 4097, {{1, .7380746918}, {47, 2.536168429e-6}});
}

}  // namespace
}  // namespace rope::kernels
