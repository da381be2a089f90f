#include "tests/support/http2_frames.h"

#include <optional>

namespace rope::testing {
namespace {

constexpr uint32_t kStreamMask = 0x7fffffff;

char Byte(uint32_t value) {
  return static_cast<char>(value & 0xff);
}

uint32_t Unsigned(char byte) {
  return static_cast<uint8_t>(byte);
}

// Reads a header block from its front. On unreadable input it returns nullopt, and so do all later
// calls.
class BlockReader {
 public:
  explicit BlockReader(std::string_view block) : left_(block) {}

  bool at_end() const { return left_.empty(); }
  uint32_t first_byte() const { return Unsigned(left_.front()); }

  // An integer of which the first byte holds `bits` bits.
  std::optional<uint32_t> Integer(int bits) {
    if (left_.empty()) return std::nullopt;
    const uint32_t most = (1U << bits) - 1;
    uint32_t value = TakeByte() & most;
    if (value < most) return value;
    for (int shift = 0; shift < 28; shift += 7) {
      if (left_.empty()) return std::nullopt;
      const uint32_t byte = TakeByte();
      value += (byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return std::nullopt;
  }

  std::optional<std::string> String() {
    if (left_.empty()) return std::nullopt;
    const bool huffman = (first_byte() & 0x80) != 0;
    const std::optional<uint32_t> length = Integer(7);
    if (!length.has_value() || *length > left_.size()) return std::nullopt;
    std::string text(left_.substr(0, *length));
    left_.remove_prefix(*length);
    return huffman ? std::string() : text;
  }

  // A literal field; `bits` is the width of the index of its name.
  std::optional<std::pair<std::string, std::string>> Literal(int index_bits) {
    const std::optional<uint32_t> index = Integer(index_bits);
    if (!index.has_value()) return std::nullopt;
    std::optional<std::string> name = *index == 0 ? String() : std::string();
    if (!name.has_value()) return std::nullopt;
    std::optional<std::string> value = String();
    if (!value.has_value()) return std::nullopt;
    return std::pair(*std::move(name), *std::move(value));
  }

 private:
  uint32_t TakeByte() {
    const uint32_t byte = first_byte();
    left_.remove_prefix(1);
    return byte;
  }

  std::string_view left_;
};

}  // namespace

std::string BigEndian32(uint32_t value) {
  return {Byte(value >> 24), Byte(value >> 16), Byte(value >> 8), Byte(value)};
}

uint32_t ReadBigEndian32(const char* bytes) {
  return Unsigned(bytes[0]) << 24 | Unsigned(bytes[1]) << 16 | Unsigned(bytes[2]) << 8 |
         Unsigned(bytes[3]);
}

std::string EncodeFrameHeader(const FrameHeader& header) {
  std::string bytes = BigEndian32(header.length).substr(1);
  bytes += Byte(static_cast<uint32_t>(header.type));
  bytes += Byte(header.flags);
  bytes += BigEndian32(header.stream);
  return bytes;
}

FrameHeader DecodeFrameHeader(const char* bytes) {
  return {.length = ReadBigEndian32(bytes) >> 8,
          .type = static_cast<FrameType>(Unsigned(bytes[3])),
          .flags = static_cast<uint8_t>(bytes[4]),
          .stream = ReadBigEndian32(bytes + 5) & kStreamMask};
}

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, std::string_view payload) {
  return EncodeFrameHeader({static_cast<uint32_t>(payload.size()), type, flags, stream})
      .append(payload);
}

std::string EncodeSettings(const Settings& settings) {
  std::string payload;
  for (const auto& [id, value] : settings) {
    payload += {Byte(id >> 8), Byte(id)};
    payload += BigEndian32(value);
  }
  return payload;
}

Settings DecodeSettings(std::string_view payload) {
  Settings settings;
  for (; payload.size() >= 6; payload.remove_prefix(6)) {
    const auto id = static_cast<uint16_t>(Unsigned(payload[0]) << 8 | Unsigned(payload[1]));
    settings.emplace_back(id, ReadBigEndian32(payload.data() + 2));
  }
  return settings;
}

std::string EncodeHeaders(const HeaderFields& fields) {
  std::string block;
  for (const auto& [name, value] : fields) {
    block += '\0';  // literal, not indexed, with a name
    block += Byte(static_cast<uint32_t>(name.size()));
    block += name;
    block += Byte(static_cast<uint32_t>(value.size()));
    block += value;
  }
  return block;
}

HeaderFields DecodeHeaders(std::string_view block) {
  HeaderFields fields;
  BlockReader reader(block);
  while (!reader.at_end()) {
    const uint32_t first = reader.first_byte();
    if ((first & 0x80) != 0) {  // an indexed field of the static table
      if (!reader.Integer(7).has_value()) break;
    } else if ((first & 0xe0) == 0x20) {  // a size update of the dynamic table
      if (!reader.Integer(5).has_value()) break;
    } else {
      auto field = reader.Literal((first & 0x40) != 0 ? 6 : 4);
      if (!field.has_value()) break;
      fields.push_back(*std::move(field));
    }
  }
  return fields;
}

std::string GrpcPrefix(uint32_t bytes, bool compressed) {
  std::string prefix(1, compressed ? '\1' : '\0');
  prefix += BigEndian32(bytes);
  return prefix;
}

}  // namespace rope::testing
