// The yardstick of "as shipped": an echo (ServeUntunedEcho) and its client, written with gRPC's
// callback API and the defaults of gRPC and malloc. It answers with the received bytes, without a
// copy.
#ifndef ROPE_TESTS_BENCH_UNTUNED_ECHO_H_
#define ROPE_TESTS_BENCH_UNTUNED_ECHO_H_

#include <functional>
#include <string>

#include "grpcpp/support/byte_buffer.h"

namespace rope::bench {

// Opens a connection. The returned function makes one Rotate call through the callback API and
// waits for the answer.
std::function<void()> ConnectCallback(const std::string& target, const grpc::ByteBuffer& request);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_UNTUNED_ECHO_H_
