// What rope_bench becomes in the processes that it starts for itself.
#ifndef ROPE_TESTS_BENCH_MODES_H_
#define ROPE_TESTS_BENCH_MODES_H_

#include <cstdint>
#include <string>

namespace rope::bench {

// Servers: a Unix socket's path follows. They listen there and on a free port of 127.0.0.1, say
// both on standard output as rope_server does, and stay until they are killed.
inline constexpr char kServeEcho[] = "--serve_echo=";
inline constexpr char kServeUntunedEcho[] = "--serve_untuned_echo=";
inline constexpr char kServeBatching[] = "--serve_batching=";
inline constexpr char kServeNoBatching[] = "--serve_no_batching=";
// A client; `Drive` follows as text.
inline constexpr char kDrive[] = "--drive=";

enum class DriveKind {
  kLibrary,        // the client library, one call at a time for each client
  kLibraryStream,  // its RotateStream, `clients` requests in flight
  kCallback,       // gRPC's callback API with its defaults
};

// A client process at work.
struct Drive {
  DriveKind kind = DriveKind::kLibrary;
  bool keep_memory = true;  // whether it sets its allocator up as the documentation says
  int64_t tokens = 1;
  int clients = 1;
  double seconds = 1;
  std::string target;
};

struct Driven {
  double calls_per_second = 0;
  double median_seconds = 0;  // of a call; 0 for a stream
};

// Runs it in a process of its own.
Driven RunDrive(const Drive& drive);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_MODES_H_
