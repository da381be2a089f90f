// ROPE_CHECK: aborts the process, with file and line, when our own code breaks an invariant. Bad
// input never does: it is reported as an absl::Status.
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
