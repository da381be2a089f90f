#include "client/cli/lint/engine_readings.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/cli/local_describe.h"
#include "kernels/compat/engine_table.h"
#include "kernels/compat/rope_readings.h"

namespace rope::client {
namespace {

Finding FindingOf(const kernels::Reading& reading) {
  Finding finding = {
      .weight = Weight::kReading, .engine = reading.engine, .version = reading.version};
  const std::string who = absl::StrCat(reading.engine, " ", reading.version);
  if (reading.attention_factor == 0) {
    finding.message = absl::StrFormat("%s has no such rotation: %s", who, reading.difference);
  } else {
    finding.message =
        absl::StrFormat("%s: %s %s", who, reading.difference,
                        ReadingNumbers(reading.attention_factor, reading.inv_freq_max_relative));
  }
  return finding;
}

// The numbers of "0.12.1"; a part that is no number counts as 0.
std::vector<int64_t> Numbers(absl::string_view version) {
  std::vector<int64_t> numbers;
  for (const absl::string_view part : absl::StrSplit(version, '.')) {
    int64_t number = 0;
    numbers.push_back(absl::SimpleAtoi(part, &number) ? number : 0);
  }
  return numbers;
}

// Whether `versions`, "0.12.0 to 0.21.0" or one version, has `version`. Commits are compared as
// text.
bool HasVersion(absl::string_view versions, absl::string_view version) {
  const std::vector<absl::string_view> ends = absl::StrSplit(versions, " to ");
  if (ends.size() == 1) return ends[0] == version;
  return Numbers(ends[0]) <= Numbers(version) && Numbers(version) <= Numbers(ends[1]);
}

bool Passes(const Finding& finding, const EngineFilter& filter) {
  if (!filter.name.empty() && finding.engine != filter.name) return false;
  return filter.version.empty() || HasVersion(finding.version, filter.version);
}

}  // namespace

std::vector<std::string> EngineNames() {
  std::vector<std::string> names;
  for (const kernels::EngineEntry& entry : kernels::EngineTable()) {
    if (names.empty() || names.back() != entry.engine) names.emplace_back(entry.engine);
  }
  return names;
}

std::vector<Finding> EngineReadings(const kernels::LayerRope& rope,
                                    const kernels::ResolvedRope& resolved,
                                    const EngineFilter& filter) {
  std::vector<Finding> findings;
  const int64_t length = rope.layer.config.max_position_embeddings.value_or(1);
  for (const int64_t seq_len : {int64_t{1}, length}) {
    for (const kernels::Reading& reading :
         kernels::Readings(rope.stated, kernels::NamesOf(rope.layer), resolved, seq_len)) {
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
