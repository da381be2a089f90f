#include "client/cli/lint/engine_readings.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "kernels/compat/rope_readings.h"

namespace rope::client {
namespace {

Finding FindingOf(const kernels::Reading& reading) {
  Finding finding = {.weight = Weight::kReading, .engine = reading.implementation, .version = ""};
  if (reading.attention_factor == 0) {
    finding.message =
        absl::StrFormat("%s has no such rotation: %s", finding.engine, reading.difference);
  } else {
    finding.message = absl::StrFormat("%s: %s (attention factor %.9g, inv_freq up to %.3g off)",
                                      finding.engine, reading.difference, reading.attention_factor,
                                      reading.inv_freq_max_relative);
  }
  return finding;
}

// A reading without a version is that of every version.
bool Passes(const Finding& finding, const EngineFilter& filter) {
  if (!filter.name.empty() && finding.engine != filter.name) return false;
  return filter.version.empty() || finding.version.empty() || finding.version == filter.version;
}

}  // namespace

std::vector<std::string> EngineNames() {
  std::vector<std::string> names;
  for (const kernels::Compat compat : {kernels::Compat::kHuggingFace, kernels::Compat::kVllm,
                                       kernels::Compat::kLlamaCpp, kernels::Compat::kDeepSeek}) {
    names.emplace_back(kernels::Name(compat));
  }
  return names;
}

std::vector<Finding> EngineReadings(const kernels::LayerRope& rope,
                                    const kernels::ResolvedRope& resolved,
                                    const EngineFilter& filter) {
  std::vector<Finding> findings;
  const int64_t length = rope.layer.config.max_position_embeddings.value_or(1);
  for (const int64_t seq_len : {int64_t{1}, length}) {
    for (const kernels::Reading& reading : kernels::Readings(rope.stated, resolved, seq_len)) {
      Finding finding = FindingOf(reading);
      const auto is_same = [&finding](const Finding& other) {
        return other.engine == finding.engine && other.version == finding.version;
      };
      if (!Passes(finding, filter) || std::ranges::any_of(findings, is_same)) continue;
      findings.push_back(std::move(finding));
    }
  }
  return findings;
}

}  // namespace rope::client
