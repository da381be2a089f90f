// A well-behaved client in a separate process: `ropectl load` with one decode token at a time. What
// an attack costs the test's process does not delay it.
//
// Threading:  Confined to one thread.
#ifndef ROPE_TESTS_SUPPORT_OBSERVER_H_
#define ROPE_TESTS_SUPPORT_OBSERVER_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/process.h"

namespace rope::testing {

class Observer {
 public:
  // Calls `target` for `seconds`.
  Observer(const std::string& target, int seconds)
      : process_({RopectlProgram(), "load", "--target=" + target,
                  "--duration=" + std::to_string(seconds) + "s", "--concurrency=1", "--json"}) {}

  struct Counts {
    int64_t answered = 0;
    int64_t failed = -1;  // -1: it could not report
    double p99_ms = 0;
    double slowest_ms = 0;
  };
  // Waits for its end.
  Counts Await() {
    const auto report = nlohmann::json::parse(process_.ReadAll(), nullptr, /*exceptions=*/false);
    process_.Wait();
    if (!report.is_object()) return {};
    const auto& latency = report["latency_us"];
    return {report["answered"], report["failed"], latency["p99"].get<double>() / 1000,
            latency["max"].get<double>() / 1000};
  }

 private:
  Process process_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_OBSERVER_H_
