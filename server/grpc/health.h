// Health: implements grpc.health.v1 on the server's own completion queues.
//
// gRPC's built-in health service starts callback pollers, which take socket events away from the
// queues and slow every call down.
//
// Threading:  Thread-safe.
// Limits:     limits::kWatchesMax Watch streams, half of them of an owner.
// Ownership:  Watch streams own themselves. They end with UNAVAILABLE at Shutdown, or when their
//             client has gone.
#ifndef ROPE_SERVER_GRPC_HEALTH_H_
#define ROPE_SERVER_GRPC_HEALTH_H_

#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "proto/mutex.h"
#include "server/grpc/poll_loop.h"
#include "server/grpc/queue_call.h"

namespace rope::server {

class Health {
 public:
  using Service = RawService<grpc::health::v1::Health>;

  // Knows "" (the server as a whole) and the names in `services`, all NOT_SERVING at first.
  Health(const std::vector<std::string>& services, const QueueCall::Parts& parts);

  Service& service() { return service_; }
  // Arms both methods on `queue`.
  void Arm(CallQueue& queue);

  void SetServing(bool serving);
  // Whether the server as a whole is SERVING.
  bool serving() const;
  // Reports `service` as NOT_SERVING from now on, whatever SetServing says.
  void SetFaulted(const std::string& service);
  // Ends every Watch, so that the gRPC server can shut down.
  void Shutdown();

 private:
  class WatchCall;

  absl::StatusOr<grpc::health::v1::HealthCheckResponse> Check(grpc::ByteBuffer& bytes) const;
  // Unchecked: the analysis does not know that the mutex of each watch's Health is this one.
  void UpdateWatches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  grpc::health::v1::HealthCheckResponse::ServingStatus StatusOf(const std::string& service) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const std::set<std::string> services_;
  Service service_;
  const QueueCall::Method watch_;
  const UnaryCall::Method check_;

  mutable proto::SharedMutex mutex_;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::string> faulted_ ABSL_GUARDED_BY(mutex_);
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<WatchCall*> watches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_HEALTH_H_
