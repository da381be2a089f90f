// The server processes of rope_bench's rows; each starts when a row first asks for it. They are
// separate processes, as in production, because gRPC's threads within one process take each other's
// events.
#ifndef ROPE_TESTS_BENCH_SERVERS_H_
#define ROPE_TESTS_BENCH_SERVERS_H_

#include <sys/types.h>

#include <string>

namespace rope::bench {

enum class Socket { kTcp, kUnix };

enum class Kind {
  kRope,          // build/bin/rope_server as shipped
  kSharedMemory,  // the same with --enable_shared_memory
  kEcho,          // the same-options echo
  kUntunedEcho,   // the callback API with gRPC's and malloc's defaults
  kBatching,      // the server's classes in this program
  kNoBatching,    // the same, with batches of one request
};

std::string Target(Kind kind, Socket socket);
pid_t ProcessOf(Kind kind);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_SERVERS_H_
