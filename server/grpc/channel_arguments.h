// The channel options of the server's gRPC, chosen by measurement: in one place for the server and
// for the echo server that the benchmark compares it with.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_GRPC_CHANNEL_ARGUMENTS_H_
#define ROPE_SERVER_GRPC_CHANNEL_ARGUMENTS_H_

#include <grpcpp/server_builder.h>

#include <cstdint>

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

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_CHANNEL_ARGUMENTS_H_
