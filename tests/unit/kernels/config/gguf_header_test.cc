#include "kernels/config/gguf_header.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/support/gguf_writer.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using ::rope::testing::BytesOf;
using ::rope::testing::GgufString;
using ::rope::testing::GgufWriter;

absl::StatusOr<GgufHeader> Read(const std::string& bytes) {
  return ReadGgufHeader(MemorySource(bytes));
}

void ExpectInvalid(const std::string& bytes, const std::string& message) {
  EXPECT_THAT(Read(bytes), IsInvalid(message));
}

// A source that counts the bytes that are read. Only its first bytes have a content.
class CountingSource final : public ByteSource {
 public:
  CountingSource(std::string start, uint64_t size) : start_(std::move(start)), size_(size) {}

  uint64_t size() const override { return size_; }
  absl::Status Read(uint64_t offset, absl::Span<char> bytes) const override {
    read_ += bytes.size();
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = offset + i < start_.size() ? start_[offset + i] : '\0';
    }
    return absl::OkStatus();
  }
  uint64_t read() const { return read_; }

 private:
  std::string start_;
  uint64_t size_;
  mutable uint64_t read_ = 0;
};

TEST(GgufHeaderTest, ValuesOfEveryTypeAreRead) {
  const std::string bytes = GgufWriter()
                                .U16(".block_count", 7)
                                .U64(".context_length", std::numeric_limits<uint64_t>::max())
                                .F32(".rope.freq_base", 0.1f)
                                .Bool(".rope.scaling.finetuned", true)
                                .U32List(".rope.dimension_sections", {16, 24, 24, 0})
                                .BoolList(".attention.sliding_window_pattern", "TF")
                                .Bytes();
  ASSERT_OK(header, Read(bytes));
  EXPECT_EQ(header->values.at("general.architecture").text, "llama");
  EXPECT_THAT(header->values.at("llama.block_count").integers, ElementsAre(7));
  EXPECT_THAT(header->values.at("llama.context_length").integers,
              ElementsAre(std::numeric_limits<int64_t>::max()));
  EXPECT_THAT(header->values.at("llama.rope.freq_base").numbers, ElementsAre(0.1));
  EXPECT_THAT(header->values.at("llama.rope.dimension_sections").integers,
              ElementsAre(16, 24, 24, 0));
  EXPECT_EQ(header->values.at("llama.rope.scaling.finetuned").kind, GgufValue::Kind::kBool);
  EXPECT_THAT(header->values.at("llama.attention.sliding_window_pattern").integers,
              ElementsAre(1, 0));
}

TEST(GgufHeaderTest, Version2IsReadLikeVersion3) {
  EXPECT_THAT(Read(GgufWriter().Bytes(2)), IsOk());
  EXPECT_THAT(Read(GgufWriter().Bytes(3)), IsOk());
}

TEST(GgufHeaderTest, OtherVersionsAreRefused) {
  ExpectInvalid(GgufWriter().Bytes(1), "gguf: got 1 in the version, want 2 or 3");
  ExpectInvalid(GgufWriter().Bytes(4), "gguf: got 4 in the version, want 2 or 3");
  ExpectInvalid(GgufWriter().Bytes(0x03000000),
                "gguf: got the bytes of a big-endian file in the version, want a little-endian");
}

TEST(GgufHeaderTest, AnotherMagicIsRefused) {
  ExpectInvalid("ggjt\1\0\0\0", "gguf: got \"ggjt\" in the magic, want \"GGUF\"");
  ExpectInvalid("GG", "gguf: got 2 bytes, want the magic: 4 bytes at byte 0");
}

TEST(GgufHeaderTest, TokenizerIsSkippedWithoutBeingStored) {
  const std::string bytes = GgufWriter()
                                .TextList("tokenizer.ggml.tokens", 1000, "token")
                                .U32List("tokenizer.ggml.token_type", {1, 2, 3})
                                .U32(".block_count", 5)
                                .Bytes();
  ASSERT_OK(header, Read(bytes));
  EXPECT_EQ(header->values.size(), 2u);
  EXPECT_TRUE(header->values.contains("llama.block_count"));
}

TEST(GgufHeaderTest, RopeTensorsAreReadAndNoOthers) {
  const std::string bytes = GgufWriter()
                                .TensorOf("token_embd.weight", {4, 2}, 0, std::string(32, 'x'))
                                .Tensor("rope_freqs.weight", {1, 2.5})
                                .Tensor("rope_factors_long.weight", {8})
                                .Bytes();
  ASSERT_OK(header, Read(bytes));
  EXPECT_EQ(header->tensors.size(), 2u);
  EXPECT_THAT(header->tensors.at("rope_freqs.weight"), ElementsAre(1, 2.5));
  EXPECT_THAT(header->tensors.at("rope_factors_long.weight"), ElementsAre(8));
}

TEST(GgufHeaderTest, AlignmentOfTheFileDecidesWhereTheDataStarts) {
  std::string bytes =
      GgufWriter().U32("general.alignment", 128).Tensor("rope_freqs.weight", {4}).Header();
  bytes.resize((bytes.size() + 127) / 128 * 128);
  ASSERT_OK(header, Read(bytes + BytesOf(4.0f)));
  EXPECT_THAT(header->tensors.at("rope_freqs.weight"), ElementsAre(4));
  ExpectInvalid(GgufWriter().U32("general.alignment", 24).Bytes(),
                "general.alignment: got 24, want a power of two");
  ExpectInvalid(GgufWriter().Text("general.alignment", "32").Bytes(),
                "general.alignment: got another type, want a power of two");
}

