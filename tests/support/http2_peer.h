// A gRPC client that speaks HTTP/2 by hand over a socket, without the gRPC library. It can announce
// messages that it does not send, leave answers unread (a window of 0), and send arbitrary bytes.
//
// It respects the server's windows and answers SETTINGS and PING. It grants no window by itself:
// the server can send only as much as tests grant with GrantWindow.
//
// Threading:  Confined to one thread.
// Ownership:  Closes its connection when it goes.
// Errors:     None. A lost connection and an ended stream are states, because tests ask for them.
//             No function waits longer than its bound.
// Limits:     Bytes of answers are counted and not kept. Headers are sent as literals, without
//             Huffman coding and a dynamic table, and read from a peer that was told to keep none
//             (SETTINGS_HEADER_TABLE_SIZE = 0); Huffman-coded strings and values of the static
//             table read as empty.
#ifndef ROPE_TESTS_SUPPORT_HTTP2_PEER_H_
#define ROPE_TESTS_SUPPORT_HTTP2_PEER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/ipc/file_descriptor.h"

namespace rope::testing {

// --- frames and header blocks (RFC 9113, RFC 7541), without a library ---

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

// --- a client ---

// A non-blocking socket that is connected to "127.0.0.1:PORT".
proto::FileDescriptor ConnectTcp(const std::string& address);

class Http2Peer {
 public:
  using Duration = std::chrono::milliseconds;
  static constexpr Duration kPatience = std::chrono::seconds(10);
  static constexpr std::string_view kRotate = "/rope.v1.RopeService/Rotate";
  static constexpr std::string_view kRotateStream = "/rope.v1.RopeService/RotateStream";

  // The state of one call.
  struct Stream {
    enum class End { kNone, kTrailers, kReset };

    bool began = false;        // the answer's headers have arrived
    int64_t answer_bytes = 0;  // received in DATA frames
    End end = End::kNone;
    int code = -1;            // grpc-status of the trailers
    std::string message;      // grpc-message, still percent-encoded
    std::string pushback;     // grpc-retry-pushback-ms
    uint32_t reset_code = 0;  // of the RST_STREAM
    int64_t credit = 0;       // bytes that the server accepts
    bool compressed = false;  // its messages are sent as compressed ones

    bool ended() const { return end != End::kNone; }
    // True while the server still has a part of the answer to send.
    bool held() const { return began && !ended(); }
  };

  // Sends the preface and SETTINGS. `window`: bytes of each answer that the server may send before
  // the test grants more.
  explicit Http2Peer(proto::FileDescriptor connection, uint32_t window = kDefaultWindow);

  // --- calls --- Starts a call and returns its stream. `encoding`: the grpc-encoding of its
  // messages, which the test compresses itself; empty: none.
  uint32_t StartCall(std::string_view path = kRotate, std::string_view encoding = "");
  // Announces `message` and sends its first `bytes`, as far as the server's windows allow. Stops
  // when the call is over, or when no window was granted for `patience`. Returns how many bytes
  // were sent. `last`: ends the stream once all of them are sent.
  int64_t SendPart(uint32_t stream, std::string_view message, size_t bytes, bool last,
                   Duration patience = kPatience);
  // Sends bytes of messages whose prefixes they contain; else as SendPart.
  int64_t SendData(uint32_t stream, std::string_view bytes, bool last, Duration patience);
  // Sends a whole unary call and does not wait for its answer.
  uint32_t Call(std::string_view message);
  // Lets the server send `bytes` more on a stream, or (stream 0) on the whole connection.
  void GrantWindow(uint32_t stream, uint32_t bytes);
  void Reset(uint32_t stream);

  // --- bytes --- Sends arbitrary bytes. False: the connection is lost, or the server has read
  // nothing for `patience`. The rest is then sent before anything else.
  bool Send(std::string_view bytes, Duration patience = kPatience);

  // --- answers --- Reads until `done()`. False: not within `bound`, or the connection was lost
  // first.
  bool Await(const std::function<bool()>& done, Duration bound = kPatience);
  // Reads until the call has ended. False: not within `bound`. A lost connection ends all calls.
  bool AwaitEnd(uint32_t stream, Duration bound = kPatience);
  // True when the server answers a PING.
  bool AwaitPong(Duration bound = kPatience);
  // Stops reading for good.
  void StopReading() { reads_ = false; }

  const Stream& stream(uint32_t id) { return streams_[id]; }
  const std::map<uint32_t, Stream>& streams() const { return streams_; }
  bool lost() const { return lost_; }
  // True when the call has ended or the connection is lost.
  bool IsOver(uint32_t stream) { return lost_ || streams_[stream].ended(); }

 private:
  using Clock = std::chrono::steady_clock;

  // Sends all queued bytes. False: the server has read nothing for `patience`.
  bool Flush(Duration patience);
  // Waits for the socket until `deadline` and reads what has arrived. False: the deadline has
  // passed.
  bool Wait(bool to_write, Clock::time_point deadline);
  void Read();
  void TakeFrames();
  void Take(const FrameHeader& header, std::string_view payload);
  void TakeHeaders(const FrameHeader& header, std::string_view payload);
  void TakeSettings(std::string_view payload);
  void EndBlock();
  int64_t Room(uint32_t stream);

  proto::FileDescriptor connection_;
  std::string out_;  // queued to be sent
  std::string in_;   // received, not yet a whole frame
  std::map<uint32_t, Stream> streams_;
  uint32_t next_stream_ = 1;
  // Of a header block that is not complete yet.
  uint32_t block_stream_ = 0;
  bool block_ends_stream_ = false;
  std::string block_;
  // Limits that the server has announced.
  int64_t credit_ = kDefaultWindow;
  int64_t initial_credit_ = kDefaultWindow;
  int64_t max_frame_bytes_ = kDefaultMaxFrameBytes;
  int64_t pongs_ = 0;
  bool lost_ = false;
  bool reads_ = true;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_HTTP2_PEER_H_
