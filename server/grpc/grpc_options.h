// How a gRPC server of ours is set up: the channel options that were measured, in one place for the
// server and for the benchmark's yardstick.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_GRPC_GRPC_OPTIONS_H_
#define ROPE_SERVER_GRPC_GRPC_OPTIONS_H_

#include <grpcpp/server_builder.h>
#include <malloc.h>

#include <algorithm>
#include <cstdint>

#include "absl/synchronization/mutex.h"
#include "server/limits.h"

namespace rope::server {

inline void SetChannelArguments(int64_t max_message_bytes, grpc::ServerBuilder& builder) {
  constexpr int kHttp2FrameBytesMax = 16 * 1024 * 1024 - 1;  // the largest that HTTP/2 has
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(max_message_bytes + limits::kMessageSlackBytes));
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits::kConcurrentStreamsMax);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kHttp2FrameBytesMax);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE,
                             static_cast<int>(limits::kJoinedBytesMax));
  // A port that another server has is an error, not a share of its connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

// Half of the processors: the others are for the batch thread, its workers and clients on the same
// host. On two, one polling thread answers a small call in half the time that two need, which take
// each other's events. More than a few only take turns on the same sockets.
inline int PollThreads(int processors) {
  return std::clamp(processors / 2, 1, 8);
}

// One arena of the allocator for each polling thread, which are what allocates. More of them only
// keep freed memory apart: the server's memory goes on growing for hours. Call before any thread
// starts.
inline void LimitArenas(int processors) {
  mallopt(M_ARENA_MAX, PollThreads(processors));
}

// Sets up the process. Call before any thread starts.
inline void PrepareProcess() {
  // gRPC allocates and frees every received slice; glibc would give the pages back to the kernel,
  // which zeroes them again. Keeping them is the largest single gain of the whole server.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  mallopt(M_TOP_PAD, 64 << 20);
  // Packaged Abseil is built with its search for deadlocks, which each of gRPC's locks pays for.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_GRPC_OPTIONS_H_
