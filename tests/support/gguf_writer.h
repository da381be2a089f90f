// GgufWriter: writes a small GGUF file, legal or not, into memory.
//
// Threading:  Confined to one thread.
#ifndef ROPE_TESTS_SUPPORT_GGUF_WRITER_H_
#define ROPE_TESTS_SUPPORT_GGUF_WRITER_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rope::testing {

// The bytes of a number in memory, which the format calls little-endian.
template <typename T>
std::string BytesOf(T number) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &number, sizeof(T));
  return bytes;
}

inline std::string GgufString(std::string_view text) {
  return BytesOf(uint64_t{text.size()}) + std::string(text);
}

class GgufWriter {
 public:
  explicit GgufWriter(std::string architecture = "llama") : architecture_(std::move(architecture)) {
    if (!architecture_.empty()) Text("general.architecture", architecture_);
  }

  // Keys that start with a dot get the architecture before them.
  GgufWriter& U32(std::string_view key, uint32_t value) { return Add(key, 4, BytesOf(value)); }
  GgufWriter& U16(std::string_view key, uint16_t value) { return Add(key, 2, BytesOf(value)); }
  GgufWriter& U64(std::string_view key, uint64_t value) { return Add(key, 10, BytesOf(value)); }
  GgufWriter& F32(std::string_view key, float value) { return Add(key, 6, BytesOf(value)); }
  GgufWriter& Bool(std::string_view key, bool value) { return Add(key, 7, BytesOf(value)); }
  GgufWriter& Text(std::string_view key, std::string_view value) {
    return Add(key, 8, GgufString(value));
  }
  GgufWriter& U32List(std::string_view key, const std::vector<uint32_t>& values) {
    std::string bytes;
    for (const uint32_t value : values) bytes += BytesOf(value);
    return Add(key, 9, BytesOf(uint32_t{4}) + BytesOf(uint64_t{values.size()}) + bytes);
  }
  // One letter per element, T for true.
  GgufWriter& BoolList(std::string_view key, std::string_view letters) {
    std::string bytes;
    for (const char letter : letters) bytes += BytesOf(letter == 'T');
    return Add(key, 9, BytesOf(uint32_t{7}) + BytesOf(uint64_t{letters.size()}) + bytes);
  }
  GgufWriter& TextList(std::string_view key, size_t count, std::string_view text) {
    std::string bytes;
    for (size_t i = 0; i < count; ++i) bytes += GgufString(text);
    return Add(key, 9, BytesOf(uint32_t{8}) + BytesOf(uint64_t{count}) + bytes);
  }
  // A key with a value of any type and bytes.
  GgufWriter& Add(std::string_view key, uint32_t type, const std::string& bytes) {
    const std::string name =
        key.starts_with('.') ? architecture_ + std::string(key) : std::string(key);
    pairs_ += GgufString(name) + BytesOf(type) + bytes;
    ++keys_;
    return *this;
  }
  GgufWriter& Tensor(std::string_view name, const std::vector<float>& numbers) {
    std::string bytes;
    for (const float number : numbers) bytes += BytesOf(number);
    return TensorOf(name, {numbers.size()}, 0, bytes);
  }
  // A tensor of any shape and type. Each starts at a multiple of 32 bytes.
  GgufWriter& TensorOf(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type,
                       const std::string& bytes) {
    data_.resize((data_.size() + 31) / 32 * 32);
    infos_ += GgufString(name) + BytesOf(static_cast<uint32_t>(shape.size()));
    for (const uint64_t extent : shape) infos_ += BytesOf(extent);
    infos_ += BytesOf(type) + BytesOf(uint64_t{data_.size()});
    data_ += bytes;
    ++tensors_;
    return *this;
  }

  // Everything up to the data.
  std::string Header(uint32_t version = 3) const {
    return std::string("GGUF") + BytesOf(version) + BytesOf(tensors_) + BytesOf(keys_) + pairs_ +
           infos_;
  }
  std::string Bytes(uint32_t version = 3) const {
    std::string bytes = Header(version);
    if (tensors_ > 0) bytes.resize((bytes.size() + 31) / 32 * 32);
    return bytes + data_;
  }

 private:
  std::string architecture_;
  uint64_t keys_ = 0;
  uint64_t tensors_ = 0;
  std::string pairs_;
  std::string infos_;
  std::string data_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_GGUF_WRITER_H_
