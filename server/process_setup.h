// Set-up of the process: malloc and the locks of Abseil, for a server that is fast from its first
// request and does not grow. In one place for the server and for the benchmark's programs.
//
// Threading:  Call before any thread starts.
#ifndef ROPE_SERVER_PROCESS_SETUP_H_
#define ROPE_SERVER_PROCESS_SETUP_H_

#include <malloc.h>

#include "absl/synchronization/mutex.h"

namespace rope::server {

// Limits malloc to one arena for each poll thread, since the poll threads do most allocations. More
// arenas only split freed memory, and the server's memory then grows for hours.
inline void LimitArenas(int poll_threads) {
  mallopt(M_ARENA_MAX, poll_threads);
}

// Sets up malloc and Abseil for the process.
inline void PrepareProcess() {
  // gRPC allocates and frees every received slice. By default glibc gives the pages back to the
  // kernel, which zeroes them again. Keeping them is the largest single gain of the whole server.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  mallopt(M_TOP_PAD, 64 << 20);
  // Packaged Abseil is built with deadlock detection, which slows down every lock of gRPC.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace rope::server

#endif  // ROPE_SERVER_PROCESS_SETUP_H_
