#include "server/grpc/unknown_methods.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "server/error.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/poll_loop.h"
#include "server/limits.h"
#include "server/telemetry/log.h"

namespace rope::server {

class UnknownMethods::Call {
 public:
  static void Arm(UnknownMethods& methods, grpc::ServerCompletionQueue& queue) {
    auto owned = std::unique_ptr<Call>(new Call(methods, queue));  // owned by itself below
    Call& call = *owned.release();
    call.context_.AsyncNotifyWhenDone(&call.done_);
    methods.service_.RequestCall(&call.context_, &call.stream_, &queue, &queue, &call.arrived_);
  }

 private:
  Call(UnknownMethods& methods, grpc::ServerCompletionQueue& queue)
      : open_call_(methods.in_flight_), methods_(methods), queue_(queue), stream_(&context_) {}

  void OnArrived(bool ok) {
    if (!ok) {  // shutdown before a call came: gRPC sends no done notification
      delete this;
      return;
    }
    Arm(methods_, queue_);
    methods_.metrics_.CountUnknownMethod();
    const std::string method =
        Quoted(ShortText(absl::StripPrefix(context_.method(), "/"), limits::kErrorPartBytesMax));
    const absl::Status status = MakeError(Reason::kNotBuilt, "method", method,
                                          absl::StrCat("a method of ", methods_.want_));
    LogLimited(LogKind::kMethod, spdlog::level::info, "method={} code=UNIMPLEMENTED", method);
    stream_.Finish(ToGrpcStatus(status, context_), &ended_);
  }
  void OnEnded(bool) { Release(); }
  void OnDone(bool) { Release(); }

  void Release() {
    if (--open_ == 0) delete this;
  }

  const CallsInFlight::Open open_call_;  // first, because it ends last
  UnknownMethods& methods_;
  grpc::ServerCompletionQueue& queue_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  int open_ = 2;  // last step and done, both on the queue's thread
  CallEvent<Call> arrived_{this, &Call::OnArrived};
  CallEvent<Call> ended_{this, &Call::OnEnded};
  CallEvent<Call> done_{this, &Call::OnDone};
};

UnknownMethods::UnknownMethods(const std::vector<std::string>& services, CallsInFlight& in_flight,
                               Metrics& metrics)
    : want_(absl::StrJoin(services, ", ")), in_flight_(in_flight), metrics_(metrics) {}

void UnknownMethods::Arm(grpc::ServerCompletionQueue& queue) {
  Call::Arm(*this, queue);
}

}  // namespace rope::server
