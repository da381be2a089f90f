// The table of engines: who reads a config how, in which versions, for which models. It is data, in
// engines.json: one entry is one reading; a new reading is a new entry, and a test.
//
// Threading:  Constants and pure functions; any thread.
#ifndef ROPE_KERNELS_COMPAT_ENGINE_TABLE_H_
#define ROPE_KERNELS_COMPAT_ENGINE_TABLE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/compat/model_family.h"
#include "kernels/config/rope_config.h"

namespace rope::kernels {

// A conversion of which a reading consists; engine_table.cc has them. `who` is the engine's name in
// sentences. REQUIRES: the config is valid.
using ReadingStep = absl::Status (*)(std::string_view who, CompatConfig& result);

// How models of some families are read.
struct EngineEntry {
  // The oldest and the newest version that read them so.
  std::string first;
  std::string last;
  std::vector<Family> families;  // empty: every model, also one without names
  std::vector<ReadingStep> steps;

  bool Covers(Family family) const;
};

// Versions of an engine that read every model alike.
struct EngineVersions {
  std::string_view engine;  // "vllm"
  std::string_view who;     // "vLLM", in sentences
  // The oldest and the newest; commits where an engine has no versions.
  std::string_view first;
  std::string_view last;
  std::vector<const EngineEntry*> entries = {};  // the last one is that for ordinary models

  // Null: nothing is claimed of the family.
  const EngineEntry* EntryFor(Family family) const;
};

// Ordered by engine. Within an engine the newest versions come first.
std::span<const EngineVersions> EngineTable();

// The config that `entry` of `versions` makes of `config`, started with `max_model_len`.
// INVALID_ARGUMENT: the engine has no such rotation; the message names it. UNIMPLEMENTED: how the
// engine reads this was not checked.
absl::StatusOr<CompatConfig> Convert(const EngineVersions& versions, const EngineEntry& entry,
                                     const RopeConfig& config, const ModelNames& names = {},
                                     std::optional<int64_t> max_model_len = std::nullopt);

// The names of the engines, in the order of the table.
std::vector<std::string> EngineNames();
// The versions of `engine` that were compared, the oldest first: "0.10.2 to 0.11.0".
std::vector<std::string> ComparedVersions(std::string_view engine);

// Those versions of `engine` from `first` to `last` whose own code was run on configs and gave the
// numbers that the table says (tests/peers/engines/data), joined by ", ". Empty: files were read.
std::string ExecutedVersions(std::string_view engine, std::string_view first,
                             std::string_view last);

// Whether the engine keeps cos and sin in float32. The others round them to the model's dtype.
bool KeepsFloat32Tables(std::string_view engine);

// "0.12.0 to 0.21.0", or one version.
std::string Versions(std::string_view first, std::string_view last);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_COMPAT_ENGINE_TABLE_H_
