// Bounds that all rooms of the server share. The limits.h of a room has the others. Each bound
// has its reason; a bound that an operator may change is the default of its flag (options.h).
#ifndef ROPE_SERVER_LIMITS_H_
#define ROPE_SERVER_LIMITS_H_

#include <cstdint>

namespace rope::server::limits {

inline constexpr int64_t kKiB = 1024;
inline constexpr int64_t kMiB = 1024 * kKiB;
inline constexpr int64_t kGiB = 1024 * kMiB;
// Default of --max_message_bytes: a prefill of 8192 tokens x 40 heads x 128 in fp32, with room.
inline constexpr int64_t kMessageBytesMax = 256 * kMiB;
// gRPC's own cap is this much larger, so that the server's error comes first and names the flag.
inline constexpr int64_t kMessageSlackBytes = 1 * kMiB;
// The largest --max_message_bytes: Protobuf and HTTP/2 count in 31 bits.
inline constexpr int64_t kMessageBytesCeiling = 2 * kGiB - 2 * kMiB;
// Lengths of an error's text and of each part. They travel as trailers: clients accept 8 KiB.
inline constexpr int64_t kErrorBytesMax = 512;
inline constexpr int64_t kErrorPartBytesMax = 256;
inline constexpr int64_t kRequestIdBytesMax = 128;
// The retry delay of a refused request: a full queue shrinks by about one batch meanwhile.
inline constexpr int64_t kRetryDelayMs = 20;
// Concurrent calls of one connection. gRPC buffers calls before the server accepts them.
inline constexpr int kConcurrentStreamsMax = 128;
// The largest --max_connections: more than a process can open files for.
inline constexpr int64_t kMaxConnectionsCeiling = int64_t{1} << 30;

static_assert(kMessageBytesMax <= kMessageBytesCeiling);

}  // namespace rope::server::limits

#endif  // ROPE_SERVER_LIMITS_H_
