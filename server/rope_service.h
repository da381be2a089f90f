// RopeService: the rope.v1 adapter. Turns calls into requests and answers into replies; everything
// else is the engine's.
//
// Threading:  Handlers run on the queues' threads; replies are sent from whichever thread completes
//             the request.
// Ownership:  Everything in Parts must outlive the service and its calls.
#ifndef ROPE_SERVER_ROPE_SERVICE_H_
#define ROPE_SERVER_ROPE_SERVICE_H_

#include <spdlog/logger.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "server/clock.h"
#include "server/engine.h"
#include "server/log_limiter.h"
#include "server/metrics.h"
#include "server/model_registry.h"
#include "server/peers.h"
#include "server/raw_service.h"
#include "server/receiving.h"
#include "server/regions.h"
#include "server/ring.h"
#include "server/stream_call.h"
#include "server/unary_call.h"
#include "server/warm_up.h"

namespace rope::server {

class RopeService {
 public:
  struct Parts {
    Engine* engine = nullptr;
    PreparedRequests* prepared = nullptr;
    ModelRegistry* registry = nullptr;
    RegionTable* regions = nullptr;
    kernels::TableCache* tables = nullptr;
    WarmUpWorker* warm_up = nullptr;
    Metrics* metrics = nullptr;
    const Clock* clock = nullptr;
    CallsInFlight* in_flight = nullptr;
    Receiving* receiving = nullptr;
    std::string instance_id;
    int64_t max_message_bytes = 0;
    std::function<v1::GetServerInfoResponse()> server_info;
    const Peers* peers = nullptr;
  };

  explicit RopeService(Parts parts);
  ~RopeService();

  grpc::Service& service() { return service_; }
  // Arms `calls` calls of each method on `queue`.
  void Arm(grpc::ServerCompletionQueue& queue, int calls);
  // Answers a call that came through a ring.
  void RotateOnRing(RingCall& call);
  // Ends open streams once what they accepted is answered.
  void DrainStreams();
  int64_t open_streams() const { return open_streams_.count(); }

 private:
  // How gRPC is asked for the next call of a method.
  UnaryCall::Request RequestOf(const std::string& method);
  void AddMethod(const std::string& name, UnaryCall::Handler handler);

  void Rotate(UnaryCall& call);
  void RotateOnStream(StreamCall& call, grpc::ByteBuffer& message);
  // What a message of a call asks for, as far as the call itself says it.
  template <typename Call>
  std::unique_ptr<Request> NewRequest(const Call& call);
  // Decodes and submits; whatever happens, the request's `done` is called.
  void Submit(grpc::ByteBuffer& message, std::unique_ptr<Request> request);
  // The second half of it: `status` is how decoding went.
  void SubmitDecoded(absl::Status status, std::unique_ptr<Request> request);
  // Answered on another thread when it is done.
  void WarmUp(UnaryCall& call);
  // Answered on whatever thread lets go of the region last, where the request waits for that.
  void UnregisterRegion(UnaryCall& call);
  // A method that answers at once: `answer` makes the reply, or says why not.
  template <typename In, typename Out>
  UnaryCall::Handler Immediate(Method method, std::function<absl::StatusOr<Out>(const In&)> answer);
  // The same for what belongs to the session of the call, or to its owner.
  template <typename In, typename Out>
  UnaryCall::Handler OfSession(
      Method method, std::function<absl::StatusOr<Out>(const In&, uint64_t session)> answer);
  template <typename In, typename Out>
  UnaryCall::Handler OfOwner(
      Method method,
      std::function<absl::StatusOr<Out>(const In&, const std::string& owner)> answer);
  template <typename In, typename Out>
  UnaryCall::Handler OfCall(
      Method method, std::function<absl::StatusOr<Out>(const In&, const UnaryCall& call)> answer);

  // A call of the control plane that was received.
  struct Received {
    Method method;
    std::string id;
    absl::Time at;
    int64_t message_bytes = 0;
  };
  Received Receive(Method method, UnaryCall& call);
  template <typename Out>
  void Answer(UnaryCall& call, const Received& received, const absl::StatusOr<Out>& response);

  // Counts and logs an answered request, before the answer is sent.
  void RecordRotation(Method method, const Request& request, const absl::Status& status,
                      int64_t reply_bytes);
  void Record(const Received& received, const absl::Status& status, const grpc::ByteBuffer& reply);
  void Log(Method method, const std::string& id, const absl::Status& status);
  std::string MakeId();

  const Parts parts_;
  const std::shared_ptr<spdlog::logger> logger_;  // looked up once, not for each request
  LogLimiter log_limiter_;
  RawService<v1::RopeService> service_;
  std::vector<std::unique_ptr<UnaryCall::Method>> methods_;
  OpenStreams open_streams_;
  StreamCall::Method rotate_stream_;
  const std::string id_prefix_;  // of the ids that this process gives
  std::atomic<uint64_t> next_id_{1};
};

}  // namespace rope::server

#endif  // ROPE_SERVER_ROPE_SERVICE_H_
