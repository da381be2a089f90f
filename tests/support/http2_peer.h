// A gRPC client that speaks HTTP/2 by hand over a socket, without the gRPC library: it can announce
// messages that it does not send, leave answers unread (a window of 0), and send any bytes at all.
//
// It keeps to the server's windows, answers SETTINGS and PING, and gives no window but what tests
// give with GrantWindow: what it has not granted, the server cannot send.
//
// Threading:  Confined to one thread.
// Ownership:  Closes its connection when it goes.
// Errors:     Whatever the server does is what a test asks for: a lost connection and an ended
//             stream are states. Nothing waits for longer than it is told to.
// Limits:     Bytes of answers are counted and not kept. DecodeHeaders says which headers are read.
#ifndef ROPE_TESTS_SUPPORT_HTTP2_PEER_H_
#define ROPE_TESTS_SUPPORT_HTTP2_PEER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "proto/ipc/file_descriptor.h"
#include "tests/support/http2_frames.h"

namespace rope::testing {

// A non-blocking socket that is connected to "127.0.0.1:PORT".
proto::FileDescriptor ConnectTcp(const std::string& address);

class Http2Peer {
 public:
  using Duration = std::chrono::milliseconds;
  static constexpr Duration kPatience = std::chrono::seconds(10);
  static constexpr std::string_view kRotate = "/rope.v1.RopeService/Rotate";
  static constexpr std::string_view kRotateStream = "/rope.v1.RopeService/RotateStream";

  // What became of a call.
  struct Stream {
    enum class End { kNone, kTrailers, kReset };

    bool began = false;        // headers of an answer have come
    int64_t answer_bytes = 0;  // of DATA
    End end = End::kNone;
    int code = -1;            // grpc-status of the trailers
    std::string message;      // grpc-message, percent-encoded as it came
    std::string pushback;     // grpc-retry-pushback-ms
    uint32_t reset_code = 0;  // of the RST_STREAM
    int64_t credit = 0;       // bytes that the server takes

    bool ended() const { return end != End::kNone; }
    // An answer that the server still has something of.
    bool held() const { return began && !ended(); }
  };

  // Sends the preface and SETTINGS. `window`: bytes of each answer that the server may send before
  // it is granted more.
  explicit Http2Peer(proto::FileDescriptor connection, uint32_t window = kDefaultWindow);

  // --- calls --- Begins one; returns its stream.
  uint32_t StartCall(std::string_view path = kRotate);
  // Announces `message` and sends its first `bytes`, as far as the server takes them: until the
  // call is over, or no room was made for `patience`. Returns how many were sent. `last`: nothing
  // follows where all of them were.
  int64_t SendPart(uint32_t stream, std::string_view message, size_t bytes, bool last,
                   Duration patience = kPatience);
  // A whole unary call of `message`, sent; its answer is not waited for.
  uint32_t Call(std::string_view message);
  // Lets the server send `bytes` more on a stream, or (0) on all of them together.
  void GrantWindow(uint32_t stream, uint32_t bytes);
  void Reset(uint32_t stream);

  // --- bytes --- Sends any; false: the connection is lost, or the server has taken nothing for
  // `patience`, and what it did not take is sent before anything else.
  bool Send(std::string_view bytes, Duration patience = kPatience);

  // --- what comes back --- Reads until `done()`; false: it was not within `bound`, or the
  // connection was lost before.
  bool Await(const std::function<bool()>& done, Duration bound = kPatience);
  // Reads until the call has ended; false: not within `bound`. A lost connection ends all calls.
  bool AwaitEnd(uint32_t stream, Duration bound = kPatience);
  // Whether the server answers a PING.
  bool AwaitPong(Duration bound = kPatience);
  // Reads nothing from now on.
  void StopReading() { reads_ = false; }

  const Stream& stream(uint32_t id) { return streams_[id]; }
  const std::map<uint32_t, Stream>& streams() const { return streams_; }
  bool lost() const { return lost_; }
  bool going_away() const { return going_away_; }
  // The call has ended, or the connection is lost.
  bool IsOver(uint32_t stream) { return lost_ || streams_[stream].ended(); }

 private:
  using Clock = std::chrono::steady_clock;

  // Writes what is to be sent until all of it is, or nothing was taken for `patience`.
  bool Flush(Duration patience);
  // Waits for the socket, up to `deadline`; reads what has come. False: time is out.
  bool Wait(bool to_write, Clock::time_point deadline);
  void Read();
  void TakeFrames();
  void Take(const FrameHeader& header, std::string_view payload);
  void TakeHeaders(const FrameHeader& header, std::string_view payload);
  void TakeSettings(std::string_view payload);
  void EndBlock();
  int64_t SendData(uint32_t stream, std::string_view bytes, bool last, Duration patience);
  int64_t Room(uint32_t stream);

  proto::FileDescriptor connection_;
  std::string out_;  // still to be sent
  std::string in_;   // received, not a whole frame yet
  std::map<uint32_t, Stream> streams_;
  uint32_t next_stream_ = 1;
  // Of a header block that is not whole yet.
  uint32_t block_stream_ = 0;
  bool block_ends_stream_ = false;
  std::string block_;
  // What the server allows.
  int64_t credit_ = kDefaultWindow;
  int64_t initial_credit_ = kDefaultWindow;
  int64_t max_frame_bytes_ = kDefaultMaxFrameBytes;
  int64_t pongs_ = 0;
  bool going_away_ = false;
  bool lost_ = false;
  bool reads_ = true;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_HTTP2_PEER_H_
