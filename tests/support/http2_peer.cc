#include "tests/support/http2_peer.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <utility>

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

constexpr size_t kReadBytes = size_t{64} << 10;
constexpr int64_t kDataBytesMax = int64_t{1} << 20;  // of one frame
constexpr uint32_t kCancel = 8;                      // RST_STREAM's code

int MillisecondsUntil(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

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

proto::FileDescriptor ConnectTcp(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(std::atoi(address.substr(colon + 1).c_str())));
  EXPECT_EQ(inet_pton(AF_INET, address.substr(0, colon).c_str(), &peer.sin_addr), 1);
  proto::FileDescriptor connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(connection.get(), reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)), 0);
  const int on = 1;
  setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return connection;
}

Http2Peer::Http2Peer(proto::FileDescriptor connection, uint32_t window)
    : connection_(std::move(connection)) {
  fcntl(connection_.get(), F_SETFL, O_NONBLOCK);
  const Settings settings = {{kSettingsHeaderTableSize, 0}, {kSettingsInitialWindowSize, window}};
  Send(std::string(kHttp2Preface) +
       Frame(FrameType::kSettings, kNoFlags, 0, EncodeSettings(settings)));
}

uint32_t Http2Peer::StartCall(std::string_view path, std::string_view encoding) {
  const uint32_t stream = std::exchange(next_stream_, next_stream_ + 2);
  streams_[stream].credit = initial_credit_;
  streams_[stream].compressed = !encoding.empty();
  HeaderFields headers = {{":method", "POST"},
                          {":scheme", "http"},
                          {":path", std::string(path)},
                          {":authority", "localhost"},
                          {"content-type", "application/grpc"},
                          {"te", "trailers"}};
  if (!encoding.empty()) headers.emplace_back("grpc-encoding", encoding);
  Send(Frame(FrameType::kHeaders, kEndHeaders, stream, EncodeHeaders(headers)));
  return stream;
}

int64_t Http2Peer::SendPart(uint32_t stream, std::string_view message, size_t bytes, bool last,
                            Duration patience) {
  const std::string prefix =
      GrpcPrefix(static_cast<uint32_t>(message.size()), streams_[stream].compressed);
  const auto prefix_bytes = static_cast<int64_t>(prefix.size());
  if (SendData(stream, prefix, false, patience) < prefix_bytes) return 0;
  return SendData(stream, message.substr(0, bytes), last, patience);
}

uint32_t Http2Peer::Call(std::string_view message) {
  const uint32_t stream = StartCall();
  SendPart(stream, message, message.size(), /*last=*/true);
  return stream;
}

void Http2Peer::GrantWindow(uint32_t stream, uint32_t bytes) {
  Send(Frame(FrameType::kWindowUpdate, kNoFlags, stream, BigEndian32(bytes)));
}

void Http2Peer::Reset(uint32_t stream) {
  Send(Frame(FrameType::kResetStream, kNoFlags, stream, BigEndian32(kCancel)));
}

int64_t Http2Peer::Room(uint32_t stream) {
  return std::min({credit_, streams_[stream].credit, max_frame_bytes_, kDataBytesMax});
}

int64_t Http2Peer::SendData(uint32_t stream, std::string_view bytes, bool last, Duration patience) {
  int64_t sent = 0;
  while (!bytes.empty()) {
    Read();
    const auto may_go_on = [&] { return IsOver(stream) || Room(stream) > 0; };
    if (!Await(may_go_on, patience) || IsOver(stream)) break;
    const size_t count = std::min(bytes.size(), static_cast<size_t>(Room(stream)));
    const bool ends = last && count == bytes.size();
    if (!Send(Frame(FrameType::kData, ends ? kEndStream : kNoFlags, stream, bytes.substr(0, count)),
              patience)) {
      break;
    }
    bytes.remove_prefix(count);
    sent += static_cast<int64_t>(count);
    credit_ -= static_cast<int64_t>(count);
    streams_[stream].credit -= static_cast<int64_t>(count);
  }
  return sent;
}

bool Http2Peer::Send(std::string_view bytes, Duration patience) {
  out_.append(bytes);
  return Flush(patience);
}

bool Http2Peer::Flush(Duration patience) {
  size_t sent = 0;
  auto deadline = Clock::now() + patience;
  while (sent < out_.size() && !lost_) {
    const ssize_t count =
        send(connection_.get(), out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL);
    if (count > 0) {
      sent += static_cast<size_t>(count);
      deadline = Clock::now() + patience;
    } else if (errno == EAGAIN) {
      if (!Wait(/*to_write=*/true, deadline)) break;
    } else if (errno != EINTR) {
      lost_ = true;
    }
  }
  out_.erase(0, sent);
  return !lost_ && out_.empty();
}

bool Http2Peer::Wait(bool to_write, Clock::time_point deadline) {
  pollfd ready{};
  ready.fd = connection_.get();
  ready.events = static_cast<int16_t>((reads_ ? POLLIN : 0) | (to_write ? POLLOUT : 0));
  if (poll(&ready, 1, MillisecondsUntil(deadline)) <= 0) return false;
  if ((ready.revents & (POLLIN | POLLHUP | POLLERR)) != 0) Read();
  return true;
}

