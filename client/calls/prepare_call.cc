#include "client/calls/prepare_call.h"

#include <algorithm>
#include <string>
#include <utility>

namespace rope::client {
namespace {

using std::chrono::microseconds;

constexpr std::chrono::milliseconds kPrepareMax{500};

const std::string& Method() {
  static const std::string method = RopeMethod("Prepare");
  return method;
}

// One Prepare under way. No thread waits for it. The queue owns it.
class PrepareCall final : public LiveCall, private EventHandler {
 public:
  PrepareCall(std::shared_ptr<const Session> session, std::shared_ptr<EventQueue> queue,
              std::shared_ptr<const Preparation> preparation)
      : session_(std::move(session)),
        queue_(std::move(queue)),
        preparation_(std::move(preparation)) {}

  // REQUIRES: the queue has it.
  void Start(const grpc::ByteBuffer& message) {
    session_->stub.Start(Method(), message, kPrepareMax, queue_->queue(),
                         static_cast<EventHandler*>(this), attempt_);
  }
  void Cancel() override { attempt_.context.TryCancel(); }

 private:
  void OnEvent(bool) override {
    session_->prepared->NoteAnswer(preparation_,
                                   ReadPrepared(preparation_, Stub::ResultOf(attempt_)));
    queue_->Remove(this);
  }

  const std::shared_ptr<const Session> session_;
  const std::shared_ptr<EventQueue> queue_;
  const std::shared_ptr<const Preparation> preparation_;
  UnaryAttempt attempt_;
};

}  // namespace

void PrepareNow(const Session& session, const PreparedUse& use, microseconds timeout) {
  if (!session.prepared->TakeTurn(use)) return;
  const Result<grpc::ByteBuffer> message = use.preparation->Message();
  const microseconds bounded = std::min<microseconds>(timeout, kPrepareMax);
  session.prepared->NoteAnswer(
      use.preparation,
      ReadPrepared(use.preparation,
                   message.ok() ? session.stub.Call(Method(), *message, bounded) : message));
}

void StartPrepare(const std::shared_ptr<const Session>& session,
                  const std::shared_ptr<EventQueue>& queue, const PreparedUse& use) {
  if (!session->prepared->TakeTurn(use)) return;
  const Result<grpc::ByteBuffer> message = use.preparation->Message();
  if (!message.ok()) return session->prepared->NoteAnswer(use.preparation, message.status());
  const auto call = std::make_shared<PrepareCall>(session, queue, use.preparation);
  queue->Add(call);
  call->Start(*message);
}

}  // namespace rope::client
