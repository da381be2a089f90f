// The yardstick of every row about calls: an echo with the same queues, spinning, allocator and
// channel options as the real server. It answers each Rotate, and each message of a RotateStream,
// with the received bytes, copied once into a pooled buffer.
#ifndef ROPE_TESTS_BENCH_ECHO_SERVER_H_
#define ROPE_TESTS_BENCH_ECHO_SERVER_H_

#include <string>

namespace rope::bench {

// Serves as a process of modes.h.
[[noreturn]] void ServeEcho(const std::string& path);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_ECHO_SERVER_H_
