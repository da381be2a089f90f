// The server processes that rows of rope_bench call, each started when a row first asks for it.
// Each is a process of its own as in life: gRPC's threads of one process take each other's events.
#ifndef ROPE_TESTS_BENCH_SERVERS_H_
#define ROPE_TESTS_BENCH_SERVERS_H_

#include <sys/types.h>

#include <string>

namespace rope::bench {

enum class Socket { kTcp, kUnix };

enum class Kind {
  kRope,          // build/bin/rope_server as shipped
  kSharedMemory,  // the same with shared memory on
  kEcho,          // the same-options echo
  kUntunedEcho,   // the callback API with gRPC's and malloc's defaults
  kBatching,      // the server's parts in this program
  kNoBatching,    // the same, with batches of one request
};

std::string Target(Kind kind, Socket socket);
pid_t ProcessOf(Kind kind);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_SERVERS_H_
