#include "tests/support/observer.h"

#include <nlohmann/json.hpp>

namespace rope::testing {

Observer::Observer(const std::string& target, int seconds)
    : process_({RopectlProgram(), "load", "--target=" + target,
                "--duration=" + std::to_string(seconds) + "s", "--concurrency=1", "--json"}) {}

Observer::Counts Observer::Await() {
  const auto report = nlohmann::json::parse(process_.ReadAll(), nullptr, /*exceptions=*/false);
  process_.Wait();
  if (!report.is_object()) return {};
  const auto& latency = report["latency_us"];
  return {report["answered"], report["failed"], latency["p99"].get<double>() / 1000,
          latency["max"].get<double>() / 1000};
}

}  // namespace rope::testing
