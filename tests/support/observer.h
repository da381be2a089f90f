// A well-behaved client in a separate process: `ropectl load` with one decode token at a time. What
// an attack costs the test's process does not delay it.
//
// Threading:  Confined to one thread.
#ifndef ROPE_TESTS_SUPPORT_OBSERVER_H_
#define ROPE_TESTS_SUPPORT_OBSERVER_H_

#include <cstdint>
#include <string>

#include "tests/support/process.h"

namespace rope::testing {

class Observer {
 public:
  // Calls `target` for `seconds`.
  Observer(const std::string& target, int seconds);

  struct Counts {
    int64_t answered = 0;
    int64_t failed = -1;  // -1: it could not report
    double p99_ms = 0;
    double slowest_ms = 0;
  };
  // Waits for its end.
  Counts Await();

 private:
  Process process_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_OBSERVER_H_
