#include "tests/bench/measure.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"

namespace rope::bench {

std::vector<std::vector<double>> TakeTurns(const std::vector<std::function<void()>>& functions,
                                           int rounds) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::vector<double>> seconds(functions.size());
  for (int round = -1; round < rounds; ++round) {
    for (size_t i = 0; i < functions.size(); ++i) {
      const Clock::time_point begin = Clock::now();
      functions[i]();
      const std::chrono::duration<double> elapsed = Clock::now() - begin;
      if (round >= 0) seconds[i].push_back(elapsed.count());
    }
  }
  return seconds;
}

bool Holds(const std::string& bar, double number) {
  double limit = 0;
  ROPE_CHECK(bar.size() > 3 && absl::SimpleAtod(bar.substr(3), &limit));
  if (bar.substr(0, 3) == ">= ") return number >= limit;
  ROPE_CHECK(bar.substr(0, 3) == "<= ");
  return number <= limit;
}

std::vector<double> MinSeconds(const std::vector<std::function<void()>>& functions, int rounds) {
  std::vector<double> result;
  for (const std::vector<double>& turns : TakeTurns(functions, rounds)) {
    result.push_back(*std::min_element(turns.begin(), turns.end()));
  }
  return result;
}

std::vector<double> MedianSeconds(const std::vector<std::function<void()>>& functions, int rounds) {
  std::vector<double> result;
  for (std::vector<double>& turns : TakeTurns(functions, rounds)) {
    const auto middle = turns.begin() + static_cast<std::ptrdiff_t>(turns.size() / 2);
    std::nth_element(turns.begin(), middle, turns.end());
    result.push_back(*middle);
  }
  return result;
}

Rates InTurns(int rounds, const std::function<double()>& rope,
              const std::function<double()>& echo) {
  Rates rates;
  for (int round = 0; round < rounds; ++round) {
    const bool echo_first = round % 2 == 1;
    if (echo_first) rates.echo.push_back(echo());
    rates.rope.push_back(rope());
    if (!echo_first) rates.echo.push_back(echo());
    rates.ratios.push_back(rates.rope.back() / rates.echo.back());
  }
  return rates;
}

std::string GigabytesPerSecond(double bytes, double seconds) {
  return absl::StrFormat("%.1f GB/s", bytes / seconds * 1e-9);
}

}  // namespace rope::bench
