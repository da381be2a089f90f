#include "client/connection.h"

#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "client/retry.h"

namespace rope::client {
namespace {

using std::chrono::microseconds;

}  // namespace

Connection::Hooks Connection::DefaultHooks() {
  return {
      .sleep = [](microseconds delay) { std::this_thread::sleep_for(delay); },
      .random =
          [] {
            thread_local std::minstd_rand generator{std::random_device{}()};
            return std::uniform_real_distribution<double>(0, 1)(generator);
          },
  };
}

Connection::Connection(const std::string& target, const ConnectOptions& options, Hooks hooks)
    : stub_(target, options), attempts_max_(options.attempts_max), hooks_(std::move(hooks)) {}

void Connection::WaitForConnected(microseconds timeout) const {
  // The answer is left unused: a call on the channel fails with the reason.
  static_cast<void>(stub_.WaitForConnected(timeout));
}

Result<grpc::ByteBuffer> Connection::Call(const std::string& method,
                                          const grpc::ByteBuffer& request, bool idempotent,
                                          const CallOptions& options) const {
  Attempts attempts(attempts_max_, idempotent, options.timeout);
  for (;;) {
    Result<grpc::ByteBuffer> reply = stub_.Call(method, request, attempts.Remaining());
    if (reply.ok()) return reply;
    const std::optional<microseconds> delay = attempts.DelayAfter(reply.status(), hooks_.random());
    if (!delay.has_value()) return reply;
    hooks_.sleep(*delay);
  }
}

std::shared_ptr<AsyncCall> Connection::StartRotate(const RotateRequest& request,
                                                   RotateCallback callback,
                                                   const CallOptions& options) const {
  return AsyncCall::Start(stub_, Queue(), request, std::move(callback),
                          Attempts(attempts_max_, /*idempotent=*/true, options.timeout),
                          hooks_.random);
}

std::shared_ptr<StreamCall> Connection::OpenStream(const StreamOptions& options) const {
  return StreamCall::Open(stub_, Queue(), options);
}

const std::shared_ptr<EventQueue>& Connection::Queue() const {
  std::call_once(loop_once_, [this] { loop_.emplace(); });
  return loop_->queue();
}

}  // namespace rope::client
