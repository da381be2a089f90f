// The yardstick of "as shipped": what somebody gets who writes an echo with gRPC's callback API and
// leaves gRPC and malloc alone. It answers with the received bytes, without a copy.
#ifndef ROPE_TESTS_BENCH_UNTUNED_ECHO_H_
#define ROPE_TESTS_BENCH_UNTUNED_ECHO_H_

#include <functional>
#include <string>

#include "grpcpp/support/byte_buffer.h"

namespace rope::bench {

// Serves as modes.h says. REQUIRES: nothing has touched the allocator of this process.
[[noreturn]] void ServeUntunedEcho(const std::string& path);

// A call of Rotate on a connection of its own through the callback API; waits for the answer.
std::function<void()> ConnectCallback(const std::string& target, const grpc::ByteBuffer& request);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_UNTUNED_ECHO_H_
