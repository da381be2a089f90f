// The real server inside this program, for rows that need settings without a flag.
#ifndef ROPE_TESTS_BENCH_OWN_SERVER_H_
#define ROPE_TESTS_BENCH_OWN_SERVER_H_

#include <string>

namespace rope::bench {

// Serves as a process of modes.h; without `batching` each batch holds one request.
[[noreturn]] void ServeOwn(const std::string& path, bool batching);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_OWN_SERVER_H_
