#include "server/grpc/unknown_methods.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "server/error.h"
#include "server/grpc/grpc_status.h"
#include "server/limits.h"
#include "server/telemetry/log.h"

namespace rope::server {

class UnknownMethods::Call final : public QueueCall {
 public:
  Call(UnknownMethods& methods, std::shared_ptr<CallArming> arming)
      : QueueCall(methods.method_, std::move(arming), /*releases=*/2), methods_(methods) {}

 private:
  void OnArrived() override {
    const std::string method =
        ShortText(absl::StripPrefix(context_.method(), "/"), limits::kErrorPartBytesMax);
    LogLimited(LogKind::kMethod, spdlog::level::info,
               LogLine().Text("method", method).Word("code", "UNIMPLEMENTED"));
    FinishWithoutMessage(MakeError(Reason::kNotBuilt, "method", Quoted(method),
                                   absl::StrCat("a method of ", methods_.want_)));
  }

  UnknownMethods& methods_;
};

UnknownMethods::UnknownMethods(const std::vector<std::string>& services,
                               const QueueCall::Parts& parts, Metrics& metrics)
    : method_{[this](RawContext* context, RawStream* stream, grpc::ServerCompletionQueue* queue,
                     void* tag) { service_.RequestCall(context, stream, queue, queue, tag); },
              parts, &metrics.unknown_calls()},
      want_(absl::StrJoin(services, ", ")) {}

void UnknownMethods::Arm(CallQueue& queue) {
  CallArming::Start<Call>(queue, method_.request, *this, /*wanted=*/1);
}

}  // namespace rope::server
