// Bounds of messages, streams and replies in gRPC.
#ifndef ROPE_SERVER_GRPC_LIMITS_H_
#define ROPE_SERVER_GRPC_LIMITS_H_

#include <cstdint>

#include "server/engine/limits.h"
#include "server/limits.h"
#include "server/models/limits.h"

namespace rope::server::limits {

// Elements of one repeated message field, checked before parsing: far above every legal count.
inline constexpr int64_t kRepeatedMessagesMax = 1024;
// Fields of a message, which take some 50 nanoseconds each; numbers of a packed array are one. A
// config has up to kFieldsMax if its factors for 65,536 channels are not packed.
inline constexpr int64_t kFieldsMax = 256 * 1024;
// A message of the control plane: two config_json of the largest size, with room.
inline constexpr int64_t kControlMessageBytesMax = 4 * kMiB;
// The same, and replies, up to this size are not admitted: gRPC's own call is as large.
inline constexpr int64_t kControlSmallBytes = 4 * kKiB;
// A stream reads no more while this much is unanswered or not taken by the client: enough for many
// prefills in flight, little enough for many clients that never read.
inline constexpr int64_t kStreamBytesMax = 64 * kMiB;
inline constexpr int64_t kStreamRequestsMax = 1024;
// Errors of a stream that the client has not taken. No permit counts their 1.2 KiB each.
inline constexpr int64_t kUnadmittedRepliesMax = 64;
// Replies of a stream that are sent together if the next one is ready: as many as gather. The bytes
// are what gRPC is told to buffer before it writes, and a third of what a socket takes at once.
inline constexpr int64_t kJoinedAnswersMax = kGatheredRequestsMax;
inline constexpr int64_t kJoinedBytesMax = 64 * kKiB;
// Calls of each method that are armed on each queue.
inline constexpr int kArmedCalls = 4;

static_assert(2 * kConfigJsonBytesMax < kControlMessageBytesMax);

}  // namespace rope::server::limits

#endif  // ROPE_SERVER_GRPC_LIMITS_H_
