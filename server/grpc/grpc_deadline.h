// The time left until the deadline of a call.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_GRPC_GRPC_DEADLINE_H_
#define ROPE_SERVER_GRPC_GRPC_DEADLINE_H_

#include <grpc/support/time.h>
#include <grpcpp/server_context.h>

#include "absl/time/time.h"

namespace rope::server {

// Infinite if the client has set no deadline. Measured by the steady clock from which gRPC computed
// the deadline.
inline absl::Duration TimeLeft(const grpc::ServerContextBase& context) {
  const gpr_timespec left = gpr_convert_clock_type(context.raw_deadline(), GPR_TIMESPAN);
  if (gpr_time_cmp(left, gpr_inf_future(GPR_TIMESPAN)) == 0) return absl::InfiniteDuration();
  return absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec);
}

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_GRPC_DEADLINE_H_
