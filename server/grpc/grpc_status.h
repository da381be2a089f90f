// What the server sets and reads of gRPC: deadlines, channel arguments, statuses.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_GRPC_GRPC_STATUS_H_
#define ROPE_SERVER_GRPC_GRPC_STATUS_H_

#include <grpc/compression.h>
#include <grpc/support/time.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rope/v1/rotate.pb.h"
#include "server/limits.h"

namespace rope::server {
namespace limits {

// Replies of a stream that are sent together if the next one is ready. gRPC is told to buffer this
// much before it writes: a third of what a socket takes at once.
inline constexpr int64_t kJoinedBytesMax = 64 * kKiB;

}  // namespace limits

// The time left until the deadline of a call; infinite if the client has set none. Measured by the
// steady clock from which gRPC computed the deadline.
inline absl::Duration TimeLeft(const grpc::ServerContextBase& context) {
  const gpr_timespec left = gpr_convert_clock_type(context.raw_deadline(), GPR_TIMESPAN);
  if (gpr_time_cmp(left, gpr_inf_future(GPR_TIMESPAN)) == 0) return absl::InfiniteDuration();
  return absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec);
}

// The channel options of the server's gRPC, chosen by measurement: in one place for the server and
// for the echo server that the benchmark compares it with.
inline void SetChannelArguments(int64_t max_message_bytes, grpc::ServerBuilder& builder) {
  constexpr int kHttp2FrameBytesMax = 16 * 1024 * 1024 - 1;  // the HTTP/2 maximum
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(max_message_bytes + limits::kMessageSlackBytes));
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits::kConcurrentStreamsMax);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kHttp2FrameBytesMax);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE,
                             static_cast<int>(limits::kJoinedBytesMax));
  // The kernel finds peers that have gone (ipc/listener.cc). gRPC's own ping would need a timer for
  // each connection.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, std::numeric_limits<int>::max());
  // gRPC inflates a message before it checks any size: 1 MiB would become 1 GiB, in no budget. A
  // call that names an algorithm is answered UNIMPLEMENTED.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
}

// The error with its text and parts cut to limits::kErrorBytesMax and limits::kErrorPartBytesMax.
v1::Error ErrorOf(const absl::Status& status);

// Adds the grpc-retry-pushback-ms trailer to `context` if the status carries a retry delay.
grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContext& context);

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_GRPC_STATUS_H_
