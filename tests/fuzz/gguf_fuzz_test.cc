// Random and damaged GGUF files. The reader must accept each file, and each of its layers, or
// refuse it with a status that says what it got and wants; it must not hold more memory than its
// limits, read past the file, or loop.
//
// ROPE_FUZZ_ROUNDS=N sets the number of files for each test, ROPE_FUZZ_SEED=N the seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/config/byte_source.h"
#include "kernels/config/config_json.h"
#include "kernels/config/gguf_header.h"
#include "kernels/config/model_file.h"
#include "kernels/frequencies/frequencies.h"
#include "tests/fuzz/fuzz_random.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using ::rope::testing::BytesOf;
using ::rope::testing::FuzzRandom;
using ::rope::testing::FuzzRounds;
using ::rope::testing::FuzzSeed;
using ::rope::testing::GgufString;
using ::rope::testing::GgufWriter;

constexpr uint64_t kRounds = 20000;
constexpr uint64_t kSeed = 20260122;
// Only embeddings up to this size have their numbers checked.
constexpr int64_t kRotaryDimMax = 512;

constexpr const char* kArchitectures[] = {
    "llama",  "gemma3",     "gemma4", "gpt-oss",   "phi3", "deepseek2", "mistral3", "qwen2vl",
    "step35", "hunyuan_vl", "lfm2",   "qwen3next", "glm4", "mamba",     "grok",     "unknown"};
constexpr const char* kIntegers[] = {".attention.head_count",
                                     ".attention.head_count_kv",
                                     ".attention.key_length",
                                     ".attention.key_length_mla",
                                     ".attention.key_length_swa",
                                     ".attention.sliding_window",
                                     ".block_count",
                                     ".context_length",
                                     ".embedding_length",
                                     ".full_attention_interval",
                                     ".nextn_predict_layers",
                                     ".rope.dimension_count",
                                     ".rope.dimension_count_swa",
                                     ".rope.scaling.original_context_length",
                                     ".attention.sliding_window_pattern",
                                     "general.alignment",
                                     "split.count",
                                     "split.no"};
constexpr const char* kNumbers[] = {".rope.freq_base",
                                    ".rope.freq_base_swa",
                                    ".rope.scale_linear",
                                    ".rope.scaling.alpha",
                                    ".rope.scaling.attn_factor",
                                    ".rope.scaling.factor",
                                    ".rope.scaling.yarn_attn_factor",
                                    ".rope.scaling.yarn_beta_fast",
                                    ".rope.scaling.yarn_beta_slow",
                                    ".rope.scaling.yarn_ext_factor",
                                    ".rope.scaling.yarn_log_multiplier"};
constexpr const char* kLists[] = {".attention.head_count_kv", ".attention.recurrent_layers",
                                  ".attention.rope_pattern", ".attention.sliding_window_pattern",
                                  ".rope.dimension_sections"};

// A view of bytes that fails the test if a read leaves them.
class CheckedSource final : public ByteSource {
 public:
  explicit CheckedSource(const std::string& bytes) : bytes_(bytes) {}

  uint64_t size() const override { return bytes_.size(); }
  absl::Status Read(uint64_t offset, absl::Span<char> bytes) const override {
    read_ += bytes.size();
    if (offset > bytes_.size() || bytes.size() > bytes_.size() - offset) {
      ADD_FAILURE() << "read of " << bytes.size() << " bytes at " << offset;
      return absl::InternalError("read past the end");
    }
    return MemorySource(bytes_).Read(offset, bytes);
  }
  uint64_t read() const { return read_; }

 private:
  const std::string& bytes_;
  mutable uint64_t read_ = 0;
};

class GgufFuzzTest : public ::testing::Test {
 protected:
  template <size_t size>
  std::string_view OneOf(const char* const (&names)[size]) {
    return names[random_.Below(size)];
  }

  uint32_t Small() {
    return static_cast<uint32_t>(random_.OneIn(16) ? random_.EdgeInteger()
                                                   : static_cast<int64_t>(1 + random_.Below(8)));
  }
  float Number() {
    if (random_.OneIn(16)) return static_cast<float>(random_.EdgeInteger()) - 1;
    return random_.OneOf({1.0f, 1.0f, 4.0f, 32.0f, 10000.0f});
  }

  void AddField(GgufWriter& writer) {
    switch (random_.Below(6)) {
      case 0:
      case 1:
        writer.U32(OneOf(kIntegers), random_.OneIn(3) ? 4 * Small() : Small());
        return;
      case 2:
        writer.F32(OneOf(kNumbers), Number());
        return;
      case 3: {
        std::vector<uint32_t> list(random_.Below(9));
        for (uint32_t& number : list) number = random_.OneIn(2) ? 0 : Small();
        writer.U32List(OneOf(kLists), list);
        return;
      }
      case 4:
        writer.Text(".rope.scaling.type",
                    random_.OneOf<std::string_view>({"none", "linear", "yarn", "longrope", "x"}));
        return;
      default:
        writer.Add(random_.OneIn(2) ? OneOf(kNumbers) : "tokenizer.x",
                   static_cast<uint32_t>(random_.Below(14)),
                   random_.RandomBytes(random_.Below(24)));
    }
  }

  void AddTensor(GgufWriter& writer, std::string_view name) {
    std::vector<float> numbers(1 + random_.Below(4));
    for (float& number : numbers) number = Number();
    writer.Tensor(name, numbers);
  }

