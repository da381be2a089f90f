// Clients of rope_bench that stand for any client: wire bytes in and out, no client library, the
// same for a server and for its yardstick.
//
// Threading:  A client is confined to one thread.
#ifndef ROPE_TESTS_BENCH_RAW_CLIENT_H_
#define ROPE_TESTS_BENCH_RAW_CLIENT_H_

#include <grpcpp/channel.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rope/v1/rotate.pb.h"
#include "tests/bench/workload.h"

namespace rope::bench {

using Clock = std::chrono::steady_clock;

inline double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// A request without its tensor: base `theta`, first position `start`.
v1::RotateRequest Head(int64_t start, double theta);

// The wire bytes of a Rotate of `tokens` tokens.
grpc::ByteBuffer MakeRequest(const v1::RotateRequest& head, int64_t tokens);

// A channel of its own as the client library makes it, or gRPC's own but for the message limits.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, bool tuned);

// A connection whose calling thread polls as the client library does.
class RawClient {
 public:
  explicit RawClient(const std::string& target) : channel_(MakeChannel(target, true)) {}

  // Seconds that one call took. `reply` may be null.
  double Call(const grpc::ByteBuffer& request, grpc::ByteBuffer* reply = nullptr);

  // RotateStream with `window` requests in flight for `seconds`: answers a second.
  double StreamRate(const grpc::ByteBuffer& request, int window, double seconds);

 private:
  void* Await();

  grpc::CompletionQueue queue_;
  const std::shared_ptr<grpc::Channel> channel_;
};

// Calls a second that `clients` threads get through together in `seconds`. `connect` makes what
// each of them calls.
double CallRate(const std::function<std::function<void()>()>& connect, int clients, double seconds);

// The same with a RawClient each.
double RawCallRate(const std::string& target, const grpc::ByteBuffer& request, int clients,
                   double seconds);

double Median(std::vector<double> values);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_RAW_CLIENT_H_
