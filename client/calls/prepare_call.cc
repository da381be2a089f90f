#include "client/calls/prepare_call.h"

#include <algorithm>
#include <string>
#include <utility>

#include "client/codec/preparation.h"
#include "client/transport/stub.h"

namespace rope::client {
namespace {

using std::chrono::microseconds;
using State = std::shared_ptr<const PreparedState>;

constexpr std::chrono::milliseconds kPrepareMax{500};

const std::string& PrepareMethod() {
  static const std::string method = RopeMethod("Prepare");
  return method;
}

// The caller's turn to ask, until Release. The answer is not read: its id is the same.
bool Acquire(const State& state) {
  return !state->is_asking.exchange(true);
}
void Release(const State& state) {
  state->is_asking.store(false);
}

bool AsksAnother(const Link& link, const std::function<double()>& random) {
  return link.of_several && random() < 0.5;
}

// One Prepare under way. No thread waits for it. The queue owns it.
class PrepareCall final : public LiveCall, private EventHandler {
 public:
  PrepareCall(std::shared_ptr<EventQueue> queue, State state)
      : queue_(std::move(queue)), state_(std::move(state)) {}

  // REQUIRES: the queue has it.
  void Start(const Stub& stub, const grpc::ByteBuffer& message, const Metadata& metadata) {
    stub.Start(PrepareMethod(), message, {kPrepareMax, &metadata}, queue_->queue(),
               static_cast<EventHandler*>(this), attempt_);
  }
  void Cancel() override { attempt_.context.TryCancel(); }

 private:
  void OnEvent(bool) override {
    Release(state_);
    queue_->Remove(this);
  }

  const std::shared_ptr<EventQueue> queue_;
  const State state_;
  UnaryAttempt attempt_;
};

}  // namespace

void PrepareAgain(const Link& link, const PreparedRotation& rotation, const RpcOptions& options,
                  const std::function<double()>& random) {
  const State& state = PreparedState::Of(rotation);
  if (!Acquire(state)) return;
  if (const auto message = state->preparation->Message(); message.ok()) {
    const auto timeout = std::min<microseconds>(options.timeout, kPrepareMax);
    do {
      static_cast<void>(link.stub.Call(PrepareMethod(), *message, {timeout, options.metadata}));
    } while (AsksAnother(link, random));
  }
  Release(state);
}

void StartPrepareAgain(const std::shared_ptr<const Link>& link,
                       const std::shared_ptr<EventQueue>& queue, const PreparedRotation& rotation,
                       const Metadata& metadata, const std::function<double()>& random) {
  const State& state = PreparedState::Of(rotation);
  if (!Acquire(state)) return;
  const auto message = state->preparation->Message();
  if (!message.ok()) return Release(state);
  do {
    const auto call = std::make_shared<PrepareCall>(queue, state);
    queue->Add(call);
    call->Start(link->stub, *message, metadata);
  } while (AsksAnother(*link, random));
}

}  // namespace rope::client
