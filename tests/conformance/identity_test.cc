// The identities of 10,000 random configs are those of identity_digests.txt, on every processor.
// With ROPE_WRITE_IDENTITY_DIGESTS=1 the test writes the file.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/canonical_text.h"
#include "kernels/config/config_json.h"
#include "kernels/describe.h"
#include "kernels/identity/key_identity.h"

namespace rope::testing {
namespace {

using Random = std::mt19937_64;

constexpr int kConfigs = 10000;
constexpr std::array<const char*, 5> kEngines = {"", "hf", "vllm", "sglang", "llamacpp"};

// Kinds of scaling, as a config.json has them. Each F is another factor, each L another length and
// each LIST a factor for each pair.
constexpr std::array<std::pair<const char*, const char*>, 12> kScalings = {{
    {"default", R"("rope_type": "default")"},
    {"linear", R"("rope_type": "linear", "factor": F)"},
    {"dynamic", R"("rope_type": "dynamic", "factor": F)"},
    {"dynamic by alpha", R"("rope_type": "dynamic", "alpha": F)"},
    {"ntk", R"("rope_type": "ntk", "factor": F)"},
    {"ntk mixed", R"("rope_type": "ntk", "factor": F, "mixed_b": 0.625)"},
    {"yarn", R"("rope_type": "yarn", "factor": F, "original_max_position_embeddings": L)"},
    {"yarn, not truncated", R"("rope_type": "yarn", "factor": F, "beta_fast": 4F, "beta_slow": 1.5,
        "original_max_position_embeddings": L, "truncate": false)"},
    {"yarn with mscale", R"("rope_type": "yarn", "factor": F, "mscale": F, "mscale_all_dim": F,
        "original_max_position_embeddings": L)"},
    {"longrope", R"("rope_type": "longrope", "short_factor": [LIST], "long_factor": [LIST],
        "factor": F, "original_max_position_embeddings": L)"},
    {"llama3", R"("rope_type": "llama3", "factor": F, "low_freq_factor": 1, "high_freq_factor": 4F,
        "original_max_position_embeddings": L)"},
    {"proportional", R"("rope_type": "proportional", "factor": F, "partial_rotary_factor": 0.5)"},
}};

// Written and not computed, so that no processor can round it in another way.
std::string Factor(Random& random) {
  const uint64_t thousandths = 1000 + random() % 40000;
  return absl::StrFormat("%d.%03d", thousandths / 1000, thousandths % 1000);
}

// `text` with each `word` replaced by another result of `next`.
template <typename Next>
std::string Replaced(std::string text, std::string_view word, const Next& next) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at)) {
    const std::string value = next();
    text.replace(at, word.size(), value);
    at += value.size();
  }
  return text;
}

// Every third config of kind "default" is the grid of a vision tower.
std::string RandomConfig(size_t kind, Random& random) {
  const uint64_t pairs = 2 * (2 + random() % 63);
  std::string scaling = Replaced(kScalings[kind].second, "LIST", [&] {
    std::string list = Factor(random);
    for (uint64_t i = 1; i < pairs; ++i) absl::StrAppend(&list, ", ", Factor(random));
    return list;
  });
  scaling = Replaced(std::move(scaling), "L", [&] { return absl::StrCat(1024 << random() % 6); });
  scaling = Replaced(std::move(scaling), "F", [&] { return Factor(random); });
  const bool grid = kind == 0 && random() % 3 == 0;
  const uint64_t theta = 2 + random() % 10000000;
  return absl::StrFormat(R"({%s"head_dim": %d, "max_position_embeddings": 65536,
                             "rope_theta": %d.%s, "rope_parameters": {%s}})",
                         grid ? R"("model_type": "pixtral", )" : "", 2 * pairs, theta,
                         theta % 2 == 0 ? "0" : "7", scaling);
}

struct Digest {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  int identities = 0;

  template <typename Text>
  void Add(const absl::StatusOr<Text>& text) {
    if (!text.ok()) return;
    ++identities;
    for (const char c : *text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
};

absl::StatusOr<std::string> FingerprintText(const kernels::ModelConfig& model, int turn) {
  kernels::KeyOptions options;
  options.engine.engine = kEngines[static_cast<size_t>(turn) % kEngines.size()];
  options.max_model_len = 65536;
  auto key = IdentifyKey(model, options);
  if (!key.ok()) return key.status();
  return std::move(key->text);
}

absl::StatusOr<std::string> ConfigIdText(const kernels::ModelConfig& model, int turn) {
  auto layer = model.Layer({});
  if (!layer.ok()) return layer.status();
  auto rope =
      kernels::ReadLayer(*std::move(layer), std::nullopt, static_cast<kernels::Compat>(turn % 5));
  if (!rope.ok()) return rope.status();
  return CanonicalText(*rope);
}

// A line a kind: its name, the number of its identities, their digest.
std::string Digests() {
  Random random(20261128);
  std::array<Digest, kScalings.size()> digests;
  for (int turn = 0; turn < kConfigs; ++turn) {
    const size_t kind = random() % kScalings.size();
    const auto model = kernels::ModelConfig::Parse(RandomConfig(kind, random));
    EXPECT_TRUE(model.ok()) << model.status();
    if (!model.ok()) continue;
    digests[kind].Add(FingerprintText(*model, turn));
    digests[kind].Add(ConfigIdText(*model, turn));
  }
  std::string text;
  for (size_t kind = 0; kind < digests.size(); ++kind) {
    absl::StrAppendFormat(&text, "%s: %d, %016x\n", kScalings[kind].first, digests[kind].identities,
                          digests[kind].hash);
  }
  return text;
}

TEST(IdentityTest, RandomConfigsHaveTheRecordedIdentities) {
  const std::string digests = Digests();
  if (std::getenv("ROPE_WRITE_IDENTITY_DIGESTS") != nullptr) {
    std::ofstream(ROPE_IDENTITY_DIGESTS) << digests;
  }
  std::ostringstream recorded;
  recorded << std::ifstream(ROPE_IDENTITY_DIGESTS).rdbuf();
  EXPECT_EQ(digests, recorded.str());
}

}  // namespace
}  // namespace rope::testing