TEST(GgufHeaderTest, FileOfHundredGigabytesIsReadInABlock) {
  const std::string bytes = GgufWriter().Tensor("rope_freqs.weight", {1, 2}).Bytes();
  const CountingSource source(bytes, uint64_t{100} << 30);
  ASSERT_THAT(ReadGgufHeader(source), IsOk());
  EXPECT_LE(source.read(), (64u << 10) + 8);
}

TEST(GgufHeaderTest, EveryTruncationSaysWhatIsMissing) {
  const std::string bytes = GgufWriter()
                                .TextList("tokenizer.ggml.tokens", 3, "token")
                                .U32(".block_count", 5)
                                .Tensor("rope_freqs.weight", {1, 2})
                                .Bytes();
  ASSERT_THAT(Read(bytes), IsOk());
  for (size_t size = 0; size < bytes.size(); ++size) {
    ExpectInvalid(bytes.substr(0, size),
                  std::string("gguf: got ") + std::to_string(size) + " bytes, want ");
  }
  ExpectInvalid(bytes.substr(0, 26), "want metadata key 1 of 3: 8 bytes at byte 24");
  ExpectInvalid(bytes.substr(0, bytes.size() - 1), "want rope_freqs.weight: 8 bytes at byte ");
}

TEST(GgufHeaderTest, CountsAreBounded) {
  const std::string start = std::string("GGUF") + BytesOf(uint32_t{3});
  ExpectInvalid(start + BytesOf(~uint64_t{0}) + BytesOf(uint64_t{0}),
                "in the count of tensors, want at most 1048576");
  ExpectInvalid(start + BytesOf(uint64_t{0}) + BytesOf(~uint64_t{0}),
                "in the count of metadata keys, want at most 65536");
}

TEST(GgufHeaderTest, LengthsThatOverflowAreRefused) {
  const auto list = [](uint32_t type, uint64_t count) { return BytesOf(type) + BytesOf(count); };
  ExpectInvalid(GgufWriter().Add("a", 8, BytesOf(~uint64_t{0})).Bytes(),
                "want metadata key 2 of 2");
  ExpectInvalid(GgufWriter().Add("a", 9, list(10, uint64_t{1} << 61)).Bytes(),
                "got an array of 2305843009213693952 in metadata key 2 of 2");
  ExpectInvalid(GgufWriter().Add("a", 9, list(8, ~uint64_t{0})).Bytes(),
                "want metadata key 2 of 2");
  ExpectInvalid(GgufWriter().Add(".block_count", 9, list(4, ~uint64_t{0})).Bytes(),
                "got a list of 18446744073709551615 values, want at most 65536 numbers");
}

TEST(GgufHeaderTest, TypesThatTheFormatLacksAreRefused) {
  ExpectInvalid(GgufWriter().Add("a", 13, "").Bytes(), "got value type 13 in metadata key 2 of 2");
  ExpectInvalid(GgufWriter().Add("a", 9, BytesOf(uint32_t{9}) + BytesOf(uint64_t{1})).Bytes(),
                "got an array of arrays in metadata key 2 of 2");
}

TEST(GgufHeaderTest, KeyOrTensorThatOccursTwiceIsRefused) {
  ExpectInvalid(GgufWriter().U32(".block_count", 1).U32(".block_count", 1).Bytes(),
                "\"llama.block_count\": got it twice, want it once");
  ExpectInvalid(
      GgufWriter().Tensor("rope_freqs.weight", {1}).Tensor("rope_freqs.weight", {1}).Bytes(),
      "rope_freqs.weight: got it twice, want it once");
}

TEST(GgufHeaderTest, RopeTensorOfAnotherTypeOrShapeIsRefused) {
  const auto with = [](const std::vector<uint64_t>& shape, uint32_t type) {
    return GgufWriter().TensorOf("rope_freqs.weight", shape, type, std::string(64, '\0')).Bytes();
  };
  ExpectInvalid(with({4}, 1), "rope_freqs.weight: got tensor type 1, want 0, float32");
  ExpectInvalid(with({4, 2}, 0), "rope_freqs.weight: got shape [4, 2, 1, 1], want one dimension");
  ExpectInvalid(with({uint64_t{1} << 62}, 0), "want one dimension of 1 to 32768");
  ExpectInvalid(with({1, 1, 1, 1, 1}, 0), "got 5 dimensions in tensor info 1 of 1, want at most 4");
}

TEST(GgufHeaderTest, OffsetOutsideTheFileIsRefused) {
  const auto at = [](uint64_t offset) {
    const std::string info = GgufString("rope_freqs.weight") + BytesOf(uint32_t{1}) +
                             BytesOf(uint64_t{1}) + BytesOf(uint32_t{0}) + BytesOf(offset);
    return std::string("GGUF") + BytesOf(uint32_t{3}) + BytesOf(uint64_t{1}) +
           BytesOf(uint64_t{0}) + info + std::string(64, '\0');
  };
  EXPECT_THAT(Read(at(0)), IsOk());
  ExpectInvalid(at(~uint64_t{0} - 31), "want rope_freqs.weight: 4 bytes at byte ");
  ExpectInvalid(at(8), "rope_freqs.weight: got offset 8, want a multiple of 32");
}

TEST(GgufHeaderTest, ValuesToKeepAreBounded) {
  GgufWriter writer;
  const std::vector<uint32_t> list(65536);
  for (int i = 0; i < 3; ++i) {
    writer.U32List(std::string("model") + std::to_string(i) + ".attention.head_count", list);
  }
  ExpectInvalid(writer.Bytes(), "got more values to keep in metadata key ");
}

TEST(ShowTextTest, BytesOfAnyKindBecomeShortPrintableText) {
  EXPECT_EQ(ShowText("a\x01\xff"), "\"a??\"");
  EXPECT_EQ(ShowText(std::string(100, 'a')), std::string(1, '"').append(48, 'a') + "...\"");
}

}  // namespace
}  // namespace rope::kernels
