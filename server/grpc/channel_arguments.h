// The channel options of the server's gRPC, chosen by measurement: in one place for the server and
// for the echo server that the benchmark compares it with.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_GRPC_CHANNEL_ARGUMENTS_H_
#define ROPE_SERVER_GRPC_CHANNEL_ARGUMENTS_H_

#include <grpc/compression.h>
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
  // gRPC inflates a message before it checks any size: 1 MiB would become 1 GiB, in no budget. A
  // call that names an algorithm is answered UNIMPLEMENTED.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
}

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_CHANNEL_ARGUMENTS_H_
