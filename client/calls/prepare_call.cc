#include "client/calls/prepare_call.h"

#include <algorithm>
#include <utility>

#include "client/codec/message_call.h"
#include "client/codec/preparation.h"
#include "client/transport/stub.h"

namespace rope::client {
namespace {

using std::chrono::microseconds;
using State = std::shared_ptr<const PreparedState>;

constexpr std::chrono::milliseconds kPrepareMax{500};

// The right to ask the server to prepare a request again. The last copy returns it. Null: another
// call has it. Nobody reads the answer, because the id stays the same.
using Turn = std::shared_ptr<const void>;
Turn TakeTurn(const State& state) {
  if (state->is_asking.exchange(true)) return nullptr;
  return {state.get(), [state](const void*) { state->is_asking.store(false); }};
}

constexpr int kQuestionsMax = 4;

int QuestionsTo(const Link& link, const std::function<double()>& random) {
  int questions = 1;
  while (link.of_several && questions < kQuestionsMax && random() < 0.5) ++questions;
  return questions;
}

// One Prepare under way. No thread waits for it. The queue owns it.
class PrepareCall final : public LiveCall, private EventHandler {
 public:
  PrepareCall(std::shared_ptr<EventQueue> queue, Turn turn)
      : queue_(std::move(queue)), turn_(std::move(turn)) {}

  // REQUIRES: the queue has it.
  void Start(const Stub& stub, const grpc::ByteBuffer& message, const Metadata& metadata) {
    stub.Start(RopeMethod("Prepare"), message, {kPrepareMax, &metadata}, queue_->queue(),
               static_cast<EventHandler*>(this), attempt_);
  }
  void Cancel() override { attempt_.context.TryCancel(); }

 private:
  void OnEvent(bool) override { queue_->Remove(this); }

  const std::shared_ptr<EventQueue> queue_;
  const Turn turn_;
  UnaryAttempt attempt_;
};

}  // namespace

void PrepareAgain(const Link& link, const PreparedRotation& rotation, const RpcOptions& options,
                  const std::function<double()>& random) {
  const State& state = PreparedState::Of(rotation);
  const Turn turn = TakeTurn(state);
  if (turn == nullptr) return;
  const grpc::ByteBuffer message = BytesOf(state->preparation->message());
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::min<microseconds>(options.timeout, kPrepareMax);
  for (int left = QuestionsTo(link, random); left > 0 && Clock::now() < deadline; --left) {
    const auto timeout = std::chrono::duration_cast<microseconds>(deadline - Clock::now());
    static_cast<void>(link.stub.Call(RopeMethod("Prepare"), message, {timeout, options.metadata}));
  }
}

void StartPrepareAgain(const std::shared_ptr<const Link>& link,
                       const std::shared_ptr<EventQueue>& queue, const PreparedRotation& rotation,
                       const Metadata& metadata, const std::function<double()>& random) {
  const State& state = PreparedState::Of(rotation);
  const Turn turn = TakeTurn(state);
  if (turn == nullptr) return;
  const grpc::ByteBuffer message = BytesOf(state->preparation->message());
  for (int left = QuestionsTo(*link, random); left > 0; --left) {
    const auto call = std::make_shared<PrepareCall>(queue, turn);
    queue->Add(call);
    call->Start(link->stub, message, metadata);
  }
}

}  // namespace rope::client
