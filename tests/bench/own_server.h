// The real server inside this program, so that a row can set what has no flag.
#ifndef ROPE_TESTS_BENCH_OWN_SERVER_H_
#define ROPE_TESTS_BENCH_OWN_SERVER_H_

#include <string>

namespace rope::bench {

// Serves as modes.h says; without `batching` no batch holds more than one request.
[[noreturn]] void ServeOwn(const std::string& path, bool batching);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_OWN_SERVER_H_