  // Up to `fields` random fields; each rope tensor in one of `rarity` files.
  std::string NewFile(uint64_t fields, uint64_t rarity) {
    GgufWriter writer{std::string(OneOf(kArchitectures))};
    if (!random_.OneIn(8)) writer.U32(".attention.key_length", 4);
    if (!random_.OneIn(8)) writer.F32(".rope.freq_base", 10000);
    if (!random_.OneIn(4)) writer.U32(".block_count", 4);
    for (uint64_t i = random_.Below(fields + 1); i > 0; --i) AddField(writer);
    if (random_.OneIn(rarity)) AddTensor(writer, kRopeFreqs);
    if (random_.OneIn(rarity)) AddTensor(writer, kRopeFactorsLong);
    if (random_.OneIn(rarity)) AddTensor(writer, kRopeFactorsShort);
    return writer.Bytes(random_.OneIn(16) ? 2 : 3);
  }

  void CheckLayer(const ModelConfig& model, const LayerChoice& choice) {
    const auto layer = model.Layer(choice);
    if (!layer.ok()) return;
    const auto rope = Resolve(layer->config);
    if (!rope.ok()) return ExpectSaysWhy(rope.status());
    ++resolved_;
    if ((*rope)->rotary_dim() > kRotaryDimMax) return;
    EXPECT_TRUE(std::isfinite((*rope)->attention_factor()));
    for (const InverseFrequency f : (*rope)->Evaluate(int64_t{1} << 20).inv_freq) {
      EXPECT_TRUE(std::isfinite(f) && f >= 0);
    }
  }

  void Check(const std::string& bytes) {
    const CheckedSource source(bytes);
    const auto header = ReadGgufHeader(source);
    if (header.ok()) {
      EXPECT_LE(header->tensors.size(), 3u);
    }
    const auto model = ReadModel(source);
    EXPECT_LE(source.read(), 4 * bytes.size() + 4096);
    ++(model.ok() ? read_ : refused_);
    if (!model.ok()) return ExpectSaysWhy(model.status());
    CheckLayer(*model, {});
    CheckLayer(*model, {.layer = static_cast<int64_t>(random_.Below(8))});
    for (const std::string& type : model->layer_types()) CheckLayer(*model, {.layer_type = type});
  }

  static void ExpectSaysWhy(const absl::Status& status) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument, ContainsRegex("^.+: got .*, want ")));
  }

  template <typename FileOf>
  void CheckMany(const FileOf& file_of) {
    const uint64_t rounds = FuzzRounds(kRounds);
    for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
      const std::string bytes = file_of();
      SCOPED_TRACE(round);
      Check(bytes);
    }
    std::printf("measured: %lld files read, %lld refused; %lld embeddings resolved\n",
                static_cast<long long>(read_), static_cast<long long>(refused_),
                static_cast<long long>(resolved_));
    EXPECT_GT(read_, static_cast<int64_t>(rounds / 20));
    EXPECT_GT(refused_, static_cast<int64_t>(rounds / 20));
    EXPECT_GT(resolved_, static_cast<int64_t>(rounds / 20));
  }

  FuzzRandom random_{FuzzSeed(kSeed)};
  int64_t read_ = 0;
  int64_t refused_ = 0;
  int64_t resolved_ = 0;
};

TEST_F(GgufFuzzTest, FilesOfAnyFieldsAreReadOrRefusedByName) {
  CheckMany([this] { return NewFile(5, 4); });
}

TEST_F(GgufFuzzTest, DamagedFilesAreReadOrRefusedByName) {
  CheckMany([this] {
    std::string bytes = NewFile(1, 16);
    if (random_.OneIn(2)) {
      random_.Damage(bytes);
      if (!random_.OneIn(8))
        bytes.replace(0, std::min(bytes.size(), kGgufMagic.size()), kGgufMagic);
    } else {  // one byte after the counts
      bytes[24 + random_.Below(bytes.size() - 24)] = static_cast<char>(random_.Next());
    }
    return bytes;
  });
}

// Counts and lengths of any size, with few bytes after them: nothing may be allocated for them.
TEST_F(GgufFuzzTest, LargeCountsInShortFilesAreRefused) {
  const uint64_t rounds = FuzzRounds(kRounds);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    const auto large = [this] { return static_cast<uint64_t>(random_.Integer()) | 1u << 20; };
    const std::string start = std::string("GGUF") + BytesOf(uint32_t{3}) + BytesOf(uint64_t{1});
    const std::string list =
        BytesOf(uint32_t{9}) + BytesOf(static_cast<uint32_t>(random_.Below(13))) + BytesOf(large());
    const std::string bytes = random_.OneOf<std::string>(
        {start + BytesOf(large()), start + BytesOf(uint64_t{1}) + BytesOf(large()),
         start + BytesOf(uint64_t{1}) + GgufString("a") + BytesOf(uint32_t{8}) + BytesOf(large()),
         start + BytesOf(uint64_t{1}) + GgufString("a") + list,
         start + BytesOf(uint64_t{1}) + GgufString("a.block_count") + list,
         start + BytesOf(uint64_t{0}) + GgufString(kRopeFreqs) + BytesOf(uint32_t{1}) +
             BytesOf(large()) + BytesOf(uint32_t{0}) + BytesOf(large())});
    const std::string file = bytes + random_.RandomBytes(random_.Below(64));
    SCOPED_TRACE(round);
    const CheckedSource source(file);
    const auto model = ReadModel(source);
    ASSERT_FALSE(model.ok());
    ExpectSaysWhy(model.status());
    EXPECT_LE(source.read(), 2 * file.size() + 64);
  }
}

}  // namespace
}  // namespace rope::kernels
