// Random config.json texts: fields with any values, nested in any way, and whole files with
// replaced values and damaged bytes. The reader must accept each text, and each of its layers, or
// reject it with the name of a field. Resolved frequencies and factors must be finite.
//
// ROPE_FUZZ_ROUNDS=N sets the number of texts for each test, ROPE_FUZZ_SEED=N the seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/compat/model_family.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/compat/rope_remarks.h"
#include "kernels/config/config_json.h"
#include "kernels/config/config_json_document.h"
#include "kernels/config/rope_config.h"
#include "kernels/frequencies/frequencies.h"
#include "tests/fuzz/config_writer.h"
#include "tests/fuzz/fuzz_random.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using ::rope::testing::ConfigWriter;
using ::rope::testing::FuzzRandom;
using ::rope::testing::FuzzRounds;
using ::rope::testing::FuzzSeed;

constexpr uint64_t kRounds = 8000;
constexpr uint64_t kSeed = 20260109;
// Only embeddings up to the first bound have their numbers checked; above the second, only some of
// them.
constexpr int64_t kRotaryDimMax = 512;
constexpr int64_t kRotaryDimUsual = 16;
constexpr int64_t kKeptBytesMax = 4 << 20;

void ExpectNamesAField(const absl::Status& status) {
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               ContainsRegex("^[^:]+: got (.|\n)*, want ")));
}

void ExpectNumbers(const ResolvedRope& rope, int64_t seq_len) {
  EXPECT_TRUE(std::isfinite(rope.attention_factor()));
  const ResolvedRope::AtSeqLen evaluated = rope.Evaluate(seq_len);
  EXPECT_EQ(static_cast<int64_t>(evaluated.inv_freq.size()), rope.rotary_dim() / 2);
  for (const InverseFrequency f : evaluated.inv_freq) EXPECT_TRUE(std::isfinite(f) && f >= 0);
  EXPECT_EQ(ScalingOf(rope, evaluated).size(), evaluated.inv_freq.size());
  for (const Multiplier multiplier :
       {Multiplier::kAttentionFactor, Multiplier::kOne, Multiplier::kInverseAttentionFactor}) {
    const auto frequencies = rope.ForSeqLen(seq_len, multiplier);
    if (frequencies == nullptr) continue;
    EXPECT_TRUE(std::isfinite(frequencies->multiplier));
    if (frequencies->inv_freq.empty()) continue;
    const CosSin row = CosSinAt(*frequencies, 0, int64_t{1} << 30);
    EXPECT_TRUE(std::isfinite(row.cos) && std::isfinite(row.sin));
  }
}

class ConfigFuzzTest : public ::testing::Test {
 protected:
  void CheckResolved(const RopeConfig& config, std::optional<int64_t> head_dim) {
    const auto rope = Resolve(config, head_dim);
    if (const absl::Status valid = Validate(config, head_dim); valid.ok()) {
      Remarks(config, head_dim);
    } else {
      EXPECT_FALSE(rope.ok());
      ExpectNamesAField(valid);
    }
    if (!rope.ok()) return ExpectNamesAField(rope.status());
    ++resolved_;
    if ((*rope)->rotary_dim() > (random_.OneIn(8) ? kRotaryDimMax : kRotaryDimUsual)) return;
    RampOf(**rope);
    const int64_t seq_len = random_.OneOf({int64_t{1}, int64_t{1} << 17, int64_t{1} << 40});
    ExpectNumbers(**rope, seq_len);
    for (const char* type : {"", "deepseek_v3", "deepseek_v32", "ministral3", "phi3", "llama"}) {
      Readings(config, {.model_type = type}, **rope, seq_len);
    }
  }

  void CheckLayer(const ModelConfig& model, const LayerChoice& choice) {
    const auto layer = model.Layer(choice);
    if (!layer.ok()) return ExpectNamesAField(layer.status());
    CheckResolved(layer->config, random_.OneIn(4) ? std::optional<int64_t>(8) : std::nullopt);
  }

  void Check(const std::string& text) {
    CheckModel(text, "");
    const auto found = FindSubConfigs(std::string_view(text));
    if (!found.ok()) return ExpectNamesAField(found.status());
    for (const SubConfig& sub : found->configs) CheckModel(text, sub.name);
  }

  void CheckModel(const std::string& text, const std::string& sub_config) {
    const auto model = ModelConfig::Parse(text, sub_config);
    ++(model.ok() ? read_ : refused_);
    if (!model.ok()) return ExpectNamesAField(model.status());
    EXPECT_LE(model->KeptBytes(), kKeptBytesMax);
    for (const std::string& type : model->layer_types()) CheckLayer(*model, {.layer_type = type});
    switch (random_.Below(4)) {
      case 0:
        return CheckLayer(*model, {.layer = static_cast<int64_t>(random_.Below(4))});
      case 1:
        return CheckLayer(*model, {.layer = random_.EdgeInteger()});
      case 2:
        return CheckLayer(*model, {.layer_type = random_.OneIn(2) ? "sliding_attention" : "none"});
      default:
        CheckLayer(*model, {.layer = random_.OneIn(4) ? std::optional<int64_t>(0) : std::nullopt,
                            .layer_type = random_.OneIn(4) ? "full_attention" : ""});
    }
  }

  template <typename TextOf>
  void CheckMany(const TextOf& text_of) {
    const uint64_t rounds = FuzzRounds(kRounds);
    for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
      const std::string text = text_of();
      SCOPED_TRACE(text);
      Check(text);
    }
    std::printf("measured: %lld texts read, %lld refused; %lld embeddings resolved\n",
                static_cast<long long>(read_), static_cast<long long>(refused_),
                static_cast<long long>(resolved_));
    EXPECT_GT(read_, static_cast<int64_t>(rounds / 20));
    EXPECT_GT(refused_, static_cast<int64_t>(rounds / 20));
    EXPECT_GT(resolved_, static_cast<int64_t>(rounds / 20));
  }

  FuzzRandom random_{FuzzSeed(kSeed)};
  ConfigWriter writer_{random_};
  int64_t read_ = 0;
  int64_t refused_ = 0;
  int64_t resolved_ = 0;
};

TEST_F(ConfigFuzzTest, TextsOfAnyFieldsAreReadOrRefusedByName) {
  CheckMany([this] { return writer_.NewText(); });
}

TEST_F(ConfigFuzzTest, DamagedFilesAreReadOrRefusedByName) {
  std::vector<std::string> files;
  const std::filesystem::path folder = ROPE_SOURCE_DIR "/tests/conformance/configs";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path());
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  ASSERT_FALSE(files.empty());
  std::sort(files.begin(), files.end());  // directory order is undefined
  CheckMany([&] { return writer_.Changed(random_.OneOf(files)); });
}

}  // namespace
}  // namespace rope::kernels
