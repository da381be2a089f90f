#include "client/connection.h"

#include <algorithm>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "client/retry.h"

namespace rope::client {
namespace {

using std::chrono::microseconds;
using Clock = std::chrono::steady_clock;

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
  const auto begin = Clock::now();
  const auto elapsed = [begin] {
    return std::chrono::duration_cast<microseconds>(Clock::now() - begin);
  };
  // Clamped so that microseconds cannot overflow.
  const microseconds timeout =
      std::min<std::chrono::milliseconds>(options.timeout, std::chrono::hours(24));
  const RetryPolicy policy{.attempts_max = attempts_max_};
  for (int attempts = 1;; ++attempts) {
    Result<grpc::ByteBuffer> reply = stub_.Call(method, request, timeout - elapsed());
    if (reply.ok()) return reply;
    const RetryState state{
        .attempts = attempts, .idempotent = idempotent, .elapsed = elapsed(), .timeout = timeout};
    const std::optional<microseconds> delay =
        RetryDelay(policy, state, reply.status(), hooks_.random());
    if (!delay.has_value()) return reply;
    hooks_.sleep(*delay);
  }
}

}  // namespace rope::client
