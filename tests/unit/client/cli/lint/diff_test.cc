#include "client/cli/lint/diff.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

std::string Llama(const std::string& more) {
  return R"({"model_type": "llama", "head_dim": 64, "max_position_embeddings": 4096, )" + more +
         "}";
}

absl::StatusOr<kernels::ModelConfig> Parse(const std::string& json) {
  return kernels::ModelConfig::Parse(json);
}

std::vector<LayerDifference> Differences(const std::string& a, const std::string& b) {
  auto differences = Diff({Parse(a)}, {Parse(b)}, 1e-3);
  EXPECT_TRUE(differences.ok()) << differences.status().ToString();
  return differences.ok() ? *differences : std::vector<LayerDifference>();
}

TEST(DiffTest, LayerTypesAreComparedWithASingleOneAndByName) {
  const std::string gemma = R"({"model_type": "gemma3_text", "head_dim": 64,
    "max_position_embeddings": 4096, "rope_parameters": {
      "full_attention": {"rope_type": "default", "rope_theta": 1e6},
      "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}})";
  const auto differences = Differences(gemma, Llama(R"("rope_theta": 10000)"));
  ASSERT_THAT(differences, SizeIs(2));
  EXPECT_EQ(differences[0].layer_type, "full_attention");
  EXPECT_FALSE(differences[0].equal);
  EXPECT_EQ(differences[1].layer_type, "sliding_attention");
  EXPECT_FALSE(differences[1].frequency.has_value());
  const auto same = Differences(gemma, gemma);
  ASSERT_THAT(same, SizeIs(2));
  EXPECT_TRUE(same[0].equal && same[1].equal);
}

TEST(DiffTest, ConfigThatFollowsTheLengthIsComparedAtBothEnds) {
  const std::string dynamic = R"({"model_type": "llama", "head_dim": 64,
    "max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 2}})";
  const std::string longer = R"({"model_type": "llama", "head_dim": 64,
    "max_position_embeddings": 16384})";
  const auto differences = Differences(dynamic, longer);
  ASSERT_THAT(differences, SizeIs(2));
  EXPECT_EQ(differences[0].seq_len, 1);
  EXPECT_TRUE(differences[0].equal);
  EXPECT_EQ(differences[1].seq_len, 16384);
  EXPECT_FALSE(differences[1].equal);
}

TEST(DiffTest, LayerThatDoesNotRotateIsDifferent) {
  const std::string some = R"({"model_type": "smollm3", "head_dim": 64, "num_hidden_layers": 2,
    "no_rope_layers": [0, 0]})";
  const auto differences = Differences(some, Llama(R"("rope_theta": 10000)"));
  ASSERT_THAT(differences, SizeIs(1));
  EXPECT_FALSE(differences[0].equal);
  EXPECT_FALSE(differences[0].a->rotates);
  EXPECT_FALSE(differences[0].first.has_value());
}

TEST(DiffTest, EngineThatPermutesQAndKTurnsTheSamePairs) {
  const std::string config = R"({"model_type": "mistral", "head_dim": 128, "rope_theta": 1e6})";
  const std::string params = R"({"dim": 4096, "n_layers": 2, "n_heads": 32, "hidden_dim": 14336,
    "head_dim": 128, "vocab_size": 32000, "rope_theta": 1e6})";
  struct Case {
    std::string a;
    std::string engine_a;
    std::string b;
    std::string engine_b;
    bool equal;
    std::string permuter;
  };
  for (const auto& [a, engine_a, b, engine_b, equal, permuter] :
       std::vector<Case>{{config, "", config, "llamacpp", true, "llama.cpp"},
                         {config, "", config, "vllm", true, ""},
                         {params, "", params, "vllm", true, "vLLM"},
                         {params, "", params, "llamacpp", true, ""},
                         {params, "vllm", config, "vllm", true, "vLLM"},
                         {params, "llamacpp", config, "llamacpp", true, "llama.cpp"},
                         {params, "vllm", config, "llamacpp", true, "vLLM"},
                         {params, "", config, "", false, ""},
                         {params, "sglang", config, "sglang", false, ""}}) {
    SCOPED_TRACE(engine_a + " " + engine_b);
    const auto differences = Diff(*SideOf(a, "", engine_a), *SideOf(b, "", engine_b), 1e-3);
    ASSERT_TRUE(differences.ok()) << differences.status().ToString();
    EXPECT_EQ(differences->front().equal, equal);
    EXPECT_EQ(differences->front().note, permuter.empty()
                                             ? ""
                                             : permuter +
                                                   " permutes q and k of this model: its channels "
                                                   "stand in another order");
  }
}

TEST(DiffTest, EngineThatMisreadsThePairsTurnsOthers) {
  const std::string config = R"({"model_type": "chatglm", "kv_channels": 128, "seq_length": 8192,
    "original_rope": false})";
  for (const auto& [engine, equal] : {std::pair("vllm", true), std::pair("sglang", false)}) {
    const auto differences = Diff(*SideOf(config, "", ""), *SideOf(config, "", engine), 1e-3);
    ASSERT_TRUE(differences.ok()) << differences.status().ToString();
    EXPECT_EQ(differences->front().equal, equal) << engine;
    EXPECT_EQ(differences->front().b->pairing, equal ? "half" : "interleaved");
    EXPECT_EQ(differences->front().note, "");
  }
}

TEST(DiffTest, ConfigThatIsRefusedIsNamed) {
  const std::string good = Llama(R"("rope_theta": 10000)");
  EXPECT_THAT(
      Diff({Parse(good)}, {Parse("{")}, 1e-3),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("B: config_json: got a syntax error")));
  const auto invalid = Diff({Parse(Llama(R"("rope_theta": -1)"))}, {Parse(good)}, 1e-3);
  EXPECT_THAT(invalid.status().message(), HasSubstr("A: rope_theta: got -1"));
}

}  // namespace
}  // namespace rope::client
