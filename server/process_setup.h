// Set-up of the process: its descriptors, and malloc and the locks of Abseil for a server that is
// fast from its first request and does not grow. In one place for the server and for the
// benchmark's programs.
//
// Threading:  Call before any thread starts.
#ifndef ROPE_SERVER_PROCESS_SETUP_H_
#define ROPE_SERVER_PROCESS_SETUP_H_

#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include "absl/synchronization/mutex.h"

namespace rope::server {

// Limits malloc to one arena for each poll thread, since the poll threads do most allocations. More
// arenas only split freed memory, and the server's memory then grows for hours.
inline void LimitArenas(int poll_threads) {
  mallopt(M_ARENA_MAX, poll_threads);
}

// Opens /dev/null as each standard descriptor that is closed, so that no socket takes its number
// and gets what is printed. One that ends with exec was closed too: a constructor of gRPC opens an
// eventfd there, to see whether it can.
inline void OpenStandardDescriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    const int flags = fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) continue;
    const int null = open("/dev/null", O_RDWR);
    if (null == fd) continue;
    dup2(null, fd);
    close(null);
  }
}

// Raises the number of files that may be open to the most that the system allows the process.
// Shells and service managers often set 1,024, and every connection takes two.
inline void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Sets up malloc and Abseil for the process, and its descriptors.
inline void PrepareProcess() {
  OpenStandardDescriptors();
  RaiseDescriptorLimit();
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
