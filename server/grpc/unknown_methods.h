// UnknownMethods: answers calls of methods that no service of this server has, with UNIMPLEMENTED
// and the names of the services.
//
// gRPC gives a call to this service only if its path names no registered method, so that other
// calls do not meet it. Without it, gRPC answers such calls itself, without a text.
//
// No step reads: what the client sends of its message stays within the flow control of its stream
// until the answer ends the stream.
//
// Threading:  As QueueCall.
// Ownership:  The constructor's arguments must outlive the service and its calls.
// Errors:     UNIMPLEMENTED with reason NOT_BUILT, to every call.
// Limits:     Each call is one of the connection's kConcurrentStreamsMax.
#ifndef ROPE_SERVER_GRPC_UNKNOWN_METHODS_H_
#define ROPE_SERVER_GRPC_UNKNOWN_METHODS_H_

#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/async_generic_service.h>

#include <string>
#include <vector>

#include "server/grpc/poll_loop.h"
#include "server/grpc/queue_call.h"
#include "server/telemetry/metrics.h"

namespace rope::server {

class UnknownMethods {
 public:
  // `services`: the full names of the services of this server.
  UnknownMethods(const std::vector<std::string>& services, const QueueCall::Parts& parts,
                 Metrics& metrics);

  grpc::AsyncGenericService& service() { return service_; }
  void Arm(CallQueue& queue);

 private:
  class Call;

  grpc::AsyncGenericService service_;
  const QueueCall::Method method_;
  const std::string want_;  // of the error
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_UNKNOWN_METHODS_H_