void Http2Peer::Read() {
  std::array<char, kReadBytes> buffer;
  while (reads_ && !lost_) {
    const ssize_t count = recv(connection_.get(), buffer.data(), buffer.size(), 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
      lost_ = true;
      return;
    }
    in_.append(buffer.data(), static_cast<size_t>(count));
    TakeFrames();
  }
}

void Http2Peer::TakeFrames() {
  size_t begin = 0;
  while (in_.size() - begin >= kFrameHeaderBytes) {
    const FrameHeader header = DecodeFrameHeader(in_.data() + begin);
    if (in_.size() - begin - kFrameHeaderBytes < header.length) break;
    Take(header, std::string_view(in_).substr(begin + kFrameHeaderBytes, header.length));
    begin += kFrameHeaderBytes + header.length;
  }
  in_.erase(0, begin);
}

void Http2Peer::Take(const FrameHeader& header, std::string_view payload) {
  const bool ack = (header.flags & kAck) != 0;
  switch (header.type) {
    case FrameType::kData:
      streams_[header.stream].answer_bytes += header.length;
      if ((header.flags & kEndStream) != 0) streams_[header.stream].end = Stream::End::kTrailers;
      break;
    case FrameType::kHeaders:
    case FrameType::kContinuation:
      TakeHeaders(header, payload);
      break;
    case FrameType::kResetStream:
      if (payload.size() < 4 || streams_[header.stream].ended()) break;
      streams_[header.stream].end = Stream::End::kReset;
      streams_[header.stream].reset_code = ReadBigEndian32(payload.data());
      break;
    case FrameType::kSettings:
      if (!ack) TakeSettings(payload);
      break;
    case FrameType::kPing:
      if (ack) ++pongs_;
      if (!ack) out_ += Frame(FrameType::kPing, kAck, 0, payload);
      break;
    case FrameType::kWindowUpdate:
      if (payload.size() < 4) break;
      (header.stream == 0 ? credit_ : streams_[header.stream].credit) +=
          ReadBigEndian32(payload.data());
      break;
    case FrameType::kGoAway:
    case FrameType::kPriority:
    case FrameType::kPushPromise:
      break;
  }
}

void Http2Peer::TakeHeaders(const FrameHeader& header, std::string_view payload) {
  if (header.type == FrameType::kHeaders) {
    block_stream_ = header.stream;
    block_ends_stream_ = (header.flags & kEndStream) != 0;
    block_.clear();
    size_t padding = 0;
    if ((header.flags & kPadded) != 0 && !payload.empty()) {
      padding = static_cast<uint8_t>(payload[0]);
      payload.remove_prefix(1);
    }
    if ((header.flags & kPriorityFlag) != 0)
      payload.remove_prefix(std::min<size_t>(5, payload.size()));
    payload.remove_suffix(std::min(padding, payload.size()));
  }
  block_.append(payload);
  if ((header.flags & kEndHeaders) != 0) EndBlock();
}

void Http2Peer::EndBlock() {
  Stream& stream = streams_[block_stream_];
  for (const auto& [name, value] : DecodeHeaders(block_)) {
    if (name == "grpc-status") stream.code = std::atoi(value.c_str());
    if (name == "grpc-message") stream.message = value;
    if (name == "grpc-retry-pushback-ms") stream.pushback = value;
  }
  if (!block_ends_stream_) stream.began = true;
  if (block_ends_stream_) stream.end = Stream::End::kTrailers;
}

void Http2Peer::TakeSettings(std::string_view payload) {
  for (const auto& [id, value] : DecodeSettings(payload)) {
    if (id == kSettingsMaxFrameSize) max_frame_bytes_ = value;
    if (id != kSettingsInitialWindowSize) continue;
    for (auto& [number, stream] : streams_) stream.credit += value - initial_credit_;
    initial_credit_ = value;
  }
  out_ += Frame(FrameType::kSettings, kAck, 0, "");
}

bool Http2Peer::Await(const std::function<bool()>& done, Duration bound) {
  const auto deadline = Clock::now() + bound;
  while (!done()) {
    if (lost_) return false;
    if (!out_.empty()) {
      // Sends answers to frames that were just read, and bytes that the server did not take before.
      const auto left = std::chrono::milliseconds(MillisecondsUntil(deadline));
      if (!Flush(left)) return done();
      continue;
    }
    if (!Wait(/*to_write=*/false, deadline)) return done();
  }
  return true;
}

bool Http2Peer::AwaitEnd(uint32_t stream, Duration bound) {
  Await([&] { return IsOver(stream); }, bound);
  return IsOver(stream);
}

bool Http2Peer::AwaitPong(Duration bound) {
  const int64_t before = pongs_;
  Send(Frame(FrameType::kPing, kNoFlags, 0, std::string(8, 'p')), bound);
  return Await([&] { return pongs_ > before; }, bound);
}

}  // namespace rope::testing
