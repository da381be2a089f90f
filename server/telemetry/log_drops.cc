#include "server/telemetry/log_drops.h"

#include <atomic>
#include <cstddef>

namespace rope::server {
namespace {

constexpr std::string_view kNames[kLogDropCount] = {"rate_limit", "queue", "output"};

std::array<std::atomic<int64_t>, kLogDropCount> lines_left_out;

}  // namespace

std::string_view Name(LogDrop reason) {
  return kNames[static_cast<size_t>(reason)];
}

void CountLogDrops(LogDrop reason, int64_t lines) {
  lines_left_out[static_cast<size_t>(reason)].fetch_add(lines, std::memory_order_relaxed);
}

std::array<int64_t, kLogDropCount> LogDrops() {
  std::array<int64_t, kLogDropCount> drops{};
  for (size_t i = 0; i < drops.size(); ++i) {
    drops[i] = lines_left_out[i].load(std::memory_order_relaxed);
  }
  return drops;
}

}  // namespace rope::server
