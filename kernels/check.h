// ROPE_CHECK: stops the process, with file and line, where our own code broke an invariant. Bad
// input is never our bug: it is an absl::Status.
#ifndef ROPE_KERNELS_CHECK_H_
#define ROPE_KERNELS_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define ROPE_CHECK(condition)                                                            \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

#endif  // ROPE_KERNELS_CHECK_H_
