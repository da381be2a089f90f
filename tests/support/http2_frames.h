// Encodes and decodes HTTP/2 frames and header blocks (RFC 9113, RFC 7541) without a library, for
// clients that keep to the protocol and clients that break it.
//
// Threading:  Functions only.
// Limits:     Headers are sent as literals without Huffman coding and without a dynamic table. They
//             are read from a peer that was told to keep no dynamic table
//             (SETTINGS_HEADER_TABLE_SIZE = 0); Huffman-coded strings and values of the static
//             table read as empty.
#ifndef ROPE_TESTS_SUPPORT_HTTP2_FRAMES_H_
#define ROPE_TESTS_SUPPORT_HTTP2_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rope::testing {

enum class FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kResetStream = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};

inline constexpr uint8_t kNoFlags = 0;
inline constexpr uint8_t kEndStream = 0x1;  // of DATA and HEADERS
inline constexpr uint8_t kAck = 0x1;        // of SETTINGS and PING
inline constexpr uint8_t kEndHeaders = 0x4;
inline constexpr uint8_t kPadded = 0x8;
inline constexpr uint8_t kPriorityFlag = 0x20;

inline constexpr uint16_t kSettingsHeaderTableSize = 1;
inline constexpr uint16_t kSettingsInitialWindowSize = 4;
inline constexpr uint16_t kSettingsMaxFrameSize = 5;

inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
inline constexpr size_t kFrameHeaderBytes = 9;
inline constexpr uint32_t kDefaultWindow = 65535;
inline constexpr uint32_t kDefaultMaxFrameBytes = 16384;

struct FrameHeader {
  uint32_t length = 0;
  FrameType type = FrameType::kData;  // may hold any number
  uint8_t flags = 0;
  uint32_t stream = 0;
};

// The 9 bytes of a frame header.
std::string EncodeFrameHeader(const FrameHeader& header);
// REQUIRES: kFrameHeaderBytes at `bytes`.
FrameHeader DecodeFrameHeader(const char* bytes);
// A whole frame.
std::string Frame(FrameType type, uint8_t flags, uint32_t stream, std::string_view payload);

std::string BigEndian32(uint32_t value);
// REQUIRES: 4 bytes at `bytes`.
uint32_t ReadBigEndian32(const char* bytes);

using Settings = std::vector<std::pair<uint16_t, uint32_t>>;
std::string EncodeSettings(const Settings& settings);
// Splits bytes into frames; an incomplete frame at the end is left out.
Settings DecodeSettings(std::string_view payload);

using HeaderFields = std::vector<std::pair<std::string, std::string>>;
// A header block. REQUIRES: names and values of fewer than 127 bytes.
std::string EncodeHeaders(const HeaderFields& fields);
// Reads fields up to the end, or up to the first field that cannot be read.
HeaderFields DecodeHeaders(std::string_view block);

// gRPC's prefix of a message of `bytes` bytes.
std::string GrpcPrefix(uint32_t bytes, bool compressed = false);

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_HTTP2_FRAMES_H_
