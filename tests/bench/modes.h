// The modes of the processes that rope_bench starts from its own executable.
#ifndef ROPE_TESTS_BENCH_MODES_H_
#define ROPE_TESTS_BENCH_MODES_H_

#include <cstdint>
#include <string>

namespace rope::bench {

// Servers: the flag's value is the path of a Unix socket. They listen there and on a free port of
// 127.0.0.1, print both addresses as rope_server does, and run until they are killed.
inline constexpr char kServeEcho[] = "--serve_echo=";
inline constexpr char kServeUntunedEcho[] = "--serve_untuned_echo=";
inline constexpr char kServeBatching[] = "--serve_batching=";
inline constexpr char kServeNoBatching[] = "--serve_no_batching=";
// A client: the flag's value is a Drive as text.
inline constexpr char kDrive[] = "--drive=";

// What these processes run.
[[noreturn]] void ServeEcho(const std::string& path);  // the same-options echo
// REQUIRES: nothing has configured this process's allocator.
[[noreturn]] void ServeUntunedEcho(const std::string& path);
// The server's classes, for settings without a flag: without `batching` each batch holds one
// request.
[[noreturn]] void ServeOwn(const std::string& path, bool batching);
// Prints the result of the client that `text` describes (written by RunDrive).
[[noreturn]] void DriveMain(const std::string& text);

enum class DriveKind {
  kLibrary,       // the client library, one call at a time for each client
  kLibraryAsync,  // its asynchronous calls, `clients` of them in flight
  kCallback,      // gRPC's callback API with its defaults
};

// The work of a client process. Requests of the library are prepared first.
struct Drive {
  DriveKind kind = DriveKind::kLibrary;
  bool keep_memory = true;  // true: sets up its allocator as the documentation says
  // Where the library's results go: to the request's output, or to memory of the reply, which the
  // connection keeps for the next reply or not.
  enum class Results { kOutput, kKeptMemory, kNewMemory } results = Results::kOutput;
  int64_t tokens = 1;
  int clients = 1;
  double seconds = 1;
  std::string target;
};

struct Driven {
  double calls_per_second = 0;
  double median_seconds = 0;  // of a call; 0 for calls in flight together
};

// Runs `drive` in a separate process.
Driven RunDrive(const Drive& drive);

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_MODES_H_
