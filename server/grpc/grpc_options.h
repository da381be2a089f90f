// Set-up of a gRPC server: the channel options that were chosen by measurement, in one place for
// the server and for the echo server that the benchmark compares it with.
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
  constexpr int kHttp2FrameBytesMax = 16 * 1024 * 1024 - 1;  // the HTTP/2 maximum
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(max_message_bytes + limits::kMessageSlackBytes));
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits::kConcurrentStreamsMax);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kHttp2FrameBytesMax);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE,
                             static_cast<int>(limits::kJoinedBytesMax));
  // A port in use is an error. With SO_REUSEPORT the server would share its connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

// Half of the processors, 1 to 8. The other half is for the batch thread, its workers and clients
// on the same host. On two processors, one poll thread answers a small call in half the time of two
// poll threads, which take each other's events. More than a few threads only alternate on the same
// sockets.
inline int PollThreads(int processors) {
  return std::clamp(processors / 2, 1, 8);
}

// Limits malloc to one arena for each poll thread, since the poll threads do most allocations. More
// arenas only split freed memory, and the server's memory then grows for hours. Call it before any
// thread starts.
inline void LimitArenas(int processors) {
  mallopt(M_ARENA_MAX, PollThreads(processors));
}

// Sets up malloc and Abseil for the process. Call it before any thread starts.
inline void PrepareProcess() {
  // gRPC allocates and frees every received slice. By default glibc gives the pages back to the
  // kernel, which zeroes them again. Keeping them is the largest single gain of the whole server.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  mallopt(M_TOP_PAD, 64 << 20);
  // Packaged Abseil is built with deadlock detection, which slows down every lock of gRPC.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_GRPC_OPTIONS_H_
