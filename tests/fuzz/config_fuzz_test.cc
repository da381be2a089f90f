// config.json texts that are nearly right: those of tests/conformance/cases/configs and whole files
// of tests/conformance/configs, with replaced values, fields of another text and damaged bytes. The
// reader must accept each text, and each of its layers, or reject it with the name of a field.
// Resolved frequencies and factors must be finite.
//
// ROPE_FUZZ_ROUNDS=N sets the number of texts, ROPE_FUZZ_SEED=N the seed.
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

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/compat/model_family.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/config/config_json.h"
#include "kernels/config/config_json_document.h"
#include "kernels/config/rope_config.h"
#include "kernels/frequencies/frequencies.h"
#include "tests/conformance/case_file.h"
#include "tests/fuzz/fuzz_random.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using ::rope::testing::FuzzRandom;
using ::rope::testing::FuzzRounds;
using ::rope::testing::FuzzSeed;

constexpr uint64_t kRounds = 16000;
constexpr uint64_t kSeed = 20260109;
// Only embeddings up to the first bound have their numbers checked; above the second, only some of
// them.
constexpr int64_t kRotaryDimMax = 512;
constexpr int64_t kRotaryDimUsual = 16;
constexpr int64_t kKeptBytesMax = 4 << 20;

// The texts of every case and of every file.
std::vector<std::string> Texts() {
  std::vector<std::string> texts;
  for (const std::string& file : rope::testing::CaseFiles("configs")) {
    rope::testing::ConfigTexts of_file;
    for (rope::testing::Paragraph& each : rope::testing::ReadCases(file)) {
      std::erase_if(each.text,
                    [](const std::string& line) { return absl::StartsWith(line, "with "); });
      std::optional<std::string> text = of_file.TextOf(each.text);
      if (!text.value_or("").empty()) texts.push_back(*std::move(text));
    }
  }
  const std::filesystem::path folder = ROPE_SOURCE_DIR "/tests/conformance/configs";
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::ranges::sort(files);  // directory order is undefined
  for (const std::filesystem::path& path : files) {
    std::ifstream file(path);
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return texts;
}

void ExpectNamesAField(const absl::Status& status) {
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               ContainsRegex("^[^:]+: got (.|\n)*, want ")));
}

void ExpectNumbers(const ResolvedRope& rope, int64_t seq_len) {
  EXPECT_TRUE(std::isfinite(rope.attention_factor()));
  const ResolvedRope::AtSeqLen evaluated = rope.Evaluate(seq_len);
  EXPECT_EQ(static_cast<int64_t>(evaluated.inv_freq.size()), rope.rotary_dim() / 2);
  for (const InverseFrequency f : evaluated.inv_freq)
    EXPECT_TRUE(std::isfinite(f) && (f >= 0 || rope.config().reverse));
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
  // A number of any size and notation; of some, a list, a loop or a sum must not follow the size.
  std::string AnyNumber() {
    switch (random_.Below(9)) {
      case 0:
        return absl::StrCat(random_.EdgeInteger());
      case 1:
        return absl::StrCat(random_.Integer(), ".", random_.Below(1000));
      case 2:
        return absl::StrCat(random_.Below(10), "e", static_cast<int64_t>(random_.Below(800)) - 400);
      case 3:
        return absl::StrCat("-", random_.Below(10), "e-", random_.Below(400));
      case 4:
        return std::string(1 + random_.Below(400), '9');
      case 5:
        return absl::StrCat("0.", std::string(random_.Below(400), '0'), "1");
      case 6:  // invalid JSON
        return random_.OneOf<const char*>(
            {"NaN", "Infinity", "-Infinity", "01", "1.", ".5", "0x10"});
      case 7:
        return random_.OneOf<const char*>(
            {"65537", "65538", "2147483648", "1000000000000", "9007199254740993",
             "9223372036854774784.0", "18446744073709551615", "1e18", "-1e18", "1e300", "-1e300"});
      default:
        return absl::StrCat(random_.Below(300));
    }
  }

  // Any JSON value, and sometimes invalid JSON.
  std::string AnyValue() {
    switch (random_.Below(8)) {
      case 0:
        return random_.OneOf<const char*>({"null", "true", "false", "{}", "[]", "[null]"});
      case 1:
        return random_.OneOf<const char*>({"\"\"", "\"yarn\"", "\"128\"", "\"\\ud800\"",
                                           "\"\\u0000\"", "\"\xc3\xa9\"", "\"\xff\"",
                                           "\"\\n\\u2028\""});
      case 2: {  // layer types without an embedding, as many as a file may have and more
        std::string types;
        for (uint64_t i = random_.OneOf<uint64_t>({1, 61, 63, 64, 65, 1000}); i > 0; --i) {
          absl::StrAppend(&types, types.empty() ? "" : ", ", "\"_type_", i, "\": null");
        }
        return absl::StrCat("{", types, "}");
      }
      case 3: {
        const uint64_t deep = random_.OneIn(16) ? 5000 : random_.Below(40);
        const std::string open(deep, '[');
        return absl::StrCat(open, random_.OneIn(4) ? "" : std::string(deep, ']'));
      }
      default:
        return AnyNumber();
    }
  }

  // Where the value of the field that begins at `end` ends, with its objects and arrays.
  static size_t EndOfField(std::string_view text, size_t end) {
    for (int depth = 0; end < text.size(); ++end) {
      const char letter = text[end];
      if (depth == 0 && (letter == ',' || letter == '}' || letter == '\n')) break;
      depth += (letter == '{' || letter == '[') - (letter == '}' || letter == ']');
    }
    return end;
  }

  // Replaces a value.
  void ReplaceValue(std::string& text) {
    const size_t colon = text.find(':', random_.Below(text.size() + 1));
    if (colon == std::string::npos) return;
    text.replace(colon + 1, EndOfField(text, colon) - colon - 1,
                 random_.OneIn(2) ? AnyNumber() : AnyValue());
  }

  // Adds a field of another text at the beginning of an object.
  void AddField(std::string& text) {
    const std::string& other = random_.OneOf(texts_);
    const size_t begin = other.find('"', random_.Below(other.size() + 1));
    const size_t at = text.find('{', random_.Below(text.size() + 1));
    if (begin == std::string::npos || at == std::string::npos) return;
    const std::string field = other.substr(begin, EndOfField(other, begin) - begin);
    const size_t name_end = std::min(field.find('"', 1), field.size());
    if (field.compare(name_end, 2, "\":") == 0) text.insert(at + 1, absl::StrCat(field, ", "));
  }

  std::string NewText() {
    std::string text = random_.OneOf(texts_);
    for (uint64_t n = random_.Below(4); n > 0; --n) {
      random_.OneIn(2) ? ReplaceValue(text) : AddField(text);
    }
    if (random_.OneIn(6)) random_.Damage(text);
    return text;
  }

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
    const auto found = FindSubConfigs(text);
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

  FuzzRandom random_{FuzzSeed(kSeed)};
  const std::vector<std::string> texts_ = Texts();
  int64_t read_ = 0;
  int64_t refused_ = 0;
  int64_t resolved_ = 0;
};

TEST_F(ConfigFuzzTest, ChangedTextsAreReadOrRefusedByName) {
  ASSERT_GT(texts_.size(), 800U);
  const uint64_t rounds = FuzzRounds(kRounds);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    const std::string text = NewText();
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

}  // namespace
}  // namespace rope::kernels
