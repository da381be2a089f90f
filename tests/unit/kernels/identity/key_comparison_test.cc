#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/identity/key_identity.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using ::testing::ElementsAre;

// As a caller gets it: the fingerprint stands for the text.
KeyIdentity IdentityOf(const std::string& json, const std::string& engine = "",
                       Pairing pairing = Pairing::kHalf) {
  auto model = ModelConfig::Parse(json);
  EXPECT_THAT(model, IsOk());
  KeyOptions options = {.engine = {.engine = engine}};
  if (engine.empty()) options.pairing = pairing;
  auto key = IdentifyKey(*model, options);
  EXPECT_THAT(key, IsOk());
  key->identity.fingerprint = key->text;
  return key->identity;
}

std::string Config(const std::string& settings) {
  return R"({"model_type": "llama", "head_dim": 64, )" + settings + "}";
}

struct Case {
  std::string name;
  KeyIdentity a;
  KeyIdentity b;
  KeyMatch match;
  std::vector<std::string> differences;
};

void Check(const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    const KeyComparison comparison = CompareKeys(each.a, each.b);
    EXPECT_EQ(comparison.match, each.match);
    EXPECT_EQ(comparison.differences, each.differences);
    EXPECT_EQ(CompareKeys(each.b, each.a).match, each.match);
    EXPECT_EQ(CompareKeys(each.a, each.a).match, KeyMatch::kSame);
  }
}

TEST(CompareKeysTest, NamesWhatDiffersAndWhetherOneRotationConverts) {
  const std::string plain = Config(R"("rope_theta": 10000)");
  const std::string half_window =
      R"({"model_type": "glm4_moe", "head_dim": 64, "rope_theta": 10000,
          "partial_rotary_factor": 0.5})";
  Check({
      {"a key that does not reach K",
       IdentityOf(plain),
       IdentityOf(Config(R"("rope_theta": 10000, "max_position_embeddings": 9)")),
       KeyMatch::kSame,
       {}},
      {"another base",
       IdentityOf(Config(R"("rope_theta": 16)")),
       IdentityOf(Config(R"("rope_theta": 1)")),
       KeyMatch::kConvertible,
       {"inv_freq[1]: 0.9170040432046712 | 1"}},
      {"a factor on K",
       IdentityOf(plain),
       IdentityOf(Config(R"("rope_theta": 10000, "rope_scaling": {"rope_type": "yarn",
           "factor": 1, "attention_factor": 2, "original_max_position_embeddings": 4096})")),
       KeyMatch::kConvertible,
       {"factor on K: 1 | 2"}},
      {"pairing",
       IdentityOf(plain),
       IdentityOf(plain, "", Pairing::kInterleaved),
       KeyMatch::kDifferent,
       {"pairing: half | interleaved", "channel order: half | interleaved"}},
      {"half a window of half pairs",
       IdentityOf(plain),
       IdentityOf(half_window),
       KeyMatch::kDifferent,
       {"window: channels 0 to 63 of 64 | channels 0 to 31 of 64",
        "inv_freq[1]: 0.7498942093324559 | 0.5623413251903491"}},
      {"half a window of interleaved pairs",
       IdentityOf(plain, "", Pairing::kInterleaved),
       IdentityOf(half_window, "", Pairing::kInterleaved),
       KeyMatch::kConvertible,
       {"window: channels 0 to 63 of 64 | channels 0 to 31 of 64",
        "inv_freq[1]: 0.7498942093324559 | 0.5623413251903491"}},
  });
}

TEST(CompareKeysTest, NamesEnginesLayersAndLengths) {
  const std::string plain = Config(R"("rope_theta": 10000)");
  const std::string layers = R"("num_hidden_layers": 3, "rope_theta": 10000, "no_rope_layers": )";
  Check({
      {"engine",
       IdentityOf(plain, "hf"),
       IdentityOf(plain, "vllm"),
       KeyMatch::kRounding,
       {"engine: hf | vllm"}},
      {"llama.cpp permutes",
       IdentityOf(plain, "vllm"),
       IdentityOf(plain, "llamacpp"),
       KeyMatch::kReordered,
       {"engine: vllm | llamacpp", "dtype of cos and sin: that of K | fp32",
        "channel order: half | interleaved"}},
      {"one layer",
       IdentityOf(Config(layers + "[1, 1, 1]")),
       IdentityOf(Config(layers + "[1, 1, 0]")),
       KeyMatch::kConvertible,
       {"layer 2: rotates: yes | no"}},
      {"number of layers",
       IdentityOf(Config(layers + "[1, 0, 1]")),
       IdentityOf(Config(R"("num_hidden_layers": 2, "no_rope_layers": [1, 0])")),
       KeyMatch::kDifferent,
       {"layers: 3 | 2"}},
      {"dynamic",
       IdentityOf(Config(R"("max_position_embeddings": 9,
           "rope_scaling": {"rope_type": "dynamic", "factor": 2})")),
       IdentityOf(Config(R"("max_position_embeddings": 9)")),
       KeyMatch::kConvertible,
       {"by length: dynamic NTK by factor 2 of base 10000 for sequences above 9 | every length "
        "alike"}},
  });
}

TEST(CompareKeysTest, ADifferenceOfSeveralLayersIsNamedOnce) {
  const auto gemma = [](const std::string& local) {
    return IdentityOf(R"({"model_type": "gemma3_text", "head_dim": 4, "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 16},
            "sliding_attention": {"rope_type": "default", "rope_theta": )" +
                      local + "}}}");
  };
  EXPECT_THAT(CompareKeys(gemma("4"), gemma("64")).differences,
              ElementsAre("layer 0: inv_freq[1]: 0.5 | 0.125"));
}

// A name of a layer type may hold any byte.
TEST(CompareKeysTest, LayerTypesAreComparedOneByOne) {
  const auto types = [](const std::string& parameters) {
    return IdentityOf(R"({"head_dim": 8, "rope_parameters": {)" + parameters + "}}");
  };
  const KeyIdentity three = types(R"("a": {"rope_theta": 2}, "b": {"rope_theta": 3},
      "c": {"rope_theta": 4})");
  const KeyIdentity two = types(R"("a; b": {"rope_theta": 2}, "c": {"rope_theta": 3})");
  EXPECT_EQ(CompareKeys(three, two).match, KeyMatch::kDifferent);
}

// The identities show doubles; the text has every bit.
TEST(CompareKeysTest, ADifferenceBelowADoubleIsADifference) {
  KeyIdentity a = IdentityOf(Config(R"("rope_theta": 10000)"));
  KeyIdentity b = a;
  b.fingerprint += " ";
  EXPECT_EQ(CompareKeys(a, b).match, KeyMatch::kDifferent);
}

}  // namespace
}  // namespace rope::kernels
