#include "client/cli/lint/engine_readings.h"

#include <algorithm>
#include <cstdint>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/cli/local_describe.h"
#include "kernels/compat/engine_table.h"
#include "kernels/compat/model_family.h"
#include "kernels/compat/rope_readings.h"

namespace rope::client {
namespace {

Finding FindingOf(const kernels::Reading& reading) {
  const bool rotates = reading.attention_factor != 0;
  Finding finding = {.rule = &RuleOf(rotates ? kReadDifferently : kNoSuchRotation),
                     .engine = reading.engine,
                     .version = reading.version};
  finding.message = absl::StrCat(
      reading.engine, " ", reading.version, rotates ? ": " : " ",
      WithNumbers(reading.difference, reading.attention_factor, reading.inv_freq_max_relative));
  return finding;
}

// Whether `version` is one from `first` to `last`. Commits are compared as text.
bool IsBetween(absl::string_view first, absl::string_view version, absl::string_view last) {
  const auto from = kernels::ParseRelease({first.data(), first.size()});
  const auto asked = kernels::ParseRelease({version.data(), version.size()});
  const auto to = kernels::ParseRelease({last.data(), last.size()});
  if (!from.has_value() || !asked.has_value() || !to.has_value()) return version == first;
  return *from <= *asked && *asked <= *to;
}

// The same of "0.12.0 to 0.21.0" or one version.
bool HasVersion(absl::string_view versions, absl::string_view version) {
  const std::vector<absl::string_view> ends = absl::StrSplit(versions, " to ");
  return IsBetween(ends.front(), version, ends.back());
}

absl::string_view View(std::string_view text) {
  return {text.data(), text.size()};
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

Status CheckVersion(const EngineFilter& filter) {
  if (filter.version.empty()) return {};
  const kernels::EngineEntry* newest = nullptr;
  for (const kernels::EngineEntry& entry : kernels::EngineTable()) {
    if (newest == nullptr && View(entry.engine) == filter.name) newest = &entry;
  }
  const bool release = newest != nullptr && kernels::ParseRelease(newest->last).has_value();
  const bool readable =
      release ? kernels::ParseRelease(filter.version).has_value()
              : absl::c_all_of(filter.version, [](char c) {
                  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-';
                });
  if (readable) return {};
  return Status(StatusCode::kInvalidArgument,
                absl::StrCat("--engine: got version ", filter.version, ", want one such as ",
                             newest == nullptr ? "" : View(newest->last)));
}

std::optional<Finding> VersionFinding(const EngineFilter& filter) {
  if (filter.version.empty()) return std::nullopt;
  std::vector<std::string> compared;
  for (const kernels::EngineEntry& entry : kernels::EngineTable()) {
    if (View(entry.engine) != filter.name) continue;
    if (IsBetween(View(entry.first), filter.version, View(entry.last))) return std::nullopt;
    const std::string versions = kernels::Versions(entry.first, entry.last);
    if (compared.empty() || compared.back() != versions) compared.push_back(versions);
  }
  absl::c_reverse(compared);
  return Finding{
      .rule = &RuleOf(kVersionNotCompared),
      .message = absl::StrCat(filter.name, " ", filter.version,
                              " was never compared; compared were ", absl::StrJoin(compared, ", ")),
      .engine = filter.name,
      .version = filter.version};
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
