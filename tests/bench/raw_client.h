// Clients of rope_bench that represent any client: they send and receive wire bytes without the
// client library, in the same way for a server and for its yardstick.
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

// The wire bytes of a Rotate request with `tokens` tokens.
grpc::ByteBuffer MakeRequest(const v1::RotateRequest& head, int64_t tokens);

// The wire bytes of the same request by the id under which the server at `target` has prepared it.
grpc::ByteBuffer MakePreparedRequest(const std::string& target, const v1::RotateRequest& head,
                                     int64_t tokens);

// A new channel with the client library's options, or with gRPC's defaults except the message
// limits.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, bool tuned);

// A connection whose calling thread polls in the same way as the client library.
class RawClient {
 public:
  explicit RawClient(const std::string& target) : channel_(MakeChannel(target, true)) {}

  // Makes one call and returns its time in seconds. `reply` may be null.
  double Call(const grpc::ByteBuffer& request, grpc::ByteBuffer* reply = nullptr);

  // Runs a RotateStream with `window` requests in flight for `seconds`; returns answers a second.
  double StreamRate(const grpc::ByteBuffer& request, int window, double seconds);

 private:
  void* Await();

  grpc::CompletionQueue queue_;
  const std::shared_ptr<grpc::Channel> channel_;
};

// Calls a second of `clients` threads together, over `seconds`. `connect` creates the function that
// each thread calls.
double CallRate(const std::function<std::function<void()>()>& connect, int clients, double seconds);

// The same with one RawClient for each thread.
double RawCallRate(const std::string& target, const grpc::ByteBuffer& request, int clients,
                   double seconds);

double Median(std::vector<double> values);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_RAW_CLIENT_H_
